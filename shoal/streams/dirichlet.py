"""Partitions with a random mix of classes: `Dirichlet` deals all rows, `Draw` lets every client draw its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import pydantic
from torch import Tensor

from ..data.dataset import Dataset
from ..data.splits import stratified
from ..errors import ConfigError, nearest
from ..randomness import generator
from .cells import Array, Cells, Dealt, Names, Partition, Pool, Split, even, held_out
from .grouping import class_groups

Alpha = Annotated[float, pydantic.Field(gt=0)]
Prior = Literal["frequency", "ones"]

_LISTED = "partition.group"
"""The name of the column of listed groups, inside the pool alone."""
_REDRAWS = 1000
_NUMBERS = 2 * 10**7
"""How many random numbers all redraws may take together."""


def dirichlet(weights: Array, alpha: float, rows: int, rng: np.random.Generator) -> Array:
    """``rows`` draws from ``Dirichlet(alpha * weights)``, float64 ``[rows, len(weights)]``; each sums to 1.

    Right for every ``alpha > 0``: gamma variables as logarithms (``G(a) = G(a + 1) U ** (1 / a)``), so that a tiny
    alpha gives one-hot rows and never 0 / 0. ``alpha = inf`` gives the weights themselves.
    """
    share = weights / weights.sum()
    if math.isinf(alpha):
        return np.tile(share, (rows, 1))
    # Below 1e-250 the logarithm of U ** (1 / a) would overflow; such rows are one-hot long before.
    concentration = np.clip(np.minimum(alpha, 1e300) * weights, 1e-250, None)
    size = (rows, len(weights))
    logs = np.log(rng.standard_gamma(concentration + 1, size)) + np.log1p(-rng.random(size)) / concentration
    logs[:, weights == 0] = -np.inf
    values = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def take(mixes: Array, left: Array, rows: Array, rng: np.random.Generator) -> Array:
    """How many rows of each class every client draws by its mix, without replacement: int64 ``[clients, classes]``.

    ``mixes`` is ``[clients, classes]``, ``left`` the rows of each class, ``rows`` those of each client. All draw at
    once. Where they want more of a class than there is, lots decide, and the losers draw again by their mix,
    renormalised over the classes that are not used up; so a class that runs out bends all mixes a little, and not
    those of the last clients a lot. A client whose mix gives the remaining classes no weight that a float can hold
    draws by what is left. Needs ``rows.sum() <= left.sum()``; each pass ends it or uses up a class.
    """
    taken = np.zeros(mixes.shape, dtype=np.int64)
    while (missing := rows - taken.sum(axis=1)).any():
        room = left - taken.sum(axis=0)
        weights = np.where(room > 0, mixes, 0.0)
        weights[weights.sum(axis=1) == 0] = room
        wanted = rng.multinomial(missing, weights / weights.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(wanted.sum(axis=0) > room):
            wanted[:, c] = rng.multivariate_hypergeometric(wanted[:, c], room[c])
        taken += wanted
    return taken


def _weights(sizes: Array, prior: str) -> Array:
    """The Dirichlet's base measure: the frequencies of the classes (sum 1), or 1 for each that occurs."""
    return sizes / max(1, sizes.sum()) if prior == "frequency" else (sizes > 0).astype(np.float64)


def _check_alpha(alpha: float) -> None:
    if not alpha > 0:
        raise ConfigError(
            f"partition.alpha: must be greater than 0 (small: few classes a client; .inf: no skew at all); got {alpha}"
        )


class Dirichlet(Partition):
    """Label skew: a random mix of classes for each client, or random shares of each class. All rows are dealt.

    ``by: client``: each client draws a class mix ``q ~ Dir(alpha * prior)``, and its rows by ``q`` without
    replacement, renormalised when a class is used up. Sizes are equal (they differ by at most one). ``prior`` is the
    ``frequency`` of the classes in the pool, or ``ones``, which is ``Dir(alpha, ..., alpha)``: with ten equal
    classes ``ones`` at 0.1 is ``frequency`` at 1. Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical
    Data Distribution for Federated Visual Classification", arXiv:1909.06335, section 2; who draws first is not said
    there, here all draw at once (`take`).

    ``by: class``: each class is cut into shares over the clients, ``Dir(alpha, ..., alpha)``; sizes differ, and a
    client may get nothing. ``minimum`` rows for each client are reached by drawing again, at most 1000 times. Source:
    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, section 4.

    ``alpha`` may be ``.inf``: every client gets the mix of the whole pool. ``rows`` gives each client exactly so many
    rows and leaves the rest to nobody (``by: client`` only).

    ``group`` puts several classes into one: a number of groups of consecutive classes, lists of classes (by their
    original labels, or by number where those are names; each class in one list), or the name of a column that holds
    the group. The mix is then one of groups, and inside a group rows are drawn at random: classes of equal size are
    equally likely. ``alpha: 0.5, group: 10, prior: ones`` are the clients of CIFAR-100 in arXiv:2009.06557.
    """

    def __init__(
        self,
        *,
        by: Literal["client", "class"],
        alpha: Alpha,
        minimum: Annotated[int, pydantic.Field(ge=0)] = 0,
        rows: Annotated[int, pydantic.Field(ge=1)] | None = None,
        group: Annotated[int, pydantic.Field(ge=1)] | str | list[list[int | str]] | None = None,
        prior: Prior = "frequency",
    ) -> None:
        _check_alpha(alpha)
        if by not in ("client", "class"):
            raise ConfigError(
                f"partition.by: 'client' (a class mix per client) or 'class' (shares of each class); got {by!r}"
            )
        if rows is not None and by == "class":
            raise ConfigError("partition.rows: sizes follow from the class shares with by: class; use by: client")
        self.by = by
        self.alpha = alpha
        self.minimum = minimum
        self.rows = rows
        self.group = group
        self.prior = prior

    @property
    def by_class(self) -> bool:
        """Unless a column says what the groups are."""
        return not isinstance(self.group, str)

    def pool(self, data: Dataset, rows: Tensor) -> Pool:
        """These rows, with the listed groups of their classes as a column of their own. Raises `ConfigError`."""
        pool = super().pool(data, rows)
        if not isinstance(self.group, list) or data.is_regression:
            return pool
        groups = class_groups(data, self.group, "partition.group")
        places = {code: place for place, group in enumerate(groups) for code in group}
        left = [name for code, name in enumerate(data.classes) if code not in places]
        if left:
            raise ConfigError(
                f"partition.group: every class belongs to a group; in none of the {len(groups)} lists: "
                f"{', '.join(left[:5])}" + (f" and {len(left) - 5} others" if len(left) > 5 else "")
            )
        codes = np.array([places[code] for code in range(len(data.classes))])
        return Pool(pool.labels, {**pool.columns, _LISTED: codes[pool.labels]})

    def strata(self, pool: Pool) -> Array:
        """The classes, or the column of the groups."""
        return pool.columns[self.group] if isinstance(self.group, str) else pool.labels

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """Deals the rows; raises `ConfigError` when ``minimum`` or ``rows`` cannot be met."""
        total = len(labels)
        asked = clients * (self.minimum if self.rows is None else self.rows)
        if asked > total:
            name = "minimum" if self.rows is None else "rows"
            each = asked // clients
            raise ConfigError(
                f"partition.{name}: {clients} clients with {each} rows each are {asked}, but there are {total}; "
                f"lower {name} or the number of clients" + (", or use kind: draw" if self.rows else "")
            )
        codes = self._codes(labels, columns or {})
        sizes = np.bincount(codes)
        counts = (
            self._by_client(sizes, clients, names) if self.by == "client" else self._by_class(sizes, clients, names)
        )
        # Each group's rows in random order: the first counts[group, 0] to client 0, and so on, the rest to nobody.
        order = generator(*names, "rows").permutation(total)
        order = order[np.argsort(codes[order], kind="stable")]
        counts = np.column_stack([counts, sizes - counts.sum(axis=1)])
        holders = np.append(np.arange(clients), -1)
        owner = np.empty(total, dtype=np.int64)
        owner[order] = np.repeat(np.tile(holders, len(sizes)), counts.reshape(-1))
        return Dealt(owner, clients)

    def _codes(self, labels: Array, columns: Mapping[str, Array]) -> Array:
        if isinstance(self.group, list):
            return np.unique(columns[_LISTED], return_inverse=True)[1].reshape(-1)
        if isinstance(self.group, str):
            if self.group not in columns:
                known = nearest(self.group, columns) if columns else "it has none (data.columns names them)"
                raise ConfigError(f"partition.group: the data have no column {self.group!r}; {known}")
            labels = columns[self.group]
        codes: Array = np.unique(labels, return_inverse=True)[1].reshape(-1)
        if isinstance(self.group, int) and len(codes):
            classes = int(codes.max()) + 1
            if self.group > classes:
                raise ConfigError(f"partition.group: {self.group} groups, but there are {classes} classes; lower it")
            codes = codes * self.group // classes
        return codes

    def _by_client(self, sizes: Array, clients: int, names: Names) -> Array:
        rng = generator(*names, "mix")
        total = int(sizes.sum())
        if total == 0:
            return np.zeros((len(sizes), clients), dtype=np.int64)
        mixes = dirichlet(_weights(sizes, self.prior), self.alpha, clients, rng)
        # Who gets one row more is drawn: it must not be a matter of the number.
        rows = np.full(clients, self.rows) if self.rows else rng.permutation(even(total, clients))
        return take(mixes, sizes, rows, rng).T

    def _by_class(self, sizes: Array, clients: int, names: Names) -> Array:
        best = -1
        redraws = max(1, min(_REDRAWS, _NUMBERS // max(1, len(sizes) * clients)))
        for attempt in range(redraws):
            rng = generator(*names, "mix", attempt)
            parts = dirichlet(np.ones(clients), self.alpha, len(sizes), rng)
            # Rounding the running sum loses no row and puts every count within one row of its share.
            ends = np.rint(np.cumsum(parts, axis=1) * sizes[:, None]).astype(np.int64)
            ends[:, -1] = sizes
            counts: Array = np.diff(ends, axis=1, prepend=0)
            smallest = int(counts.sum(axis=0).min())
            if smallest >= self.minimum:
                return counts
            best = max(best, smallest)
        raise ConfigError(
            f"partition.minimum: in {redraws} draws the smallest of {clients} clients never had {self.minimum} rows "
            f"(at best {best}); raise alpha (it is {self.alpha:g}), lower minimum or the number of clients, or use "
            f"by: client"
        )


class Draw(Partition):
    """Every client draws ``rows`` rows of its own, without replacement; different clients may hold the same rows.

    A client's draw is computed when it is asked for, so a million clients cost nothing until they are sampled. With
    ``alpha`` each client has its own class mix ``q ~ Dir(alpha * prior)``, as in `Dirichlet` by client. Because rows
    are shared, validation rows are set aside for all clients at once (stratified by class): one client's
    validation rows are never another one's training rows.
    """

    def __init__(
        self,
        *,
        rows: Annotated[int, pydantic.Field(ge=1)],
        alpha: Alpha | None = None,
        prior: Prior = "frequency",
    ) -> None:
        if rows < 1:
            raise ConfigError(f"partition.rows: every client draws at least one row; got {rows}")
        if alpha is not None:
            _check_alpha(alpha)
        self.rows = rows
        self.alpha = alpha
        self.prior = prior

    @property
    def by_class(self) -> bool:
        """With ``alpha``."""
        return self.alpha is not None

    def split(self, labels: Array, clients: int, names: Names, columns: Mapping[str, Array] | None = None) -> Split:
        """The draws, each computed when it is asked for; raises `ConfigError` if the pool has fewer rows."""
        self._check(len(labels))
        return Drawn(labels, np.arange(len(labels)), self.rows, self, names, "rows")

    def cells(
        self,
        labels: Array,
        clients: int,
        names: Names,
        share: float,
        columns: Mapping[str, Array] | None = None,
    ) -> Cells:
        """The draws from two parts of the pool: one to train on, one to validate on."""
        self._check(len(labels))
        return DrawnCells(labels, self, names, share)

    def test_split(
        self, cells: Cells, train: Pool, test: Pool, clients: int, names: Names, rows: int | None = None
    ) -> Split:
        """Every client draws test rows by its own class mix, when it is asked for them; clients may share them.

        ``rows`` of them, or as many as its rows are of the training rows, at least one: with 500 of 50,000 rows, 100 of
        10,000. Raises `ConfigError` for more ``rows`` than there are.
        """
        if rows is not None and rows > len(test.labels):
            raise ConfigError(f"stream.test_rows: a client draws {rows} test rows, but there are {len(test.labels)}")
        if not len(test.labels):
            return Dealt(test.labels, clients)
        share = self.rows * len(test.labels) / len(train.labels)
        count = min(len(test.labels), max(1, round(share))) if rows is None else rows
        return Drawn(test.labels, np.arange(len(test.labels)), count, self, names, "test rows", train.labels)

    def _check(self, total: int) -> None:
        if self.rows > total:
            raise ConfigError(f"partition.rows: a client draws {self.rows} rows, but there are {total}; lower rows")


class Drawn(Split):
    """Independent draws of ``rows`` rows from the positions ``pool``."""

    def __init__(
        self,
        labels: Array,
        pool: Array,
        rows: int,
        how: Draw,
        names: Names,
        purpose: str,
        base: Array | None = None,
    ) -> None:
        """``base`` are the labels that the mixes are drawn for, where they are not ``labels``: the training rows'."""
        base = labels if base is None else base
        classes = 1 + max(int(labels.max()), int(base.max()))
        self._pool = pool[np.argsort(labels[pool], kind="stable")]
        self._sizes = np.bincount(labels[pool], minlength=classes)
        self._begins = np.cumsum(self._sizes) - self._sizes
        self._weights = _weights(np.bincount(base, minlength=classes), how.prior)
        self.count = rows
        self._how = how
        self._names = names
        self._purpose = purpose

    def rows(self, client: int) -> Array:
        """The positions that one client drew."""
        rng = generator(*self._names, self._purpose, client)
        if self._how.alpha is None:
            return self._pool[rng.choice(len(self._pool), self.count, replace=False)]
        # The mix has no purpose in its name: a client's training and validation rows share it.
        mix = dirichlet(self._weights, self._how.alpha, 1, generator(*self._names, "mix", client))
        counts = take(mix, self._sizes, np.array([self.count]), rng)[0]
        chosen = [
            self._begins[c] + rng.choice(self._sizes[c], counts[c], replace=False) for c in np.flatnonzero(counts)
        ]
        return np.asarray(self._pool[np.concatenate(chosen)])

    def sizes(self, clients: int) -> Array:
        """As many for everybody, without drawing them."""
        return np.broadcast_to(np.int64(self.count), clients)


class DrawnCells(Cells):
    """Draws for training and for validation, from two parts of the pool that do not overlap."""

    def __init__(self, labels: Array, how: Draw, names: Names, share: float) -> None:
        count = held_out(how.rows, share)
        held = held_out(len(labels), share) if count else 0
        self.validation = stratified(labels, held, generator(*names, "validation rows"))
        rest = np.setdiff1d(np.arange(len(labels)), self.validation, assume_unique=True)
        self._train = Drawn(labels, rest, how.rows - count, how, names, "rows")
        self._validation = Drawn(labels, self.validation, count, how, names, "validation") if count else None

    def rows(self, client: int) -> tuple[Array, Array]:
        """Training and validation rows of one client."""
        return np.sort(self._train.rows(client)), self.held(client)

    def held(self, client: int) -> Array:
        """The validation rows of one client, without drawing the others."""
        return self.validation[:0] if self._validation is None else np.sort(self._validation.rows(client))

    def sizes(self, clients: int) -> Array:
        """As many training rows for everybody."""
        return np.broadcast_to(np.int64(self._train.count), clients)

"""The Dirichlet partitions: laws against scipy and by hand, limits, and an end after a bounded number of draws."""

import numpy as np
import pytest
from scipy import stats

from shoal.errors import ConfigError
from shoal.randomness import generator
from shoal.streams.dirichlet import Dirichlet, dirichlet, take

INF = float("inf")


def counts(partition, labels, clients, seed=0, columns=None):
    """Rows by client and class ``[clients, classes]``."""
    labels = np.asarray(labels)
    split = partition.split(labels, clients, (seed,), columns)
    return np.array([np.bincount(labels[split.rows(c)], minlength=labels.max() + 1) for c in range(clients)])


def follows(values, law, points):
    """Whether as many values lie below each point as the law says: within 4 standard deviations (and 4 values)."""
    expected = law.cdf(points)
    found = (values[:, None] <= points).mean(axis=0)
    return (np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(values)) + 4 / len(values)).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0, 200.0])
def test_the_marginals_are_beta_distributed(alpha):
    weights = np.array([0.5, 0.2, 0.2, 0.1])
    drawn = dirichlet(weights, alpha, 3000, generator(1, "beta"))
    assert np.allclose(drawn.sum(axis=1), 1)
    for i, weight in enumerate(weights):
        law = stats.beta(alpha * weight, alpha * (1 - weight))
        # Not only quantiles: at small alpha these crowd where floats cannot tell them apart.
        assert follows(drawn[:, i], law, np.array([1e-9, 1e-3, 0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.999, 1 - 1e-9]))


def test_limits_of_alpha():
    weights = np.array([0.6, 0.3, 0.0, 0.1])
    for alpha in (1e-6, 1e-200):
        drawn = dirichlet(weights, alpha, 4000, generator(2, "small"))
        assert np.isfinite(drawn).all()
        assert np.allclose(drawn.max(axis=1), 1)
        winners = np.bincount(drawn.argmax(axis=1), minlength=4)
        # Each class wins in proportion to its weight: within 4 standard deviations, never without a weight.
        assert (np.abs(winners - 4000 * weights) <= 4 * np.sqrt(4000 * weights * (1 - weights))).all()
    assert np.allclose(dirichlet(weights, INF, 2, generator(2, "inf")), weights, atol=1e-15)
    assert np.allclose(dirichlet(weights, 1e300, 2, generator(2, "huge")), weights)
    assert dirichlet(weights, 0.1, 5, generator(2, "zero"))[:, 2].tolist() == [0.0] * 5


def one(mix, left, rows, *names):
    """The draw of a client that is alone."""
    return take(np.array([mix]), np.array(left), np.array([rows]), generator(*names))[0].tolist()


def test_a_client_alone_draws_one_row_after_another():
    """Two draws, mix (1/2, 1/2), one row of the first class: (1, 1) unless both draws hit the second, 1/4."""
    n = 4000
    found = [one([0.5, 0.5], [1, 5], 2, i, "take") for i in range(n)]
    assert found.count([0, 2]) + found.count([1, 1]) == n
    assert abs(found.count([0, 2]) / n - 0.25) < 4 * np.sqrt(0.25 * 0.75 / n)


def test_lots_decide_who_gets_a_class_that_two_want():
    """Three clients want nothing but the 3 rows of class 0, 2 each: hypergeometric, 3 out of 6 rows."""
    n = 3000
    mixes, left, rows = np.tile([1.0, 0.0], (3, 1)), np.array([3, 9]), np.array([2, 2, 2])
    found = np.array([take(mixes, left, rows, generator(i, "lots")) for i in range(n)])
    assert (found.sum(axis=1) == [3, 3]).all()
    assert (found.sum(axis=2) == 2).all()
    law = stats.hypergeom(6, 2, 3)
    for client in range(3):
        share = np.bincount(found[:, client, 0], minlength=3) / n
        exact = law.pmf([0, 1, 2])
        assert (np.abs(share - exact) < 4 * np.sqrt(exact * (1 - exact) / n)).all()


def test_drawing_goes_on_when_classes_run_out():
    left = [3, 0, 4, 2]
    for mix in ([1.0, 0, 0, 0], [0, 1.0, 0, 0], [1.0, 1e-320, 0, 1e-320], [0.25] * 4):
        assert one(mix, left, 9, 0, "all") == left
    assert one([1.0, 0, 0, 0], left, 3, 0, "x") == [3, 0, 0, 0]
    assert one([0.25] * 4, left, 0, 0, "x") == [0, 0, 0, 0]
    # No weight on anything that is left: drawn by what is left, never from an empty class.
    found = np.array([one([0, 1.0, 0, 0], [0, 0, 400, 200], 3, i, "y") for i in range(500)])
    assert (found[:, :2] == 0).all()
    assert (found.sum(axis=1) == 3).all()
    assert found[:, 2].mean() == pytest.approx(2, abs=0.2)


def test_by_client_gives_each_its_mix_and_equal_sizes():
    labels = np.repeat(np.arange(10), 500)
    skewed = counts(Dirichlet(by="client", alpha=0.01), labels, 20)
    assert (skewed.sum(axis=1) == 250).all()
    assert (skewed.sum(axis=0) == 500).all()
    # Nearly one class a client, as far as the classes go: 20 clients, 10 classes, two clients' rows in each.
    assert (np.sort(skewed, axis=1)[:, -2:].sum(axis=1) / 250).mean() > 0.8
    even = counts(Dirichlet(by="client", alpha=INF), labels, 20)
    # Multinomial with mean 25: a standard deviation below 5; no client gets the remains of the others.
    assert (np.abs(even - 25) < 25).all()


def test_the_prior():
    """Variance of a share: p (1 - p) / (alpha + 1) with the frequencies, and with ones alpha counts per class."""
    labels = np.repeat(np.arange(10), 20_000)
    for prior, concentration in (("frequency", 2.0), ("ones", 20.0)):
        # Only 2% of the rows are drawn, so that no class runs out.
        shares = counts(Dirichlet(by="client", alpha=2.0, rows=10, prior=prior), labels, 400) / 10
        variance = 0.09 / (concentration + 1)
        expected = variance + (0.09 - variance) / 10  # and the multinomial's own
        # Classes are exchangeable: the mean over them of the variance over clients.
        assert shares.var(axis=0).mean() == pytest.approx(expected, rel=0.12)


def test_by_class_cuts_every_class():
    labels = np.repeat(np.arange(4), [400, 40, 4, 1])
    even = counts(Dirichlet(by="class", alpha=INF), labels, 4)
    assert (even[:, :3] == [100, 10, 1]).all()
    assert even[:, 3].sum() == 1
    big = np.repeat(np.arange(200), 1000)
    shares = counts(Dirichlet(by="class", alpha=0.5), big, 5).reshape(-1) / 1000
    # Beta(0.5, 2): mean 1/5, variance 0.2 * 0.8 / 3.5; 1000 shares, and rounding to a thousandth.
    assert shares.mean() == pytest.approx(0.2)
    assert shares.var() == pytest.approx(0.16 / 3.5, rel=0.15)
    # Halves of a thousandth, between which rounding puts every share.
    assert follows(shares, stats.beta(0.5, 2), np.array([0.0105, 0.0505, 0.1005, 0.3005, 0.6005]))


def test_reported_failures_of_other_partitioners():
    # 62 classes over 128 clients at alpha 0.1; and two clients at alpha 100 that must share everything.
    labels = generator(42, "letters").integers(0, 62, 3000)
    for by in ("class", "client"):
        assert counts(Dirichlet(by=by, alpha=0.1), labels, 128, seed=42).sum() == 3000
        two = counts(Dirichlet(by=by, alpha=100), np.repeat([0, 1], 50), 2)
        assert two.sum(axis=0).tolist() == [50, 50]
        assert (two > 0).all()


def test_the_minimum_is_met_or_refused_after_a_bounded_number_of_draws():
    labels = np.repeat(np.arange(10), 100)
    met = counts(Dirichlet(by="class", alpha=0.5, minimum=20), labels, 10)
    assert met.sum(axis=1).min() >= 20
    assert met.sum() == 1000
    with pytest.raises(ConfigError, match=r"in 1000 draws .* never had 50 rows \(at best \d+\); raise alpha") as raised:
        counts(Dirichlet(by="class", alpha=0.01, minimum=50), labels, 20)
    assert "by: client" in str(raised.value)
    with pytest.raises(ConfigError, match="minimum: 20 clients with 51 rows each are 1020, but there are 1000"):
        counts(Dirichlet(by="class", alpha=1, minimum=51), labels, 20)
    # A draw is a million numbers here, and all draws together take 20 million at most.
    with pytest.raises(ConfigError, match=r"in 20 draws .* never had 1 rows"):
        counts(Dirichlet(by="class", alpha=0.01, minimum=1), np.repeat(np.arange(100), 100), 10_000)
    assert counts(Dirichlet(by="client", alpha=0.01, minimum=50), labels, 20).sum(axis=1).tolist() == [50] * 20


def test_a_number_of_rows_for_each_client():
    labels = np.repeat(np.arange(5), 30)
    found = counts(Dirichlet(by="client", alpha=0.1, rows=12), labels, 10)
    assert found.sum(axis=1).tolist() == [12] * 10
    assert Dirichlet(by="client", alpha=0.1, rows=12).cells(labels, 10, (0,), 0).unused == 30
    with pytest.raises(ConfigError, match=r"10 clients with 16 rows each are 160, but there are 150; .* kind: draw"):
        counts(Dirichlet(by="client", alpha=0.1, rows=16), labels, 10)
    with pytest.raises(ConfigError, match="use by: client"):
        Dirichlet(by="class", alpha=0.1, rows=5)


def mixed(one_group, other):
    """The share of rows that are not of their client's main group."""
    return np.minimum(one_group, other).sum() / (one_group + other).sum()


def test_groups_of_classes_share_a_mix():
    labels = np.repeat(np.arange(20), 100)
    # Two groups, 0..9 and 10..19; nearly one-hot mixes: a client has one group, but all classes of it.
    found = counts(Dirichlet(by="client", alpha=0.01, group=2), labels, 20)
    assert mixed(found[:, :10].sum(axis=1), found[:, 10:].sum(axis=1)) < 0.2
    assert (np.abs(found[:, :10] - found[:, :10].mean(axis=1, keepdims=True)) < 16).all()
    # By the name of a column, here even against odd classes.
    found = counts(Dirichlet(by="client", alpha=0.01, group="kind"), labels, 20, columns={"kind": labels % 2})
    assert mixed(found[:, ::2].sum(axis=1), found[:, 1::2].sum(axis=1)) < 0.2
    with pytest.raises(ConfigError, match="no column 'knd'; did you mean 'kind'"):
        counts(Dirichlet(by="client", alpha=1, group="knd"), labels, 2, columns={"kind": labels})
    with pytest.raises(ConfigError, match="21 groups, but there are 20 classes"):
        counts(Dirichlet(by="client", alpha=1, group=21), labels, 2)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), -INF])
def test_an_alpha_that_means_nothing(alpha):
    with pytest.raises(ConfigError, match=r"alpha: must be greater than 0 .*\.inf: no skew"):
        Dirichlet(by="class", alpha=alpha)


class Passes:
    """A generator that counts the passes of `take`."""

    def __init__(self, rng):
        self.rng, self.count = rng, 0
        self.multivariate_hypergeometric = rng.multivariate_hypergeometric

    def multinomial(self, *args):
        self.count += 1
        return self.rng.multinomial(*args)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 100.0])
def test_sixty_thousand_rows_are_taken_in_a_pass_for_each_class_at_most(alpha):
    rng = Passes(generator(0, "many"))
    sizes = np.bincount(generator(0, "labels").integers(0, 10, 60_000))
    mixes = dirichlet(sizes / sizes.sum(), alpha, 100, rng.rng)
    taken = take(mixes, sizes, np.full(100, 600), rng)
    assert (taken.sum(axis=0) == sizes).all()
    assert (taken.sum(axis=1) == 600).all()
    assert 2 <= rng.count <= 10

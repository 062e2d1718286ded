"""Which model serves a target: the choice among the groups of keys that could, on the target's validation rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bank import Bank, Key
from ..methods.base import Method
from ..requests import Served
from ..streams.base import Target
from .base import Context, Seen
from .values import finite


@dataclass
class Group:
    """A group of keys that could answer for a target, and what is known of it at these versions.

    The lists are replaced, never changed in place: a measure's memory holds them too.
    """

    keys: tuple[Key, ...]
    versions: tuple[int, ...]
    validation: list[Any] = field(default_factory=list)
    """Loss and accuracy on the target's validation rows; empty: not measured."""
    test: list[Any] = field(default_factory=list)
    """Accuracy, loss and further metrics by kind on its test rows; empty: not measured."""

    @property
    def entry(self) -> str:
        """The keys as they are logged."""
        return "+".join(self.keys)

    def saved(self) -> list[Any]:
        """For a measure's memory."""
        return [list(self.keys), list(self.versions), self.validation, self.test]


class Serving:
    """One target in one round: the groups that could serve it."""

    def __init__(self, target: Target, groups: Sequence[tuple[Key, ...]], bank: Bank) -> None:
        self.target = target
        self.groups: list[Group] = []
        for keys in groups:
            # A key may not be born yet: the part of a client that never trained.
            if keys and all(key in bank.entries for key in keys):
                self.groups.append(Group(keys, tuple(bank.entries[key].version for key in keys)))

    @property
    def name(self) -> str:
        """The target's labels as one string."""
        return name_of(self.target)

    @property
    def open(self) -> list[Group]:
        """The groups that must be measured on the validation rows before there is a choice."""
        if len(self.groups) < 2 or not len(self.target.validation):
            return []
        return [group for group in self.groups if not group.validation]

    @property
    def chosen(self) -> Group | None:
        """The group with the lowest validation loss, the first of equal ones or where no loss is known."""
        if not self.groups:
            return None
        losses = [(group.validation[0] if group.validation else None) for group in self.groups]
        known = [(loss, index) for index, loss in enumerate(losses) if loss is not None]
        return self.groups[min(known)[1] if known else 0]

    def recall(self, old: Mapping[str, Any]) -> None:
        """Takes over what an earlier round measured of the same groups at the same versions, on the same rows."""
        if old.get("stamp") != self.target.stamp:
            return
        known = {
            (tuple(keys), tuple(versions)): (validation, test) for keys, versions, validation, test in old["groups"]
        }
        for group in self.groups:
            validation, test = known.get((group.keys, group.versions), ([], []))
            group.validation = group.validation or validation
            group.test = group.test or test

    def saved(self) -> dict[str, Any]:
        """For a measure's memory, to be recalled in a later round."""
        return {"stamp": self.target.stamp, "groups": [group.saved() for group in self.groups]}


def name_of(target: Target) -> str:
    """A target's labels as one string, the same in every round."""
    return json.dumps(target.labels, sort_keys=True)


def composer(method: Method, bank: Bank) -> Callable[[Group], Served]:
    """Composes the model of a group; each only once, however many targets it serves."""
    models: dict[tuple[Key, ...], Served] = {}

    def compose(group: Group) -> Served:
        if group.keys not in models:
            models[group.keys] = method.compose(bank, group.keys)
        return models[group.keys]

    return compose


def servings(
    context: Context, seen: Seen, targets: Sequence[Target], *, before: bool = False, memory: Mapping[str, Any] = {}
) -> list[Serving]:
    """Each target's groups in the bank after the round (``before``: in the one it began with).

    All measures of a round share them, so that none measures what another one has measured; ``memory`` is what
    `Serving.saved` gave in earlier rounds, by `name_of`.
    """
    bank = seen.before if before else seen.after
    found = []
    for target in targets:
        name = name_of(target)
        serving = seen.shared.get((before, name))
        if serving is None:
            groups = [tuple(keys) for keys in context.method.candidates(bank, target.labels)]
            serving = seen.shared[before, name] = Serving(target, groups, bank)
        serving.recall(memory.get(name, {}))
        found.append(serving)
    return found


def choose(context: Context, seen: Seen, found: Sequence[Serving], *, before: bool = False) -> None:
    """Measures on validation rows what the choices still need, in one call. The choice never looks at test rows."""
    pending = [(serving, serving.open) for serving in found if serving.open]
    if not pending:
        return
    model = composer(context.method, seen.before if before else seen.after)
    pairs = [([model(group) for group in groups], serving.target.validation) for serving, groups in pending]
    for (_, groups), scores in zip(pending, seen.score(pairs), strict=True):
        for group, score in zip(groups, scores, strict=True):
            group.validation = [finite(score.loss), finite(score.accuracy)]

"""Whether models and hidden concepts find each other: clusters against the truth, and who updates whose model.

Source of the adjusted Rand index per round, and of the concept matching accuracy: "Concept Matching: Clustering-based
Federated Continual Learning" (arXiv 2311.06921), section 5.2. The paper does not say which model is the right one for a
concept, nor whether a cluster that was dropped counts as wrong; see `shoal.metrics.concepts_models.Models`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..bank import Key
from ..randomness import Moment
from .base import Line, Measure, Seen
from .concepts_models import RECORD, Concept, Share, Tally, models_of, order
from .values import mean

LABELS = ("concept", "cluster", "domain", "task")
"""What a concept is: the first of these that the stream's truth has."""
PERFECT = 1.0 - 1e-12
Names = Sequence[Key | None]


class Concepts(Measure):
    """The line ``ari`` and the record ``concepts`` of each round in which clients trained one of several models.

    ``ari``: the adjusted Rand index of the clients' clusters against their true concepts in this round, with the
    numbers of ``clients``, ``clusters`` and ``concepts``. 1 is perfect, about 0 is chance. Null with fewer than two
    clients.

    The record has, for each concept that was ``met``, its stand-in ``cluster`` (the one with most of its clients; of
    equal ones the first), the ``model`` that this updated (null: none) and its ``fate``, and ``pairs``: ``[model
    trained, model that the client's cluster updated or null, clients]``. ``label`` says which truth this is; ``joined``
    and ``retired`` which models went, if any. ``lost`` are the concepts without a model of their own as known
    by then, ``duplicated`` the models too many, each with its concept, see `shoal.metrics.concepts_models.Models`.

    Clusters are those that the method tells (a record ``clusters``, see `shoal.methods.clustered.Clustered.records`).
    Of a method that tells none, but whose clients choose among whole models and train one, they are the choices.
    Clients whose answers did not reach the server, and those without a concept, do not count; a client that was drawn
    twice counts once. No lines where nothing was trained, and none of other methods.
    """

    lines: ClassVar[tuple[str, ...]] = ("ari",)

    def observe(self, seen: Seen, memory: Mapping[str, Any]) -> tuple[list[Line], Mapping[str, Any]]:
        """Two lines at most; it remembers the votes of the rounds so far."""
        label, truth = self._truth(seen)
        if not truth or not seen.trained or seen.when.round < 1:
            return [], memory
        told = self._told(seen) or _chosen(seen)
        if told is None:
            return [], memory
        known = [place for place, client in enumerate(told["clients"]) if client in truth]
        if not known:
            return [], memory
        concepts = [truth[told["clients"][place]] for place in known]
        labels = [told["labels"][place] for place in known]
        line = {
            "metric": "ari",
            "value": adjusted_rand_index(concepts, labels),
            "clients": len(known),
            "clusters": len(set(labels)),
            "concepts": len(set(concepts)),
        }
        choices = [told["choices"][place] for place in known]
        met = _met(concepts, choices, labels, told["models"], told["fates"])
        gone = {name: told[name] for name in ("joined", "retired") if told.get(name)}
        tally = Tally.of(memory).after({"round": seen.when.round, "met": met, **gone})
        _, _, lost, duplicated = tally.owned()
        record = {"record": RECORD, "label": label, "met": met, **gone, "lost": list(lost), "duplicated": duplicated}
        return [line, record], tally.kept()

    @staticmethod
    def _truth(seen: Seen) -> tuple[str, dict[int, Concept]]:
        """The name of the label, and the true concept of each participant that has one (-1: none)."""
        for label in LABELS:
            found = {client: held.truth[label] for client, held in seen.holdings.items() if label in held.truth}
            if found:
                return label, {c: k for c, k in found.items() if not (isinstance(k, int) and k < 0)}
        return "", {}

    def _told(self, seen: Seen) -> Mapping[str, Any] | None:
        """What the method tells of the round's last merge with clusters."""
        method = self.context.method
        for exchange in reversed(range(max(method.exchanges, method.learner.exchanges))):
            when = Moment(seen.when.seed, seen.when.round, exchange)
            for line in method.records(seen.before, seen.after, seen.accepted, when):
                if line.get("record") == "clusters" and _sound(line):
                    return line
        return None

    @staticmethod
    def summarise(lines: Sequence[Line]) -> dict[str, Any]:
        """Nothing where no concept was met by a client of such a method; else

        - ``ari_mean``, ``ari_min`` over the rounds, ``ari_perfect_rounds``: how many have 1, of ``ari_rounds``;
        - ``concept_matching_accuracy``: the share of right matches over all clients and rounds, by the four ways of
          `shoal.metrics.concepts_models.Models.accuracy`, and ``second_half``: ``accepted`` in the later half of the
          rounds;
        - ``concepts_met``, ``concepts_found`` (that have a model of their own), ``concepts_lost``, and
          ``models_duplicated``;
        - ``own_model``: 1 or 0 for each concept, such as ``"concept=3"``;
        - ``unmet``: 1 for each concept whose accuracy was measured and that no such client ever met; not there if none.
        """
        models = models_of(lines)
        if models is None:
            return {}
        values = [x["value"] for x in lines if x.get("metric") == "ari" and x.get("value") is not None]
        last = max(one.round for one in models.met)
        measured = {x[models.label] for x in lines if x.get("metric") == "accuracy" and models.label in x}
        unmet = {f"{models.label}={concept}": 1 for concept in sorted(measured - set(models.of), key=order)}
        share = models.accuracy()
        matched = {name: getattr(share, name) / share.all for name in Share._fields[:4]}
        later = models.accuracy(one for one in models.met if 2 * one.round > last)
        return {
            "ari_mean": mean(values),
            "ari_min": min(values, default=None),
            "ari_perfect_rounds": sum(value >= PERFECT for value in values),
            "ari_rounds": len(values),
            "concept_matching_accuracy": {**matched, "second_half": later.accepted / later.all},
            "concepts_met": len(models.of),
            "concepts_found": len(models.of) - len(models.lost),
            "concepts_lost": len(models.lost),
            "models_duplicated": len(models.duplicated),
            "own_model": {f"{models.label}={concept}": int(concept not in models.lost) for concept in models.of},
            **({"unmet": unmet} if unmet else {}),
        }


def adjusted_rand_index(true: Sequence[Concept], clusters: Sequence[int]) -> float | None:
    """scikit-learn's ``adjusted_rand_score`` of two partitions of the same clients; ``None`` for fewer than two."""
    if len(true) < 2:
        return None
    from sklearn.metrics import adjusted_rand_score

    names = {concept: place for place, concept in enumerate(dict.fromkeys(true))}
    return float(adjusted_rand_score([names[concept] for concept in true], list(clusters)))


def _sound(told: Mapping[str, Any]) -> bool:
    """Whether a record ``clusters`` has what is read here; a method of one's own may mean something else by it."""
    lists = [told.get(name) for name in ("clients", "choices", "labels", "models", "fates")]
    if not all(isinstance(one, list | tuple) for one in lists):
        return False
    clients, choices, labels, models, fates = (list(one or ()) for one in lists)
    sizes = len(clients) == len(choices) == len(labels) and len(models) == len(fates)
    return sizes and all(isinstance(label, int) and 0 <= label < len(models) for label in labels)


def _chosen(seen: Seen) -> dict[str, Any] | None:
    """The clusters by what clients trained, where they chose one of several whole models."""
    given = seen.assignments
    if any(one.own for one in given) or not any(len(one.keys) > 1 for one in given):
        return None
    trained = sorted((client, key) for key, clients in seen.trained.items() for client in clients)
    clients = [client for client, _ in trained]
    whole = all(seen.after[key].segments is None for _, key in trained if key in seen.after.entries)
    if len(set(clients)) < len(clients) or not whole:
        return None
    models = list(dict.fromkeys(key for _, key in trained))
    return {
        "clients": clients,
        "choices": [key for _, key in trained],
        "labels": [models.index(key) for _, key in trained],
        "models": models,
        "fates": ["accepted"] * len(models),
    }


def _met(
    concepts: Sequence[Concept], choices: Sequence[Key], labels: Sequence[int], models: Names, fates: Sequence[str]
) -> list[dict[str, Any]]:
    """What became of each concept's clients, concepts ascending."""
    found = []
    for concept in sorted(set(concepts), key=order):
        own = [(choices[i], labels[i]) for i, one in enumerate(concepts) if one == concept]
        sizes = Counter(label for _, label in own)
        cluster = min(sizes, key=lambda label: (-sizes[label], label))
        pairs = Counter((choice, models[label]) for choice, label in own)
        listed = [[choice, model, count] for (choice, model), count in pairs.items()]
        found.append(
            {
                "concept": concept,
                "cluster": cluster,
                "model": models[cluster],
                "fate": fates[cluster],
                "pairs": sorted(listed, key=lambda pair: (pair[0], pair[1] or "")),
            }
        )
    return found

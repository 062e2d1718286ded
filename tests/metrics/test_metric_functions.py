"""Metrics against counts made by hand, and against what they must never do: warn, raise, or end a run."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.metrics.classification import auc, balanced_accuracy, f1
from shoal.metrics.functions import NAN, Failed, check_metrics, lower_is_better, measured, name_of
from shoal.metrics.regression import mae, r2, rmse

HERE = "test_metric_functions"


def logits(predicted, classes):
    """Outputs whose largest is at the predicted class."""
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()


def near(fraction):
    return pytest.approx(float(fraction), abs=1e-12)


# 10 rows of class 0 and 4 of class 1; class 1 is predicted 6 times, 3 of them rightly.
TRUE = torch.tensor([0] * 10 + [1] * 4)
PREDICTED = [0] * 7 + [1] * 3 + [1] * 3 + [0]


def test_binary_f1_is_that_of_the_second_class():
    # TP 3, FP 3, FN 1: 2*3 / (6 + 3 + 1). Of the first class: 2*7 / (14 + 1 + 3).
    assert f1(logits(PREDICTED, 2), TRUE) == near(Fraction(6, 10))
    swapped = logits([1 - p for p in PREDICTED], 2)
    assert f1(swapped, 1 - TRUE) == near(Fraction(14, 18))


def test_f1_of_more_classes_is_the_mean_over_those_present():
    # The same with a third class that nobody is of, but which one row of class 0 is taken for.
    predicted = [2, *PREDICTED[1:]]
    # Class 0: TP 6, FP 1, FN 4; class 1 as before.
    assert f1(logits(predicted, 3), TRUE) == near((Fraction(12, 17) + Fraction(6, 10)) / 2)


def test_f1_is_zero_where_nothing_is_right():
    assert f1(logits([0, 0, 0], 2), torch.tensor([0, 1, 1])) == 0.0
    assert f1(logits([1, 1, 0], 3), torch.tensor([0, 2, 2])) == 0.0


def test_balanced_accuracy():
    # 7 of 10 and 3 of 4; a prediction of an absent class is wrong, and no class of its own.
    assert balanced_accuracy(logits(PREDICTED, 2), TRUE) == near((Fraction(7, 10) + Fraction(3, 4)) / 2)
    assert balanced_accuracy(logits([2, *PREDICTED[1:]], 3), TRUE) == near((Fraction(6, 10) + Fraction(3, 4)) / 2)


@pytest.mark.parametrize("metric", [f1, balanced_accuracy, auc])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("rows", [1, 4])
def test_one_class_alone_has_no_value(metric, classes, rows):
    assert metric(logits([0, 1, 1, 0][:rows], classes), torch.ones(rows, dtype=torch.int64)) is None


def pairs_right(scores, positive):
    """The share of pairs of a positive and a negative row that are in the right order; ties count half."""
    pairs = [
        (p, n)
        for p, yes in zip(scores, positive, strict=True)
        if yes
        for n, no in zip(scores, positive, strict=True)
        if not no
    ]
    return float(np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]))


def test_binary_auc_counts_pairs():
    # Differences -2, 0, 0, 1, 3 of the classes 0 1 0 0 1: of 6 pairs 1 > -2, 3 > all are right, 0 = 0 is half,
    # 0 < 1 is wrong: (1 + .5 + 0 + 3) / 6.
    outputs = torch.tensor([[1.0, -1.0], [4.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 3.0]])
    targets = torch.tensor([0, 1, 0, 0, 1])
    assert auc(outputs, targets) == near(Fraction(9, 12))
    assert auc(-outputs, targets) == near(Fraction(3, 12))


def test_auc_does_not_saturate():
    # In float32 the probability of all these is 1.
    outputs = torch.tensor([[0.0, 40.0], [0.0, 50.0], [0.0, 60.0]])
    assert auc(outputs, torch.tensor([0, 1, 1])) == 1.0


def test_auc_of_more_classes():
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.normal(size=(60, 4)).astype(np.float32))
    targets = torch.from_numpy(rng.integers(0, 3, size=60))  # class 3 has no rows
    shares = outputs.double().softmax(1).numpy()
    expected = np.mean([pairs_right(shares[:, c], (targets == c).tolist()) for c in range(3)])
    assert auc(outputs, targets) == pytest.approx(expected, abs=1e-12)


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    outputs = torch.from_numpy(rng.normal(size=(20, 5)).astype(np.float32)).repeat(10, 1)  # many ties
    targets = torch.from_numpy(rng.integers(0, 5, size=200))
    shares = outputs.double().softmax(1).numpy()
    assert auc(outputs, targets) == pytest.approx(roc_auc_score(targets, shares, multi_class="ovr"), abs=1e-9)
    two = outputs[:, :2]
    assert auc(two, targets % 2) == pytest.approx(roc_auc_score(targets % 2, two[:, 1] - two[:, 0]), abs=1e-12)


def test_masked_classes_have_logits_of_minus_infinity():
    outputs = torch.tensor([[1.0, 2.0, -math.inf], [2.0, 1.0, -math.inf], [0.0, 3.0, -math.inf]])
    targets = torch.tensor([1, 0, 1])
    assert (f1(outputs, targets), auc(outputs, targets)) == (1.0, 1.0)


def test_scores_that_are_not_comparable_have_no_auc():
    assert auc(torch.tensor([[math.inf, math.inf], [0.0, 1.0]]), torch.tensor([0, 1])) is None


def test_regression():
    outputs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]])
    targets = torch.tensor([[1.0, 1.0], [4.0, 1.0], [4.0, -2.0]])
    # Errors 0 -2 2 and -1 -1 2. Targets about their means 3 and 0: 4 + 1 + 1 and 1 + 1 + 4.
    assert mae(outputs, targets) == near((Fraction(4, 3) + Fraction(4, 3)) / 2)
    assert rmse(outputs, targets) == near((math.sqrt(8 / 3) + math.sqrt(6 / 3)) / 2)
    assert r2(outputs, targets) == near((1 - Fraction(8, 6) + 1 - Fraction(6, 6)) / 2)


def test_r2_without_varied_targets():
    outputs, constant = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [3.0]])
    assert r2(outputs, constant) is None
    assert r2(outputs[:1], constant[:1]) is None
    # Of two values only the second varies: errors 1 and 1, about the mean 0.5 and 0.5.
    both = torch.cat([outputs, torch.tensor([[1.0], [0.0]])], 1), torch.cat([constant, torch.tensor([[0.0], [1.0]])], 1)
    assert r2(*both) == near(1 - Fraction(2) / Fraction(1, 2))


@pytest.mark.parametrize("metric", [mae, rmse, r2])
def test_an_infinite_value_has_no_metric(metric):
    assert metric(torch.tensor([[math.inf], [0.0]]), torch.tensor([[1.0], [0.0]])) is None
    with pytest.raises(ValueError, match="a value for each output"):
        metric(torch.zeros(2, 1), torch.zeros(2))


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(2, 1), torch.tensor([0, 1])),
        (torch.zeros(2, 2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2)),
    ],
)
def test_outputs_that_are_no_classes(outputs, targets):
    with pytest.raises(ValueError, match="an output per class"):
        f1(outputs, targets)


# ---- metrics of one's own ---------------------------------------------------------------------------------------


def rows(outputs, targets):
    return np.int64(len(outputs))


def broken(outputs, targets):
    raise KeyError("no such thing")


def text(outputs, targets):
    return "good"


def endless(outputs, targets):
    return math.inf


def several(outputs, targets):
    return [1, 2]


def loss(outputs, targets):
    return 0.0


class Odd:
    pass


def alone(outputs):
    return 0.0


def some_error(outputs, targets):
    return 0.0


def test_batches_are_joined_and_nothing_ends_the_run():
    seen = [(torch.zeros(3, 2), torch.tensor([0, 0, 1])), (torch.zeros(2, 2), torch.tensor([1, 1]))]
    kinds = [f"{HERE}:{name}" for name in ("rows", "broken", "text", "endless", "several")]
    found = measured(["f1", *kinds], seen)
    assert found["f1"] == 0.0
    assert found[kinds[0]] == 5.0
    assert isinstance(found[kinds[0]], float)
    assert found[kinds[1]].reason.startswith(f"KeyError: 'no such thing' ({HERE}.py:")
    assert "could not convert string to float" in found[kinds[2]].reason
    assert (found[kinds[3]], found[kinds[4]]) == (None, [1, 2])


def difference(outputs, targets):
    """Works in place: fast, and destructive."""
    return outputs.sub_(targets).abs_().mean()


def cleared(outputs, targets):
    targets.zero_()
    outputs.zero_()
    return 0.0


@pytest.mark.parametrize("first", [difference, cleared])
def test_a_metric_that_works_in_place_changes_no_other(first):
    # Errors 1, -3 and 2: mean 2, root of 14/3; whatever stands before them.
    outputs, targets = torch.tensor([[2.0], [1.0], [7.0]]), torch.tensor([[1.0], [4.0], [5.0]])
    kept = outputs.clone(), targets.clone()
    kind = f"{HERE}:{first.__name__}"
    found = measured([kind, "mae", "rmse", f"{HERE}:difference"], [(outputs, targets)])
    assert (found["mae"], found["rmse"]) == (near(2), near(math.sqrt(14 / 3)))
    assert found[f"{HERE}:difference"] == near(2)
    assert torch.equal(outputs, kept[0])
    assert torch.equal(targets, kept[1])


def test_outputs_with_nan_fail_every_metric():
    outputs = torch.tensor([[0.0, 1.0], [math.nan, 1.0]])
    assert measured(["f1", f"{HERE}:rows"], [(outputs, torch.tensor([0, 1]))]) == {
        "f1": Failed(NAN),
        f"{HERE}:rows": Failed(NAN),
    }


def test_no_rows_no_metrics():
    assert measured(["f1"], []) == {"f1": None}
    assert measured([], []) == {}


DATA = from_arrays(np.zeros((8, 2), dtype=np.float32), np.arange(8) % 2)


@pytest.mark.parametrize(
    ("kinds", "match"),
    [
        (["mae"], "'mae' is a metric of values, but the models of .* learn classes; use auc, balanced_accuracy, f1$"),
        (["f1", "f1"], "'f1' and 'f1' would both write"),
        ([f"{HERE}:loss"], "would write lines called 'loss', as a measure does"),
        ([f"{HERE}:Odd"], "is a class"),
        ([f"{HERE}:alone"], "cannot be called with"),
        ([f"{HERE}:nothing"], "cannot import"),
        (["f2"], "no metric is called 'f2'"),
    ],
)
def test_faults_are_found_before_the_run(kinds, match):
    with pytest.raises(ConfigError, match=match):
        check_metrics(kinds, DATA, ("accuracy", "loss"))


def test_good_metrics_pass():
    check_metrics(["f1", "auc", f"{HERE}:rows", "math:hypot"], DATA, ("accuracy", "loss"))


def test_names():
    assert [name_of(kind) for kind in ("f1", "my.module:gain")] == ["f1", "gain"]
    low = [lower_is_better(name) for name in ("loss", "mae", "rmse", "some_error", "my_loss", "accuracy", "r2")]
    assert low == [True] * 5 + [False] * 2

"""Metrics of a classification. ``outputs`` are logits ``[rows, classes]``, ``targets`` classes ``[rows]``.

The numbers are those of scikit-learn, which takes a millisecond to check the rows of a target and warns of what it has
no answer to: with a thousand clients that would take longer than the models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .functions import learns

Array = NDArray[Any]


def _checked(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """The logits as float64 and the classes; raises ``ValueError`` for outputs that are not one per class."""
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            f"needs an output per class and one class per row; got outputs of shape {tuple(outputs.shape)} and "
            f"{targets.dtype} targets of shape {tuple(targets.shape)}"
        )
    return outputs.double().numpy(), targets.numpy()


def _counts(logits: Array, classes: Array) -> tuple[Array, Array, Array]:
    """By class the rows that are right, those that are of it, and those that are said to be."""
    said = logits.argmax(1)
    count = max(logits.shape[1], int(classes.max()) + 1)
    right, true, found = (np.bincount(rows, minlength=count) for rows in (classes[said == classes], classes, said))
    return right, true, found


@learns("classes")
def f1(outputs: Tensor, targets: Tensor) -> float | None:
    """F1: ``2 TP / (2 TP + FP + FN)``, 0 where nothing was predicted right.

    With two outputs that of the second class, else the plain mean over the classes that occur in ``targets``.
    ``None`` where all rows are of one class.
    """
    logits, classes = _checked(outputs, targets)
    right, true, said = _counts(logits, classes)
    present = np.flatnonzero(true)
    if len(present) < 2:
        return None
    counted = np.array([1]) if logits.shape[1] == 2 else present
    return float(np.mean(2 * right[counted] / (true + said)[counted]))


@learns("classes")
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """The plain mean, over the classes that occur in ``targets``, of the share of their rows that were right.

    ``None`` where all rows are of one class: it would be the accuracy.
    """
    right, true, _ = _counts(*_checked(outputs, targets))
    present = np.flatnonzero(true)
    if len(present) < 2:
        return None
    return float(np.mean(right[present] / true[present]))


@learns("classes")
def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """Area under the ROC curve; equal scores count half.

    With two outputs rows are ordered by the difference of the logits. With more, each class is held against the
    rest by its softmax probability, and the result is the plain mean over the classes that occur in ``targets``.
    ``None`` where all rows are of one class, or a score is not a number.
    """
    from scipy.special import log_softmax
    from scipy.stats import rankdata

    logits, classes = _checked(outputs, targets)
    present = np.unique(classes)
    if len(present) < 2:
        return None
    with np.errstate(invalid="ignore"):
        if logits.shape[1] == 2:
            present, scores = np.array([1]), logits[:, 1:] - logits[:, :1]
        else:
            # The logarithm has the order of the probability, and does not run into 1.
            scores = log_softmax(logits, axis=1)[:, present]
    if np.isnan(scores).any():
        return None
    # Mann and Whitney: the area is the share of pairs in the right order. By ranks, all classes at once: the area of
    # scikit-learn, which takes infinities (logits of masked classes) for faults and milliseconds for each class.
    ours = classes[:, None] == present
    counts = ours.sum(axis=0)
    right = (rankdata(scores, axis=0) * ours).sum(axis=0) - counts * (counts + 1) / 2
    return float(np.mean(right / (counts * (len(classes) - counts))))

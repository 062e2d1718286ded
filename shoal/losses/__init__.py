"""Losses: what a model is trained on, and how its outputs are scored."""

from .base import Beside, FunctionLoss, Loss, RowLoss, check_arguments, has_derivative, loss_of
from .classes import CrossEntropy
from .values import Huber, MeanAbsolute, MeanSquared

__all__ = [
    "Beside",
    "CrossEntropy",
    "FunctionLoss",
    "Huber",
    "Loss",
    "MeanAbsolute",
    "MeanSquared",
    "RowLoss",
    "check_arguments",
    "has_derivative",
    "loss_of",
]

"""Architectures. Each is a function from the input shape and the number of outputs to a module."""

from .base import Dropout, Model, Shape

__all__ = ["Dropout", "Model", "Shape"]

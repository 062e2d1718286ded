"""A clusterer of a user's own: any object with scikit-learn's ``fit_predict``."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ..errors import RunError
from .base import Cloud, Clusterer, Labels, seed_of


class Own(Clusterer):
    """Wraps an object with ``fit_predict(points)``, such as scikit-learn's estimators.

    Its ``n_clusters`` (or ``n_components``, of mixtures) is set where it has one, and its ``random_state``, on a copy:
    the object itself stays as it is.
    """

    def __init__(self, estimator: Any) -> None:
        if not callable(getattr(estimator, "fit_predict", None)):
            raise ValueError(
                f"a clusterer of your own is a shoal.clustering.base.Clusterer, or has fit_predict(points) as "
                f"scikit-learn's; {type(estimator).__name__} has not"
            )
        self.estimator = estimator
        self.number = next((name for name in ("n_clusters", "n_components") if hasattr(estimator, name)), None)
        self.needs_number = self.number is not None

    def fit(self, cloud: Cloud, clusters: int, rng: np.random.Generator) -> Labels:
        """The labels that a copy of the estimator gives; raises `RunError` unless there is one for each point."""
        seed = seed_of(rng)
        if hasattr(self.estimator, "get_params"):
            from sklearn.base import clone

            estimator = clone(self.estimator)
        else:
            estimator = copy.deepcopy(self.estimator)
        if self.number is not None:
            setattr(estimator, self.number, clusters)
        if hasattr(estimator, "random_state"):
            estimator.random_state = seed
        name = f"method.clusterer: {type(self.estimator).__name__}.fit_predict"
        try:
            found = np.asarray(estimator.fit_predict(cloud.points))
        except Exception as error:
            raise RunError(f"{name} failed on {len(cloud.points)} points: {type(error).__name__}: {error}") from error
        whole = found.dtype.kind in "iub" or (found.dtype.kind == "f" and bool((found == np.floor(found)).all()))
        if found.shape != (len(cloud.points),) or not whole or not np.isfinite(found).all():
            raise RunError(
                f"{name} gave {found.dtype} of shape {found.shape} for {len(cloud.points)} points; it must give a "
                f"whole number for each"
            )
        return found.astype(np.int64)


def clusterer_of(built: Any) -> Clusterer:
    """What a configuration's ``clusterer`` gave, as a `Clusterer`; an object with ``fit_predict`` is wrapped."""
    return built if isinstance(built, Clusterer) else Own(built)

"""The 1,797 handwritten digits that come with scikit-learn: 8x8 pixels, ten classes, no download."""

from __future__ import annotations

import numpy as np

from .dataset import Dataset
from .source import Amount, Cut, Decoded, Limit, Normalize, Source, Span, encode


class Digits(Source):
    """scikit-learn's bundled digits, uint8 values 0..16 (`Dataset.peak` is 16).

    The source has no split: ``test`` rows (a share, or a number) are held out, stratified by class and drawn with
    ``split_seed``. By default the values are divided by 16.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, 1998.
    """

    def __init__(
        self,
        *,
        test: Amount = 0.2,
        split_seed: int = 0,
        normalize: Normalize = "unit",
        rows: Span = None,
        limit: Limit = None,
        limit_test: Limit = None,
    ) -> None:
        self.cut = Cut(normalize, test=test, split_seed=split_seed, span=rows, limit=limit, limit_test=limit_test)

    def load(self) -> Dataset:
        """The digits. Reads a file inside the scikit-learn package."""
        from sklearn.datasets import load_digits  # here, because it takes longer to import than all of Shoal

        bunch = load_digits()
        labels, classes = encode(bunch.target)
        rows = Decoded(bunch.images.astype(np.uint8)[..., None], labels, classes, peak=16.0)
        return self.cut.of(rows, "digits")

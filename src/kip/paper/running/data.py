"""Data made ready for a runner: preprocessed sets, and class-balanced draws from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kip.data import Dataset
from kip.data.preprocess import fit
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet, one_hot


@dataclass(frozen=True, eq=False)
class Ready:
    """Preprocessed training and test sets with centred one-hot labels, in float32."""

    train: LabelledSet
    test: LabelledSet
    codes: np.ndarray
    test_codes: np.ndarray
    classes: int

    def draw(self, size: int, *, seed: int, stream: Stream = Stream.INIT) -> np.ndarray:
        """Rows of a class-balanced sample of the training set."""
        return balanced(self.codes, self.classes, size, key=generator(seed, stream))


def ready(dataset: Dataset, preprocess: str = "standard") -> Ready:
    """Fit the preprocessing on the training set and apply it to both."""
    fitted = fit(preprocess, dataset.x_train, dtype=np.dtype(np.float32))
    classes = len(dataset.classes)
    return Ready(
        train=LabelledSet(fitted.apply(dataset.x_train), one_hot(dataset.y_train, classes)),
        test=LabelledSet(fitted.apply(dataset.x_test), one_hot(dataset.y_test, classes)),
        codes=dataset.y_train,
        test_codes=dataset.y_test,
        classes=classes,
    )

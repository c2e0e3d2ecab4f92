"""Data: where it comes from, how it is read, preprocessed and augmented.

Importing this package imports neither Numba nor any decoder; `kip.data.augment` does, and is imported where it is used.
"""

from kip.data.readers import NAMES, Dataset, load
from kip.data.sources import available, cache_folder, fetch

__all__ = ["NAMES", "Dataset", "available", "cache_folder", "fetch", "load"]

"""What several test modules share: real data sets, or the reason why a test that needs one does not run."""

from __future__ import annotations

import os
from functools import cache

import pytest

from kip.data import Dataset, available, load


def require_dataset(name: str) -> Dataset:
    """The data set called `name` from the cache; absent, the test skips, and fails under KIP_REQUIRE_DATA=1."""
    if not available(name):
        reason = f"{name} is not in the cache: run `kip data fetch {name}`"
        if os.environ.get("KIP_REQUIRE_DATA") == "1":
            pytest.fail(f"{reason} (KIP_REQUIRE_DATA=1 forbids to skip)")
        pytest.skip(reason)
    return _loaded(name)


@cache
def _loaded(name: str) -> Dataset:
    return load(name)

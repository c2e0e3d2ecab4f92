import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from kip import gram_cache
from kip.gram_cache import CachedGram, Store, symmetric_pairs
from kip.kernels import kernel


class Counting:
    """Counts the pairs that the kernel underneath was asked for."""

    def __init__(self, spec="rbf"):
        self.kernel, self.pairs = kernel(spec), 0
        self.original = self.kernel.gram
        self.kernel.gram = self.gram

    def gram(self, x1, x2=None):
        self.pairs += len(x1) * len(x1 if x2 is None else x2)
        return self.original(x1, x2)


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 4)), rng.normal(size=(23, 4))


def test_tiles_are_computed_once_and_equal_the_kernel(tmp_path, points):
    x1, x2 = points
    counting, told = Counting(), []
    cached = CachedGram(counting.kernel, Store(tmp_path), tile=(3, 8), progress=lambda *tile: told.append(tile))
    whole = counting.original(x1, x2)
    np.testing.assert_allclose(cached.gram(x1, x2), whole, rtol=1e-14)
    assert counting.pairs == 5 * 23
    assert told == [(24, True), (16, True), (24, True), (16, True), (21, True), (14, True)]
    again = CachedGram(counting.kernel, Store(tmp_path), tile=(3, 8), progress=lambda *tile: told.append(tile))
    np.testing.assert_array_equal(again.gram(x1, x2), cached.gram(x1, x2))
    assert counting.pairs == 5 * 23
    assert told[-1] == (14, False)
    np.testing.assert_array_equal(cached.gram(x1), kernel("rbf").gram(x1))


def test_a_symmetric_matrix_is_computed_by_half(tmp_path, points):
    _, x = points
    counting, told = Counting(), []
    cached = CachedGram(counting.kernel, Store(tmp_path), tile=(3, 8), progress=lambda *tile: told.append(tile))
    k = cached.gram(x)
    np.testing.assert_allclose(k, counting.original(x), rtol=1e-14)
    np.testing.assert_array_equal(k, k.T)
    assert (
        counting.pairs == sum(pairs for pairs, _ in told) == symmetric_pairs(23, (3, 8)) == 64 + 64 + 49 + 64 + 56 + 56
    )
    assert symmetric_pairs(23, None) == 23 * 23
    np.testing.assert_array_equal(cached.gram(x), k)
    assert counting.pairs == symmetric_pairs(23, (3, 8))


def test_a_folder_without_room_is_said_once_and_computing_goes_on(tmp_path, points, monkeypatch):
    x1, x2 = points
    words = []
    room = 3 * (5 * 8 * 8 + 32)

    def filled(**options):
        store = Store(tmp_path, say=words.append, **options)
        return CachedGram(kernel("rbf"), store, tile=(8, 8)).gram(x1, x2)

    np.testing.assert_allclose(filled(limit=room - 1 - 5 * 8), kernel("rbf").gram(x1, x2), rtol=1e-14)
    assert len(list(tmp_path.iterdir())) == 2
    assert "limit" in words[0]
    monkeypatch.setattr(gram_cache, "SPARE", 1 << 60)
    filled()
    assert "disk has less" in words[1]
    monkeypatch.setattr(gram_cache, "SPARE", 0)

    def refuse(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gram_cache, "write_atomic", refuse)
    filled()
    assert "no space left on device" in words[2]
    assert len(words) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_cannot_be_the_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        Store(tmp_path / "file")


def test_other_points_another_kernel_and_another_dtype_are_other_tiles(tmp_path, points):
    x1, x2 = points
    CachedGram(kernel("rbf"), Store(tmp_path)).gram(x1, x2)
    for spec, a, b in [("rbf", x1 + 1, x2), ("fc1", x1, x2), ("rbf", x1.astype(np.float32), x2.astype(np.float32))]:
        counting = Counting(spec)
        np.testing.assert_array_equal(CachedGram(counting.kernel, Store(tmp_path)).gram(a, b), counting.original(a, b))
        assert counting.pairs == 5 * 23


def test_a_damaged_tile_is_computed_again(tmp_path, points):
    x1, x2 = points
    counting = Counting()
    cached = CachedGram(counting.kernel, Store(tmp_path))
    right = cached.gram(x1, x2)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for damaged in (data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:], b""):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(cached.gram(x1, x2), right)
    assert counting.pairs == 4 * 5 * 23
    assert file.read_bytes() == data


def test_a_killed_run_recomputes_nothing_it_has(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from kip.gram_cache import CachedGram, Store
        from kip.kernels import kernel
        tiles = []
        def progress(pairs, fresh):
            tiles.append(pairs)
            if len(tiles) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        x = np.random.default_rng(0).normal(size=(23, 4))
        CachedGram(kernel("rbf"), Store(Path(sys.argv[1])), tile=(8, 4), progress=progress).gram(x[:5], x)
    """)
    done = subprocess.run([sys.executable, "-c", script, tmp_path], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    x = np.random.default_rng(0).normal(size=(23, 4))
    counting = Counting()
    np.testing.assert_allclose(
        CachedGram(counting.kernel, Store(tmp_path), tile=(8, 4)).gram(x[:5], x),
        counting.original(x[:5], x),
        rtol=1e-14,
    )
    assert counting.pairs == 5 * (23 - 12)


def test_it_passes_the_rest_of_the_contract_on(points):
    x1, x2 = points
    cached = CachedGram(kernel("rbf"), tile=None)
    np.testing.assert_array_equal(cached.gram(x1, x2), kernel("rbf").gram(x1, x2))
    assert cached.spec == "rbf"
    assert cached.params == {"gamma": 1.0}
    assert cached.with_params({"gamma": 2.0}).spec == "rbf:gamma=2"
    np.testing.assert_array_equal(cached.diag(x1), np.ones(5))
    k, pull = cached.vjp(x1, x2)
    np.testing.assert_array_equal(pull(k)[0], kernel("rbf").vjp(x1, x2)[1](k)[0])

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from kip.grams import Kept
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
    kept = Kept(counting.kernel, tmp_path, tile=8, progress=told.append)
    whole = counting.original(x1, x2)
    np.testing.assert_allclose(kept.gram(x1, x2), whole, rtol=1e-14)
    assert counting.pairs == sum(told) == 5 * 23
    again = Kept(counting.kernel, tmp_path, tile=8)
    np.testing.assert_array_equal(again.gram(x1, x2), kept.gram(x1, x2))
    assert counting.pairs == 5 * 23
    np.testing.assert_array_equal(kept.gram(x1), kernel("rbf").gram(x1))


def test_other_points_another_kernel_and_another_dtype_are_other_tiles(tmp_path, points):
    x1, x2 = points
    Kept(kernel("rbf"), tmp_path).gram(x1, x2)
    for spec, a, b in [("rbf", x1 + 1, x2), ("fc1", x1, x2), ("rbf", x1.astype(np.float32), x2.astype(np.float32))]:
        counting = Counting(spec)
        np.testing.assert_array_equal(Kept(counting.kernel, tmp_path).gram(a, b), counting.original(a, b))
        assert counting.pairs == 5 * 23


def test_a_damaged_tile_is_computed_again(tmp_path, points):
    x1, x2 = points
    counting = Counting()
    kept = Kept(counting.kernel, tmp_path)
    right = kept.gram(x1, x2)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for damaged in (data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:], b""):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(kept.gram(x1, x2), right)
    assert counting.pairs == 4 * 5 * 23
    assert file.read_bytes() == data


def test_a_killed_run_recomputes_nothing_it_has(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from kip.grams import Kept
        from kip.kernels import kernel
        tiles = []
        def progress(pairs):
            tiles.append(pairs)
            if len(tiles) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        x = np.random.default_rng(0).normal(size=(23, 4))
        Kept(kernel("rbf"), Path(sys.argv[1]), tile=4, progress=progress).gram(x[:5], x)
    """)
    done = subprocess.run([sys.executable, "-c", script, tmp_path], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    x = np.random.default_rng(0).normal(size=(23, 4))
    counting = Counting()
    np.testing.assert_allclose(
        Kept(counting.kernel, tmp_path, tile=4).gram(x[:5], x), counting.original(x[:5], x), rtol=1e-14
    )
    assert counting.pairs == 5 * (23 - 12)


def test_it_passes_the_rest_of_the_contract_on(points):
    x1, x2 = points
    kept = Kept(kernel("rbf"))
    assert kept.spec == "rbf"
    assert kept.params == {"gamma": 1.0}
    assert kept.with_params({"gamma": 2.0}).spec == "rbf:gamma=2"
    np.testing.assert_array_equal(kept.diag(x1), np.ones(5))
    k, pull = kept.vjp(x1, x2)
    np.testing.assert_array_equal(pull(k)[0], kernel("rbf").vjp(x1, x2)[1](k)[0])

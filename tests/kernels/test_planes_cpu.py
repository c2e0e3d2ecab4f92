"""Offset planes in Numba: the oracle values, the JAX engine, finite differences, and the memory of own variances."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tolerances import assert_close

from kip.kernels import lanes, planes_cpu, planes_jit, relu
from kip.kernels.lanes import Memo
from kip.kernels.network import Network, named
from kip.kernels.planes import PlanesKernel
from kip.kernels.planes_cpu import NumbaPlanesKernel

DATA = Path(__file__).parent / "data"
HARD = np.zeros((5, 4), bool)
HARD[1, 2] = HARD[0, 3] = True  # identical, and opposite


@cache
def oracle(channels: int) -> dict[str, np.ndarray]:
    with np.load(DATA / f"oracle_8x8x{channels}.npz") as stored:
        return dict(stored)


def network(name: str) -> Network:
    found = named(name)
    assert found is not None
    return found


def oracle_cases() -> list[tuple[int, str]]:
    return [(ch, key.removesuffix("/k12")) for ch in (1, 3) for key in sorted(oracle(ch)) if key.endswith("/k12")]


def oracle_kernel(engine: Any, case: str) -> Any:
    """The kernel that an oracle's case names, such as "convnet2-standard/ntk"."""
    name, get = case.split("/")
    arch, parameterisation = name.split("-")
    hidden = 1024 if arch.startswith("fc") else 128
    width = hidden if parameterisation == "standard" else None
    return engine(network(arch), nngp=get == "nngp", width=width)


def check_against_oracle(
    kernel: Any, stored: dict[str, np.ndarray], case: str, dtype: Any, gradient: bool = True
) -> None:
    """Errors relative to √(k₁₁k₂₂); identical and opposite images apart."""
    k11, k12 = stored[f"{case}/k11"], stored[f"{case}/k12"]
    scale = np.sqrt(np.diag(k11)[:, None] * kernel.diag(stored["x2"]))
    x1, x2 = stored["x1"].astype(dtype), stored["x2"].astype(dtype)
    k = kernel.gram(x1, x2)
    assert k.dtype == dtype
    assert_close(k[~HARD], k12[~HARD], "value", dtype, scale=scale[~HARD])
    assert_close(k[HARD], k12[HARD], "hard" if dtype == np.float64 else "single", dtype, scale=scale[HARD])
    if gradient:
        _, pull = kernel.vjp(stored["x1_generic"].astype(dtype), stored["x2_generic"].astype(dtype))
        x_bar, _ = pull(stored["cotangent"].astype(dtype))
        assert x_bar.dtype == dtype
        assert_close(x_bar, stored[f"{case}/d_x1"], "gradient", dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("channels", "case"), [c for c in oracle_cases() if not c[1].startswith("fc")])
def test_oracle_values_and_gradients(channels: int, case: str, dtype: Any) -> None:
    kernel, stored = oracle_kernel(NumbaPlanesKernel, case), oracle(channels)
    check_against_oracle(kernel, stored, case, dtype)
    scale = np.sqrt(np.outer(*[np.diag(stored[f"{case}/k11"])] * 2))
    k = kernel.gram(stored["x1"].astype(dtype))
    assert np.array_equal(k, k.T)
    assert_close(k, stored[f"{case}/k11"], "hard" if dtype == np.float64 else "single", dtype, scale=scale)


@pytest.mark.parametrize("nngp", [True, False])
def test_pullback_equals_finite_differences_on_a_deep_odd_network(nngp: bool) -> None:
    kernel = NumbaPlanesKernel(network("myrtle7"), nngp=nngp)
    rng = np.random.default_rng(8)
    x1, x2, direction = rng.normal(size=(2, 9, 6, 2)), rng.normal(size=(9, 9, 6, 2)), rng.normal(size=(2, 9, 6, 2))
    cotangent = rng.normal(size=(2, 9))
    x_bar, params_bar = kernel.vjp(x1, x2)[1](cotangent)
    values = [np.sum(cotangent * kernel.gram(x1 + h * direction, x2)) for h in (-2e-4, -1e-4, 1e-4, 2e-4)]
    numeric = np.dot([1, -8, 8, -1], values) / 12e-4
    assert params_bar == {}
    assert_close(np.vdot(x_bar, direction), numeric, "finite difference", scale=np.linalg.norm(x_bar))


def test_vectors_go_through_dense_networks_only() -> None:
    x = np.random.default_rng(1).normal(size=(4, 6))
    kernel = NumbaPlanesKernel(network("fc2"))
    assert_close(kernel.gram(x), PlanesKernel(network("fc2")).gram(x), "hard")
    assert kernel.vjp(x, x)[1](np.ones((4, 4)))[0].shape == (4, 6)
    with pytest.raises(ValueError, match="needs images"):
        NumbaPlanesKernel(network("conv1")).gram(x)


def test_no_points_give_an_empty_matrix() -> None:
    kernel, x = NumbaPlanesKernel(network("conv1")), np.ones((3, 4, 4, 1))
    assert kernel.gram(x, x[:0]).shape == (3, 0)
    assert kernel.gram(x[:0], x).shape == (0, 3)
    assert kernel.gram(x[:0]).shape == (0, 0)
    assert kernel.diag(x[:0]).shape == (0,)
    k, pull = kernel.vjp(x, x[:0])
    assert k.shape == (3, 0)
    assert not pull(np.ones((3, 0)))[0].any()


def test_spec_and_refusals() -> None:
    assert NumbaPlanesKernel(network("myrtle10"), nngp=True).spec == "myrtle10:nngp"
    assert (
        NumbaPlanesKernel(network("conv2"), width=128, bias_variance=0.5).spec == "conv2:standard=128:bias_variance=0.5"
    )
    with pytest.raises(ValueError, match=r"numba engine holds the variances.*engine='jax'"):
        NumbaPlanesKernel(network("conv2")).with_params({"weight_variance": 1.0})
    with pytest.raises(ValueError, match="`width`"):
        NumbaPlanesKernel(network("conv2"), width=0)
    with pytest.raises(ValueError, match="`weight_variance` must be positive"):
        NumbaPlanesKernel(network("conv2"), weight_variance=0.0)
    with pytest.raises(ValueError, match="`bias_variance` must be 0 or more"):
        NumbaPlanesKernel(network("conv2"), bias_variance=-1.0)


# --- own variances, remembered


def own_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images whose own variances are computed from here on, with an empty memory."""
    counts: list[int] = []
    compute = planes_cpu._Engine._own

    def counting(self: Any, rows: np.ndarray) -> np.ndarray:
        counts.append(len(rows))
        return compute(self, rows)

    monkeypatch.setattr(planes_cpu._Engine, "_own", counting)
    monkeypatch.setattr(planes_cpu, "memo", Memo(planes_cpu.MEMO_BYTES))
    return counts


def test_targets_seen_before_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = own_calls(monkeypatch)
    kernel, rng = NumbaPlanesKernel(network("convnet1")), np.random.default_rng(2)
    targets = rng.normal(size=(7, 4, 6, 2)).astype(np.float32)
    first = kernel.vjp(targets[:2] + 1, targets)[0]
    assert counts == [2, 7]
    again = kernel.vjp(targets[:2] + 1, targets[::-1].copy())[0]
    assert counts == [2, 7, 2]
    assert np.array_equal(again, first[:, ::-1])
    NumbaPlanesKernel(network("convnet1"), nngp=True).gram(targets[:0], targets)  # NTK and NNGP share them
    assert sum(counts) == 11
    kernel.gram(targets[:0], targets.astype(np.float64))  # other numbers, though equal
    assert counts[-1] == 7


def test_a_mirrored_image_is_remembered_as_its_mirror_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = own_calls(monkeypatch)
    kernel, rng = NumbaPlanesKernel(network("convnet2")), np.random.default_rng(3)
    support, targets = rng.normal(size=(2, 8, 8, 2)), rng.normal(size=(5, 8, 8, 2))
    mirrored = targets[:, :, ::-1].copy()
    kernel.gram(support, targets)
    before = sum(counts)
    after_direct = kernel.gram(support, mirrored)
    assert sum(counts) == before
    monkeypatch.setattr(planes_cpu, "memo", Memo(planes_cpu.MEMO_BYTES))
    assert np.array_equal(kernel.gram(support, mirrored), after_direct)  # whichever was seen first
    assert_close(after_direct, kernel.gram(support[:, :, ::-1], targets), "rounding")


def test_pooling_that_drops_a_column_is_not_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    own_calls(monkeypatch)
    kernel, rng = NumbaPlanesKernel(network("convnet1")), np.random.default_rng(4)
    support, targets = rng.normal(size=(2, 4, 5, 1)), rng.normal(size=(3, 4, 5, 1))
    kernel.gram(support, targets)
    mirrored = targets[:, :, ::-1].copy()
    assert_close(kernel.gram(support, mirrored), PlanesKernel(network("convnet1")).gram(support, mirrored), "rounding")


def test_memory_is_bounded_and_forgets_the_least_recently_used() -> None:
    memo = Memo(3 * 8)
    rows = np.arange(4.0)[:, None]
    memo.keep([("a",), ("b",), ("c",)], rows[:3])
    memo.find([("a",)])
    memo.keep([("d",)], rows[3:])
    found = memo.find([("a",), ("b",), ("c",), ("d",)])
    assert [row is None for row in found] == [False, True, False, False]
    assert memo.bytes == 24


# --- planes, kept for the way back


@pytest.mark.parametrize("nngp", [True, False])
def test_a_pullback_is_the_same_to_the_bit_whatever_was_kept(monkeypatch: pytest.MonkeyPatch, nngp: bool) -> None:
    kernel, rng = NumbaPlanesKernel(network("convnet2"), nngp=nngp), np.random.default_rng(6)
    support, targets = (rng.normal(size=(n, 8, 8, 2)).astype(np.float32) for n in (3, 70))
    cotangent = rng.normal(size=(3, 70)).astype(np.float32)
    pulled, taken = [], []
    for limit in (0, 1 << 16, 1 << 30):  # nothing, some of the targets, all
        monkeypatch.setattr(planes_cpu, "room", planes_cpu.Room(limit))
        _, pull = kernel.vjp(support, targets)
        pulled.append(pull(cotangent)[0])
        taken.append(planes_cpu.room.taken)
        del pull
        assert planes_cpu.room.taken == 0
    assert taken[0] == 0 < taken[1] <= 1 << 16 < taken[2]
    assert np.array_equal(pulled[0], pulled[1])
    assert np.array_equal(pulled[0], pulled[2])


def test_an_array_given_back_while_another_is_taken_does_not_wait_for_the_lock() -> None:
    """Finalisers run whenever the collector does, also in the middle of `array`."""
    held: list[np.ndarray] = []

    class Collecting(lanes.Room):
        def _settled(self) -> int:
            held.clear()  # the finaliser runs here, inside the lock
            return super()._settled()

    room = Collecting(1 << 20)
    held.append(room.array(1, 64, dtype=np.float32))
    taken: list[np.ndarray] = []
    other = threading.Thread(target=lambda: taken.append(room.array(2, 64, dtype=np.float32)), daemon=True)
    other.start()
    other.join(30)
    assert not other.is_alive()
    assert room.taken == taken[0].nbytes == 2 * 64 * 4


def test_correlations_are_snapped_alike_in_both_engines() -> None:
    assert planes_jit.SNAP_ULPS == relu.SNAP_ULPS


def test_hashes_tell_images_and_their_mirrors_apart() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(70, 3, 4, 2)).astype(np.float32)
    direct, mirrored = lanes.content_hashes(x), lanes.content_hashes(x[:, :, ::-1])
    assert np.array_equal(direct[:, :2], mirrored[:, 2:])
    assert np.array_equal(direct[:, 2:], mirrored[:, :2])
    assert len(np.unique(direct)) == direct.size


def test_tiles_of_targets_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rng = NumbaPlanesKernel(network("convnet1")), np.random.default_rng(6)
    x1, x2, cotangent = rng.normal(size=(3, 4, 4, 1)), rng.normal(size=(20, 4, 4, 1)), rng.normal(size=(3, 20))
    k, pull = kernel.vjp(x1, x2)
    monkeypatch.setattr(planes_cpu, "TARGET_BYTES", 1)
    k_tiled, pull_tiled = kernel.vjp(x1, x2)
    assert np.array_equal(k, k_tiled)
    assert np.array_equal(k, kernel.gram(x1, x2))
    assert_close(pull_tiled(cotangent)[0], pull(cotangent)[0], "rounding")


def test_several_threads_may_enter_and_results_do_not_depend_on_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rng = NumbaPlanesKernel(network("convnet1")), np.random.default_rng(7)
    x1, x2 = (rng.normal(size=(n, 4, 4, 1)).astype(np.float32) for n in (5, 40))
    cotangent = rng.normal(size=(5, 40))
    results: list[Any] = []

    def work() -> None:
        k, pull = kernel.vjp(x1, x2)
        results.append((k, pull(cotangent)[0]))

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for count in (1, 5):
        for module in (lanes, planes_cpu):
            monkeypatch.setattr(module, "threads", lambda count=count: count)
        work()
    assert len(results) == 5
    assert all(np.array_equal(a, b) for result in results[1:] for a, b in zip(result, results[0], strict=True))


def test_a_failing_task_is_reported() -> None:
    def task(worker: int, n: int) -> None:
        if n == 3:
            raise RuntimeError("task 3")

    with pytest.raises(RuntimeError, match="task 3"):
        lanes.spread(8, task)


def test_without_a_place_for_compiled_code_there_is_still_an_engine() -> None:
    script = """
        from numba.core import caching
        caching.CacheImpl._locator_classes = []
        from kip.kernels import planes_jit
        print(planes_jit._OPTIONS["cache"])
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"
    assert planes_jit._has_cache()

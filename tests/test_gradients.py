"""The streamed loss and gradient: against `jax.grad` of the plain loss, whatever the tile and whoever runs the pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip import execution, machine
from kip.execution import Execution, Shared, Threads, Tiles, add
from kip.gradients import Gradients, Normal, gradients, solve_normal, solved_gradients
from kip.kernels import inner
from kip.krr import KernelRidge, Ridge
from kip.sets import LabelledSet, unlabelled

SUPPORT, TARGETS, CLASSES = 5, 37, 3
SHAPE = (4, 2, 1)
RIDGE = 0.05


def plain_linear(params: Any, x1: jax.Array, x2: jax.Array, own: bool) -> jax.Array:
    return x1 @ x2.T


def plain_rbf(params: Any, x1: jax.Array, x2: jax.Array, own: bool) -> jax.Array:
    return jnp.exp(-params["gamma"] * jnp.sum((x1[:, None] - x2[None]) ** 2, -1) / x1.shape[1])


def plain_fc(depth: int, nngp: bool, width: int | None) -> Callable[..., jax.Array]:
    """The textbook recursion with arccos; a point's correlation with itself is 1 whatever the point."""

    def kernel(params: Any, x1: jax.Array, x2: jax.Array, own: bool) -> jax.Array:
        weight, bias, d = params["weight_variance"], params["bias_variance"], x1.shape[1]
        same = jnp.eye(len(x1), dtype=bool) if own else jnp.zeros((len(x1), len(x2)), bool)
        k, a, b = x1 @ x2.T / d, jnp.sum(x1**2, 1)[:, None] / d, jnp.sum(x2**2, 1)[None] / d
        theta = weight * k + bias if width is None else d * k + 1
        k, a, b = weight * k + bias, weight * a + bias, weight * b + bias
        for layer in range(depth):
            u = jnp.where(same, 0.0, k / jnp.sqrt(a * b))
            angle = jnp.arccos(u)
            k0 = jnp.where(same, 1.0, 1 - angle / jnp.pi)
            k1 = jnp.where(same, 1.0, (jnp.sqrt(1 - u**2) + u * (jnp.pi - angle)) / jnp.pi)
            hidden = jnp.sqrt(a * b) * k1 / 2
            k, a, b = weight * hidden + bias, weight * a / 2 + bias, weight * b / 2 + bias
            fresh = k if width is None or layer == depth - 1 else width * hidden + 1
            theta = weight * k0 / 2 * theta + fresh
        return k if nngp else theta

    return kernel


def plain_sum(params: Any, x1: jax.Array, x2: jax.Array, own: bool) -> jax.Array:
    return 0.5 * plain_rbf(params["left"], x1, x2, own) + plain_linear(params["right"], x1, x2, own)


PLAIN: dict[str, Callable[..., jax.Array]] = {
    "linear": plain_linear,
    "rbf": plain_rbf,
    "rbf:gamma=0.4": plain_rbf,
    "fc1": plain_fc(1, False, None),
    "fc2:nngp": plain_fc(2, True, None),
    "fc2:standard=64": plain_fc(2, False, 64),
    "0.5*rbf&linear": plain_sum,
}
MODES = ["given", "solved", "solved, damped"]
DAMPING = 0.01


@cache
def data() -> tuple[np.ndarray, np.ndarray, LabelledSet]:
    rng = np.random.default_rng(0)
    x_support, y_support = rng.normal(size=(SUPPORT, *SHAPE)), rng.normal(size=(SUPPORT, CLASSES))
    return x_support, y_support, LabelledSet(rng.normal(size=(TARGETS, *SHAPE)), rng.normal(size=(TARGETS, CLASSES)))


def plain_loss(
    kernel: Callable[..., jax.Array], mode: str, ridge: Ridge, x: jax.Array, y: jax.Array, params: Any
) -> jax.Array:
    """Eq. (loss), the solved labels' with the solve written out and differentiated through."""
    _, _, targets = data()
    x, x_t, y_t = x.reshape(len(x), -1), jnp.asarray(targets.x.reshape(TARGETS, -1)), jnp.asarray(targets.y)
    k_ss, k_ts = kernel(params, x, x, True), kernel(params, x_t, x, False)
    unit = jnp.trace(k_ss) / len(x)
    a = k_ss + ridge.value * (unit if ridge.scale_invariant else 1.0) * jnp.eye(len(x))
    if mode == "given":
        return 0.5 * jnp.sum((k_ts @ jnp.linalg.solve(a, y) - y_t) ** 2)
    mu = TARGETS * unit * (DAMPING if mode == "solved, damped" else 0.0)
    alpha = jnp.linalg.solve(k_ts.T @ k_ts + mu * a, k_ts.T @ y_t)
    return 0.5 * jnp.sum((k_ts @ alpha - y_t) ** 2) + 0.5 * mu * jnp.sum(alpha * (a @ alpha))


def streamed(spec: str, mode: str, ridge: Ridge, how: Execution) -> Gradients:
    x, y, targets = data()
    return of_mode(kip.kernel(spec), mode, LabelledSet(x, y), targets, ridge, how)


def of_mode(
    kernel: kip.kernels.Kernel, mode: str, support: LabelledSet, targets: LabelledSet, ridge: Ridge, how: Execution
) -> Gradients:
    if mode == "given":
        return gradients(kernel, support, targets, ridge, how)
    damping = DAMPING if mode == "solved, damped" else 0.0
    return solved_gradients(kernel, support.x, targets, ridge, damping, how)


@pytest.mark.parametrize("scale_invariant", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", PLAIN)
def test_streamed_gradient_is_that_of_the_plain_loss(spec: str, mode: str, scale_invariant: bool) -> None:
    ridge, (x, y, _) = Ridge(RIDGE, scale_invariant), data()
    found = streamed(spec, mode, ridge, Execution(tile=16))
    with jax.enable_x64(True), jax.disable_jit():  # compiling each case would cost more than running it
        loss, bars = jax.value_and_grad(lambda *args: plain_loss(PLAIN[spec], mode, ridge, *args), (0, 1, 2))(
            jnp.asarray(x), jnp.asarray(y), jax.tree.map(jnp.asarray, kip.kernel(spec).params)
        )
        x_bar, y_bar, params_bar = jax.tree.map(np.asarray, bars)
    assert_close(found.x, x_bar, "stream")
    assert jax.tree.structure(found.params) == jax.tree.structure(params_bar)
    for mine, theirs in zip(jax.tree.leaves(found.params), jax.tree.leaves(params_bar), strict=True):
        assert_close(mine, theirs, "stream", scale=max(1.0, abs(float(theirs))))
    if mode == "given":
        assert found.y is not None
        assert_close(found.y, y_bar, "stream")
    else:
        assert found.y is None
    if mode != "solved, damped":  # which reports the loss without the damping term
        assert_close(found.loss, loss, "stream")
    assert_close(found.loss_per_target, found.loss / TARGETS, "rounding")


@pytest.mark.parametrize("mode", MODES)
def test_tile_size_changes_nothing(mode: str) -> None:
    whole = streamed("fc1", mode, Ridge(RIDGE), Execution(tile=TARGETS))
    tiles, memories = [Execution(tile=n) for n in (1, 16, 32)], [Execution(memory=n) for n in (1, 2000)]
    for how in (*tiles, *memories, Execution()):
        assert_same(streamed("fc1", mode, Ridge(RIDGE), how), whole)


def assert_same(found: Gradients, expected: Gradients) -> None:
    for field in dataclasses.fields(Gradients):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            assert_close(a, b, "stream")


def as_a_tree(
    fn: Callable[[Shared, slice], Any], shared: Shared, ranges: Sequence[slice], combine: Callable[[Any, Any], Any]
) -> Any:
    """An executor that halves the tiles until one is left, as a cluster might."""
    if len(ranges) == 1:
        return fn(shared, ranges[0])
    half = len(ranges) // 2
    return combine(as_a_tree(fn, shared, ranges[:half], combine), as_a_tree(fn, shared, ranges[half:], combine))


@pytest.mark.parametrize("mode", MODES)
def test_another_executor_gives_the_same(mode: str) -> None:
    threads, tree = (
        streamed("rbf", mode, Ridge(RIDGE), how) for how in (Execution(tile=16), Execution(tile=16, executor=as_a_tree))
    )
    assert_same(tree, threads)
    x, y, targets = data()
    kernel = kip.kernel("rbf")
    model = KernelRidge([kernel], LabelledSet(x, y), Ridge(), Execution(tile=16, executor=as_a_tree), [y])
    assert_close(model.predict(targets.x), kernel.gram(targets.x, x) @ y, "rounding")


@pytest.mark.parametrize("mode", MODES)
def test_threads_change_not_a_bit(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are combined in their order, whichever thread is done first, and cut alike on every machine."""
    monkeypatch.setattr(execution, "SMALL_PASS", 0)
    found = []
    for cores in (1, 2, 3):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        found.append(streamed("fc1", mode, Ridge(RIDGE), Execution(memory=20_000)))
    for other in found[1:]:
        assert jax.tree.all(jax.tree.map(np.array_equal, vars(other), vars(found[0])))


def test_an_error_in_a_thread_is_raised() -> None:
    def fail(shared: Shared, rows: slice) -> Any:
        raise ArithmeticError(f"rows from {rows.start}")

    x, _, targets = data()
    run = Execution(tile=16, executor=Threads(2)).over(kip.kernel("rbf"), x, targets)
    with pytest.raises(ArithmeticError, match="rows from 0"):
        run(fail)


def test_tiles_at_the_same_time_keep_within_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rbf, about = kip.kernel("rbf"), (2000, 1000, (784,))
    sizes = set()
    for cores in (1, 2, 64):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        rows = Execution().rows(rbf, *about, 4)
        threads = Execution().threads(rbf, *about, rows, 4)
        assert 1 <= threads <= cores
        assert threads * rows * 4 * (4 * 2000 + 2 * 784) <= Execution().memory / 2
        sizes.add(rows)
    assert len(sizes) == 1
    x, targets = np.zeros((10, 784), np.float32), unlabelled(np.zeros((1000, 784), np.float32))
    assert Execution(executor=as_a_tree).over(rbf, x, targets).executor is as_a_tree
    images = [points.reshape(-1, 28, 28, 1) for points in (x[:2], targets.x)]
    assert Execution().over(kip.kernel("conv1"), images[0], unlabelled(images[1])).executor == Threads(
        1
    )  # which fills all cores by itself
    # a small pass takes one thread, but the same tiles, and so gives the same bits
    assert Execution().over(rbf, x, targets).executor == Threads(1)
    many = (
        Execution()
        .over(rbf, x, LabelledSet(*(np.broadcast_to(a[:1], (10**6, a.shape[1])) for a in (targets.x, targets.y))))
        .executor
    )
    assert isinstance(many, Threads)
    assert many.threads is not None
    assert many.threads > 1
    assert Execution().rows(rbf, 10, 1024, (784,), 4) == Execution().rows(rbf, 10, 1024 * 1000, (784,), 4) == 1024


@pytest.mark.parametrize("spec", ["rbf", "fc2:nngp", "0.5*rbf&linear"])
def test_frozen_hyper_parameters_change_no_other_gradient(spec: str) -> None:
    x, y, targets = data()
    kernel, support = kip.kernel(spec), LabelledSet(x, y)
    learned, frozen = (gradients(k, support, targets, Ridge(RIDGE)) for k in (kernel, kernel.frozen()))
    assert kernel.frozen() == kernel
    assert_close(frozen.x, learned.x, "rounding")
    assert jax.tree.leaves(learned.params)
    assert not jax.tree.leaves(frozen.params)


def test_normal_equations_lose_nothing_of_a_float32_kernel() -> None:
    """On a K_ts whose singular values reach down to its own rounding they fit as well as least squares by an SVD."""
    rng = np.random.default_rng(2)
    left, right = (np.linalg.qr(rng.normal(size=(n, 40)))[0] for n in (400, 40))
    k_ts = ((left * np.logspace(0, -6.5, 40)) @ right.T).astype(np.float32).astype(np.float64)
    y = rng.normal(size=(400, 3))
    best = np.linalg.lstsq(k_ts, y, rcond=None)[0]
    parts = [Normal(k.T @ k, k.T @ t) for k, t in zip(np.split(k_ts, 4), np.split(y, 4), strict=True)]
    alpha = solve_normal(functools.reduce(add, parts), None, 0.0, 400)
    losses = [float(np.sum((k_ts @ a - y) ** 2)) for a in (alpha, best)]
    assert losses[0] <= losses[1] * (1 + 1e-3)


def test_one_compilation_for_a_kernel_and_shape() -> None:
    """Many tiles, the last one padded, several steps, other points and other hyper-parameters: compiled once."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 13)).astype(np.float32)
    targets = LabelledSet(rng.normal(size=(75, 13)).astype(np.float32), rng.normal(size=(75, 2)).astype(np.float32))
    compiled = (inner._profiled, inner._pull)

    def run(gamma: float, shift: float) -> list[int]:
        kernel, moved = kip.kernel(f"rbf:gamma={gamma}"), x + np.float32(shift)
        support, how = LabelledSet(moved, targets.y[:9]), Execution(tile=32)
        gradients(kernel, support, targets, Ridge(), how)
        solved_gradients(kernel, moved, targets, Ridge(), 1e-6, how)
        KernelRidge([kernel], support, Ridge(), how, [targets.y[:9]]).predict(targets.x)
        return [fn._cache_size() for fn in compiled]

    before = [fn._cache_size() for fn in compiled]
    first = run(1.0, 0.0)
    # forward a tile, of a step or a prediction, and K_ss in float64; back a tile and a part of K_ss
    assert [a - b for a, b in zip(first, before, strict=True)] == [2, 2]
    assert run(0.5, 0.1) == run(0.7, 0.3) == first


def test_float32_tiles_keep_float64_accuracy_to_rounding() -> None:
    x, y, targets = data()
    single = LabelledSet(targets.x.astype("f"), targets.y.astype("f"))
    for mode in MODES:
        exact = streamed("fc1", mode, Ridge(RIDGE), Execution())
        narrow = LabelledSet(x.astype("f"), y.astype("f"))
        found = of_mode(kip.kernel("fc1"), mode, narrow, single, Ridge(RIDGE), Execution())
        assert_close(found.x, exact.x, "stream", np.float32)
        assert_close(found.loss, exact.loss, "stream", np.float32)


def test_solved_gradient_is_finite_where_support_points_coincide() -> None:
    """Twins make K_ts rank-deficient: the solve must not fail, and twins move alike."""
    x, _, targets = data()
    twins = np.concatenate([x, x]).astype(np.float32)
    single = LabelledSet(targets.x.astype("f"), targets.y.astype("f"))
    for damping in (0.0, 1e-9):
        found = solved_gradients(kip.kernel("rbf"), twins, single, Ridge(), damping)
        alone = solved_gradients(kip.kernel("rbf"), x.astype("f"), single, Ridge(), damping)
        assert np.isfinite(found.x).all()
        assert_close(found.loss, alone.loss, "stream", np.float32)


@pytest.mark.parametrize(
    ("targets", "tile", "memory", "expected"),
    [(10, None, 2**28, 10), (6000, 2048, 2**28, 2000), (6001, 2048, 2**28, 2016), (100, None, 1, 16), (33, 16, 1, 16)],
)
def test_tiles_are_even_and_within_what_is_allowed(targets: int, tile: int | None, memory: int, expected: int) -> None:
    how = Execution(memory=memory, tile=tile)
    assert how.rows(kip.kernel("rbf"), 100, targets, (784,), 4) == expected
    tiles = Tiles(np.zeros((targets, 3), np.float32), None, expected)
    cut = [tiles.tile(rows) for rows in tiles.ranges()]
    assert [tile.index for tile in cut] == list(range(len(cut)))
    assert {len(tile.x) for tile in cut} == {expected}
    assert sum(len(tile.x) if tile.mask is None else int(tile.mask.sum()) for tile in cut) == targets


def test_memory_bounds_the_tile() -> None:
    about = kip.kernel("conv1"), 100, 50_000, (32, 32, 3)
    rows = Execution(memory=2**22).rows(*about, 4)
    assert rows * 4 * (4 * 100 + 2 * 3072) <= 2**22
    assert Execution(memory=2**20).rows(*about, 4) < rows

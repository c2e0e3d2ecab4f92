"""A pass on a device gives what the host gives, to rounding; nothing is transferred to it without being counted."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip import algorithm
from kip.algorithm import Config, Problem, adam
from kip.execution import Execution
from kip.execution.device import Device
from kip.gradients import Gradients, gradients, solved_gradients
from kip.krr import KernelRidge, Ridge
from kip.sets import LabelledSet, Selection, one_hot, unlabelled

KERNELS = {
    "rbf": lambda: kip.kernel("rbf"),
    "fc2": lambda: kip.kernel("fc2"),
    "sum": lambda: kip.kernel("0.5*rbf&fc1:nngp"),
    "conv1 of JAX": lambda: kip.kernel("conv1", "jax"),
    "own": lambda: kip.kernel(cubic),
}
SIZE, TARGETS = 8, 70


def cubic(x1: Any, x2: Any) -> Any:
    x1, x2 = x1.reshape(len(x1), -1), x2.reshape(len(x2), -1)
    return (1 + jnp.matmul(x1, x2.T, precision="highest") / x1.shape[1]) ** 3


def training() -> LabelledSet:
    rng = np.random.default_rng(0)
    return LabelledSet(rng.normal(size=(120, 4, 4, 1)).astype("f"), one_hot(np.arange(120) % 3, 3))


def found(kernel: kip.kernels.Kernel, train: LabelledSet, execution: Execution) -> list[Any]:
    """Gradients for given and solved labels, on a batch and on all, and predictions."""
    support = train.take(np.arange(SIZE))
    batch = Selection(train, np.random.default_rng(1).permutation(len(train))[:TARGETS])
    augmented = LabelledSet(batch.x + np.float32(0.1), batch.y)
    ridge = Ridge(1e-2)
    given = [gradients(kernel, support, targets, ridge, execution) for targets in (batch, Selection(train), augmented)]
    solved = solved_gradients(kernel, support.x, batch, ridge, 1e-4, execution)
    return [*given, solved, KernelRidge([kernel], support, ridge, execution).predict(train.x)]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, Gradients):
            assert isinstance(theirs, Gradients)
            assert_close(mine.loss, theirs.loss, "stream", np.float32)
            assert_close(mine.x, theirs.x, "stream", np.float32)
            assert (mine.y is None) == (theirs.y is None)
            if mine.y is not None:
                assert_close(mine.y, theirs.y, "stream", np.float32)
            for a, b in zip(jax.tree.leaves(mine.params), jax.tree.leaves(theirs.params), strict=True):
                assert_close(a, b, "single", np.float32, scale=max(1.0, abs(float(b))))
        else:
            assert_close(mine, theirs, "stream", np.float32)


@pytest.mark.parametrize("name", KERNELS)
def test_a_device_gives_what_the_host_gives(name: str) -> None:
    kernel, train = KERNELS[name](), training()
    assert_same(found(kernel, train, Execution(Device(), tile=16)), found(kernel, train, Execution(tile=16)))


def test_the_guard_sees_an_implicit_transfer() -> None:
    """Without this, the tests below would prove nothing on a CPU."""
    with jax.transfer_guard_host_to_device("disallow"), pytest.raises(Exception, match="Disallowed host-to-device"):
        jax.block_until_ready(jnp.add(np.ones(3, np.float32), jnp.ones(3)))


@pytest.mark.parametrize("labels", ["fixed", "learned", "solved"])
@pytest.mark.parametrize("augmented", [False, True])
def test_a_step_transfers_nothing_that_is_not_counted(labels: str, augmented: bool) -> None:
    train, device = training(), Device()
    codes = np.argmax(train.y, axis=1)
    problem = Problem(train, codes, 3, (lambda rows, seed: train.x[rows] + np.float32(seed % 3)) if augmented else None)
    settings = Config(
        (kip.kernel("rbf"),), SIZE, 9, adam(0.1, 9), labels=labels, batch=48, execution=Execution(device, tile=16)
    )
    state = algorithm.init(problem, settings, key=0)
    state, _ = algorithm.step(state, algorithm.draw(state, problem, settings), settings)  # compiles
    with jax.transfer_guard_host_to_device("disallow"):
        before = device.transfers.arrays, device.transfers.bytes
        batch = algorithm.draw(state, problem, settings)
        moved, _ = algorithm.step(state, batch, settings)
        sent = device.transfers.bytes - before[1]
        assert device.transfers.arrays > before[0]
    assert moved.step == 2
    points = 48 * train.x[0].nbytes
    small = 4 * state.x.nbytes + 48 * 8 + 8 * SIZE * (SIZE + 3 * 3)
    # the training set stays where it is: only an augmented batch is as large as its points
    assert (points <= sent <= 2 * points + small) if augmented else sent <= small


def test_the_training_set_is_sent_once_and_forgotten_with_its_host_copy() -> None:
    train, device = training(), Device()
    execution = Execution(device, tile=16)
    for _ in range(3):
        gradients(kip.kernel("rbf"), train.take(np.arange(4)), Selection(train), Ridge(), execution)
    assert len(device._resident) == 1
    del train
    assert not device._resident


def test_label_solve_and_own_kernels_that_jax_cannot_trace_stay_on_the_host() -> None:
    train = training()
    here = kip.label_solve(train.x, np.argmax(train.y, axis=1), size=6)
    there = kip.label_solve(train.x, np.argmax(train.y, axis=1), size=6, execution=Execution(Device()))
    assert_close(there.y, here.y, "stream", np.float32)
    numba = kip.kernel("conv1", "numba")
    assert not numba.traceable
    with pytest.raises(ValueError, match="kernel 'conv1' cannot run on a device; build it with engine='jax'"):
        Execution(Device()).over(numba, train.x[:2], unlabelled(train.x))


def test_every_device_has_a_share_of_few_targets() -> None:
    """480 targets fit into one tile; four devices take a quarter each."""

    class Four(Device):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.devices = self.devices * 4

        def put(self, value: Any, *axes: str) -> Any:
            del axes
            return super().put(value)

    mask = Four().begin(kip.kernel("rbf"), training().x[:4], unlabelled(np.zeros((480, 4, 4, 1), np.float32)), 480).mask
    assert mask.shape == (4, 128)
    assert np.asarray(mask).sum(axis=1).tolist() == [128, 128, 128, 96]


def test_results_that_are_neither_added_nor_concatenated_are_refused() -> None:
    train = training()
    run = Execution(Device()).over(kip.kernel("rbf"), train.x[:4], train)
    with pytest.raises(ValueError, match="adds results up or concatenates"):
        run(lambda *given: given, max)


def test_two_devices_share_the_targets() -> None:
    """In a process that has two: the results are those of one device, to rounding."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.execution.test_device"], check=False, env=environment, text=True
    )
    assert done.returncode == 0


if __name__ == "__main__":
    assert len(jax.devices()) == 2
    for each in KERNELS:
        data = training()
        both = Execution(Device(tuple(jax.devices())), tile=16)
        assert_same(found(KERNELS[each](), data, both), found(KERNELS[each](), data, Execution(Device(), tile=16)))

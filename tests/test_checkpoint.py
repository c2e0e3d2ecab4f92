"""A state is saved whole, told from a damaged one, and gone on from to the bit, in a process of its own."""

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kip import algorithm, checkpoint, files, kernel
from kip.algorithm import Checkpoint, Config, Problem, State
from kip.corruption import Corruption
from kip.sets import LabelledSet, one_hot

HALF = 3
CASES = {
    "learned labels, augmented, corrupted, a family": {
        "kernels": ("rbf", "fc1"),
        "corruption": Corruption(0.3),
        "augmented": True,
        "batch": 20,
        "evaluate_every": 2,
    },
    "solved labels, augmented": {"labels": "solved", "augmented": True, "evaluate_every": 2},
    "fixed labels, a learned family, batches of support": {
        "kernels": ("rbf", "fc1"),
        "labels": "fixed",
        "learn_kernel": True,
        "support_batch": 3,
        "evaluate_every": 1,
    },
    "float64, everything learned": {"learn_kernel": True, "dtype": np.float64, "decay": False},
}


@dataclasses.dataclass
class Task:
    """A run's problem and configuration, and what its checkpoints are compared by."""

    problem: Problem
    config: Config
    identity: dict


def task_of(case, augmented=False, dtype=np.float32, decay=True, kernels=("rbf",), **options):
    rng = np.random.default_rng(5)
    x, codes = rng.normal(size=(60, 8, 8, 1)).astype(dtype), np.repeat(np.arange(3), 20)

    def augment(rows, seed):
        return x[rows] + np.random.default_rng(seed).normal(0, 0.1, x[rows].shape).astype(dtype)

    problem = Problem(LabelledSet(x, one_hot(codes, 3, dtype)), codes, 3, augment if augmented else None)
    optimiser = algorithm.adam(0.05, 2 * HALF, decay=decay)
    config = Config(tuple(map(kernel, kernels)), 6, 2 * HALF, optimiser, **options)
    return Task(problem, config, {"case": case})


def steps(task, state, count):
    return list(itertools.islice(algorithm.iterate(task.problem, task.config, state), count))[-1][0]


def go_on(folder):
    """What the fresh process does: resume every case, go on to the end, and leave what came out."""
    for number, (case, options) in enumerate(CASES.items()):
        task = task_of(case, **options)
        fresh = algorithm.init(task.problem, task.config, key=number)
        state = checkpoint.latest(folder / str(number), fresh, task.identity)
        checkpoint.save(folder / f"{number}-end", steps(task, state, HALF), task.identity)


def bits(leaf):
    if isinstance(leaf, int):
        return leaf
    if jnp.issubdtype(getattr(leaf, "dtype", np.dtype("O")), jax.dtypes.prng_key):
        return str(leaf.dtype), bits(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return array.dtype.str, array.shape, array.tobytes()


def fields(state):
    best = tuple(vars(c) for c in state.best)
    return {**vars(state), "best": best, "evaluated": np.array(state.evaluated)}


def assert_same(found, wanted):
    assert type(found.step) is type(found.key) is int
    assert jax.tree.structure(fields(found)) == jax.tree.structure(fields(wanted))
    paths, _ = jax.tree_util.tree_flatten_with_path(fields(wanted))
    for (path, b), a in zip(paths, jax.tree.leaves(fields(found)), strict=True):
        assert bits(a) == bits(b), jax.tree_util.keystr(path)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Each case run through without a break, and with one: saved half-way, resumed by another process."""
    folder = tmp_path_factory.mktemp("resumed")
    runs = []
    for number, (case, options) in enumerate(CASES.items()):
        task = task_of(case, **options)
        start = algorithm.init(task.problem, task.config, key=number)
        half = steps(task, start, HALF)
        checkpoint.save(folder / str(number), half, task.identity)
        runs.append((task, start, half))
    with subprocess.Popen([sys.executable, __file__, str(folder)]) as child:
        unbroken = [steps(task, half, HALF) for task, _, half in runs]
    assert child.returncode == 0
    found = [
        checkpoint.latest(folder / f"{number}-end", start, task.identity)
        for number, (task, start, _) in enumerate(runs)
    ]
    return dict(zip(CASES, zip(unbroken, found, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_unbroken_one_to_the_bit(resumed, case):
    unbroken, found = resumed[case]
    assert unbroken.step == 2 * HALF
    assert len(unbroken.best) > 0
    assert_same(found, unbroken)


OPTIMISERS = {
    "adam": optax.adam(optax.cosine_decay_schedule(0.1, 9)),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "half precision moments": optax.adam(0.1, mu_dtype=jnp.bfloat16),
    "a random key": optax.chain(optax.add_noise(0.1, 0.5, key=jax.random.key(3)), optax.lion(0.1)),
    "steps gathered": optax.MultiSteps(optax.rmsprop(0.1), 2),
    "a rate among the state": optax.inject_hyperparams(optax.adam)(0.1),
    "no state": optax.sgd(0.1),
}


def made(optimiser=OPTIMISERS["adam"], step=7, dtype=np.float32, best=2, seed=0, key=2**70 + 1):
    """A fresh state, and one that has gone some way; no kernel is computed."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(4, 3, 3, 1)).astype(dtype), rng.normal(size=(4, 2)).astype(dtype)
    log_params = ({"gamma": np.float32(0.3)}, {}, {"bias": np.float32(-np.inf), "weight": np.float32(0.1)})
    variables = {"x": x, "y": y, "log_params": log_params}
    with jax.enable_x64(dtype == np.float64):
        fresh = State(x, y, log_params, rng.random(x.shape) < 0.3, optimiser.init(variables), key)
        _, opt_state = optimiser.update(variables, fresh.opt_state, variables)
    moved = jax.tree.map(lambda v: np.asarray(v * 2), log_params)
    kept = tuple(Checkpoint(0.1 * i, 2 * i, x + i, y - i, moved) for i in range(best))
    evaluated = (0.1, float("nan"), 5e-324, -0.0)
    return fresh, State(x * 2, y * 3, moved, fresh.mask, opt_state, key, step, kept, evaluated)


@pytest.mark.parametrize(("name", "dtype"), [*((name, np.float32) for name in OPTIMISERS), ("adam", np.float64)])
def test_every_leaf_comes_back_to_the_bit(tmp_path, name, dtype):
    fresh, state = made(OPTIMISERS[name], dtype=dtype)
    path = checkpoint.save(tmp_path, state, {})
    assert path == tmp_path / "checkpoint-7.safetensors"
    found = checkpoint.latest(tmp_path, fresh, {})
    assert_same(found, state)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found.opt_state))


def test_a_state_without_mask_evaluations_or_contiguous_arrays_comes_back(tmp_path):
    fresh, state = made(best=0)
    fresh = replace(fresh, mask=None)
    state = replace(state, mask=None, evaluated=(), x=np.asfortranarray(state.x), y=state.y.astype(">f4"))
    checkpoint.save(tmp_path, state, {})
    found = checkpoint.latest(tmp_path, fresh, {})
    assert_same(found, replace(state, y=state.y.astype("<f4")))


def test_any_reader_of_safetensors_opens_a_checkpoint(tmp_path):
    _, state = made(OPTIMISERS["momentum"])
    path = checkpoint.save(tmp_path, state, {"size": 4})
    arrays = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(arrays["x"], state.x)
    np.testing.assert_array_equal(arrays["best[1].y"], state.best[1].y)
    np.testing.assert_array_equal(arrays["opt_state[0].trace['x']"], state.opt_state[0].trace["x"])
    with safetensors.safe_open(path, "numpy") as file:
        about = file.metadata()
    assert json.loads(about["identity"]) == {"size": 4}
    assert about["step"] == "7"


def test_the_last_two_are_kept_and_later_ones_of_no_use_removed(tmp_path):
    fresh, state = made()
    for step in (1, 9, 10, 11):
        checkpoint.save(tmp_path, replace(state, step=step), {})
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-10.safetensors", "checkpoint-11.safetensors"}
    (tmp_path / "checkpoint-11.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"checkpoint-11.*going on from checkpoint-10"):
        assert checkpoint.latest(tmp_path, fresh, {}).step == 10
    checkpoint.save(tmp_path, replace(state, step=10), {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10.safetensors"]


def test_clear_removes_checkpoints_and_half_written_ones_alone(tmp_path):
    _, state = made()
    checkpoint.clear(tmp_path / "missing")
    checkpoint.save(tmp_path, state, {})
    (tmp_path / ".checkpoint-8.safetensors.0123456789abcdef.partial").touch()
    (tmp_path / "metrics.json").touch()
    (tmp_path / "checkpoint-9.safetensors").mkdir()
    checkpoint.clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "checkpoint-9.safetensors"}


def test_no_folder_and_no_checkpoint_give_no_state(tmp_path):
    fresh, _ = made()
    assert checkpoint.latest(tmp_path / "missing", fresh, {}) is None
    assert checkpoint.latest(tmp_path, fresh, {}) is None


class Damage:
    """A good checkpoint at step 1 and another at step 2, which tests damage."""

    def __init__(self, folder):
        self.folder = folder
        self.fresh, self.good = made(step=1)
        checkpoint.save(folder, self.good, {"size": 4})
        self.path = checkpoint.save(folder, replace(self.good, step=2, x=self.good.x + 1), {"size": 4})
        self.data = self.path.read_bytes()

    def latest(self, data, identity=None):
        self.path.write_bytes(data)
        said = []
        state = checkpoint.latest(self.folder, self.fresh, identity or {"size": 4}, say=said.append)
        return state, said

    def assert_passed_over(self, data):
        state, said = self.latest(data)
        assert state.step == 1, data
        assert len(said) == 1
        assert "checkpoint-2.safetensors is damaged" in said[0]
        return said[0]

    def header(self):
        length = int.from_bytes(self.data[:8], "little")
        return json.loads(self.data[8 : 8 + length]), self.data[8 + length :]


@pytest.fixture(scope="module")
def damage(tmp_path_factory):
    return Damage(tmp_path_factory.mktemp("damage"))


def test_a_flipped_bit_in_any_byte_is_seen(tmp_path):
    fresh, state = made(OPTIMISERS["momentum"], best=1)
    path = checkpoint.save(tmp_path, state, {})
    whole = path.read_bytes()
    said = []
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        assert checkpoint.latest(tmp_path, fresh, {}, say=said.append) is None, at
    assert len(said) == len(whole)
    path.write_bytes(whole)
    assert_same(checkpoint.latest(tmp_path, fresh, {}), state)


@settings(max_examples=200, deadline=None)
@given(edit=st.data())
def test_any_other_damage_is_seen(damage, edit):
    begin = edit.draw(st.integers(0, len(damage.data)))
    end = edit.draw(st.integers(begin, len(damage.data)))
    patch = edit.draw(st.binary(max_size=40) | st.just(bytes(end - begin)))
    data = damage.data[:begin] + patch + damage.data[end:]
    if data != damage.data:
        damage.assert_passed_over(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8, b"\xff" * 8, b"\xff" * 4000, b"PK\x03\x04" * 100, safetensors.numpy.save({"x": np.zeros(3)})],
)
def test_foreign_files_are_passed_over(damage, data):
    damage.assert_passed_over(data)


def test_what_is_no_regular_file_is_passed_over(damage):
    (damage.folder / "checkpoint-3.safetensors").mkdir()
    os.mkfifo(damage.folder / "checkpoint-4.safetensors")
    (damage.folder / "checkpoint-5.safetensors").symlink_to(damage.folder / "nowhere")
    damage.path.write_bytes(damage.data)
    said = []
    assert checkpoint.latest(damage.folder, damage.fresh, {"size": 4}, say=said.append).step == 2
    assert len(said) == 3
    (damage.folder / "checkpoint-3.safetensors").rmdir()
    for step in (4, 5):
        (damage.folder / f"checkpoint-{step}.safetensors").unlink()


def test_where_none_is_whole_it_is_said(tmp_path):
    fresh, state = made()
    checkpoint.save(tmp_path, state, {}).write_bytes(b"")
    with pytest.warns(UserWarning, match="there is none before it"):
        assert checkpoint.latest(tmp_path, fresh, {}) is None


BLANK = "0" * 64


def sealed(header, payload):
    """A file made by a stranger who knows how the checksum is computed."""
    if isinstance(header, dict):
        header = {**header, "__metadata__": {**header["__metadata__"], "sha256": BLANK}}
        header = json.dumps(header, separators=(",", ":"))
    data = len(header.encode()).to_bytes(8, "little") + header.encode() + payload
    return data.replace(BLANK.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def test_sealed_seals_as_save_does(damage):
    header, payload = damage.header()
    state, said = damage.latest(sealed(header, payload))
    assert (state.step, said) == (2, [])


def lie(header, change):
    header = json.loads(json.dumps(header))
    change(header)
    return header


LIES = {
    "a huge shape": lambda h: h["x"].update(shape=[2**40]),
    "huge offsets": lambda h: h["x"].update(shape=[2**40], data_offsets=[0, 2**42]),
    "negative": lambda h: h["x"].update(shape=[-4, -9]),
    "not a number": lambda h: h["x"].update(shape=["4"]),
    "a boolean": lambda h: h["evaluated"].update(shape=[True]),
    "an overlap": lambda h: h["best[0].x"].update(data_offsets=h["x"]["data_offsets"]),
    "no such dtype": lambda h: h["x"].update(dtype="F4"),
    "an unhashable dtype": lambda h: h["x"].update(dtype=[]),
    "not a tensor": lambda h: h.update(x=3),
    "step not a number": lambda h: h["__metadata__"].update(step="¹"),
    "evaluations of another dtype": lambda h: h["evaluated"].update(dtype="I64"),
    "evaluations in rows": lambda h: h["evaluated"].update(shape=[2, 2]),
    "a dtype that NumPy lacks": lambda h: h["mask"].update(dtype="F8_E4M3"),
    "no step": lambda h: h["__metadata__"].pop("step"),
    "no schema": lambda h: h["__metadata__"].pop("schema"),
    "a number in the metadata": lambda h: h["__metadata__"].update(step=3),
    "identity a list": lambda h: h["__metadata__"].update(identity="[]"),
    "identity nested deep": lambda h: h["__metadata__"].update(identity="[" * 100_000),
    "no evaluations": lambda h: h.pop("evaluated"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_under_a_right_checksum_takes_no_memory(damage, name):
    header, payload = damage.header()
    data = sealed(lie(header, LIES[name]), payload)
    tracemalloc.start()
    try:
        message = damage.assert_passed_over(data)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert "checksum" not in message


def test_a_header_nested_deep_is_passed_over(damage):
    message = damage.assert_passed_over(sealed('{"__metadata__":{"sha256":"' + BLANK + '","a":' + "[" * 100_000, b""))
    assert "checksum" not in message


def test_a_checkpoint_larger_than_the_memory_limit_is_refused(damage, monkeypatch):
    monkeypatch.setenv("KIP_MEMORY_LIMIT", "1K")
    with pytest.raises(ValueError, match="raise KIP_MEMORY_LIMIT"):
        damage.latest(damage.data)


def test_other_settings_are_refused_with_the_differences(tmp_path):
    fresh, state = made()
    stored = {"options": {"size": 10, "kernel": "rbf", "ridge": 1, "batch": None}, "data": "ab", "shape": (1, 2)}
    checkpoint.save(tmp_path, state, stored)
    same = {"options": {"size": 10, "kernel": "rbf", "ridge": 1.0, "batch": None}, "data": "ab", "shape": [1, 2]}
    assert_same(checkpoint.latest(tmp_path, fresh, same), state)
    other = {"options": {"size": 20, "kernel": "rbf", "batch": None, "init": "é"}, "data": "ab", "shape": [1, 2]}
    with pytest.raises(ValueError, match="other settings") as caught:
        checkpoint.latest(tmp_path, fresh, other)
    assert (
        '(options.init: nothing in the checkpoint, "é" given; options.ridge: 1 in the checkpoint, nothing given; '
        "options.size: 10 in the checkpoint, 20 given)"
    ) in str(caught.value)


def test_another_optimiser_or_shape_is_refused_by_name(tmp_path):
    _, state = made()
    checkpoint.save(tmp_path, state, {})
    other, _ = made(OPTIMISERS["momentum"])
    with pytest.raises(ValueError, match=r"nothing as opt_state\[0\]\.trace\["):
        checkpoint.latest(tmp_path, other, {})
    fresh, _ = made()
    with pytest.raises(ValueError, match=r"float32 \(4, 2\) as y, where this run has float64 \(4, 2\)"):
        checkpoint.latest(tmp_path, replace(fresh, y=fresh.y.astype(float)), {})
    with pytest.raises(ValueError, match=r"bool \(4, 3, 3, 1\) as mask, where this run has nothing"):
        checkpoint.latest(tmp_path, replace(fresh, mask=None), {})


def test_another_version_says_whether_it_can_go_on(damage, monkeypatch):
    header, payload = damage.header()
    older = lie(header, lambda h: h["__metadata__"].update(kip="0.0.9"))
    state, said = damage.latest(sealed(older, payload))
    assert state.step == 2
    assert "written with kip 0.0.9" in said[0]
    assert "can continue" in said[0]
    newer = lie(header, lambda h: h["__metadata__"].update(schema="3", kip="3.1"))
    with pytest.raises(ValueError, match=r"by kip 3\.1 with a newer format .* finish the run with the version that"):
        damage.latest(sealed(newer, payload))


def test_a_checkpoint_of_the_first_schema_says_what_to_do(damage):
    header, payload = damage.header()
    first = {"sha256": "", "schema": "1", "kip": "0.1.0", "step": "2", "key": "0", "best": "0", "identity": "{}"}
    text = json.dumps({**header, "__metadata__": first}, separators=(",", ":")).encode()
    at = text.index(b'"sha256":"') + len(b'"sha256":"')
    opening = (len(text) + 64).to_bytes(8, "little") + text[:at]
    digest = hashlib.sha256(opening + text[at:] + payload).hexdigest().encode()  # as that schema computed it
    with pytest.raises(ValueError, match=r"by kip 0\.1\.0 before the format .* \(schema 1;") as caught:
        damage.latest(opening + digest + text[at:] + payload)
    assert "\n" not in str(caught.value)


def test_a_leaf_that_no_tensor_holds_is_refused_before_anything_is_written(tmp_path):
    _, state = made()
    with pytest.raises(ValueError, match=r"y has dtype complex64"):
        checkpoint.save(tmp_path, replace(state, y=state.y.astype(np.complex64)), {})
    with pytest.raises(ValueError, match=r"y has dtype float8"):  # safetensors writes it, NumPy cannot read it
        checkpoint.save(tmp_path, replace(state, y=state.y.astype(jnp.float8_e4m3fn)), {})
    with pytest.raises(ValueError, match="JSON"):
        checkpoint.save(tmp_path, state, {"ridge": float("inf")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch, number):
    fresh, state = made()
    checkpoint.save(tmp_path, state, {})

    def full(_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match=r"checkpoint-7\.safetensors, the last good one, is kept; free some space"):
            checkpoint.save(tmp_path, replace(state, step=8), {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7.safetensors"]
    assert_same(checkpoint.latest(tmp_path, fresh, {}), state)


def mounted(folder, options):
    """Mount a tmpfs, or say why not."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


def test_a_disk_that_is_really_full_leaves_the_last_good_checkpoint(tmp_path):
    mounted(tmp_path, "size=64k")
    try:
        fresh, state = made()
        checkpoint.save(tmp_path, state, {})
        large = replace(state, step=8, evaluated=(0.0,) * 10_000)
        with pytest.raises(OSError, match=r"No space left on device.*the last good one, is kept") as caught:
            checkpoint.save(tmp_path, large, {})
        assert caught.value.errno == errno.ENOSPC
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7.safetensors"]
        assert_same(checkpoint.latest(tmp_path, fresh, {}), state)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_read_only_disk_says_so(tmp_path):
    mounted(tmp_path, "size=64k,ro")
    try:
        with pytest.raises(OSError, match=r"Read-only file system.*no other; make the folder writable"):
            checkpoint.save(tmp_path, made()[1], {})
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_read_only_folder_says_so(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write where permissions forbid it")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="make the folder writable"):
            checkpoint.save(tmp_path, made()[1], {})
    finally:
        tmp_path.chmod(0o700)


def test_what_a_killed_writer_left_makes_room_for_the_next(tmp_path):
    left = tmp_path / ".checkpoint-6.safetensors.0123456789abcdef.partial"
    left.touch()
    checkpoint.save(tmp_path, made()[1], {})
    assert not left.exists()


def test_saver_writes_what_latest_reads(tmp_path):
    fresh, state = made()
    saver = checkpoint.Saver(tmp_path / "run", {"size": 4}, every=0)
    saver(state)
    assert_same(checkpoint.latest(tmp_path / "run", fresh, {"size": 4}), state)
    assert saver.seconds > 0


if __name__ == "__main__":
    go_on(Path(sys.argv[1]))

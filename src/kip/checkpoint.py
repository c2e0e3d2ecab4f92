"""Checkpoints of a run: its whole `State` in one file, written atomically, verified, and resumed from to the bit.

A checkpoint is a safetensors file with one tensor per leaf of the state, which any reader of the format opens. Its
metadata hold the settings it belongs to and the SHA-256 of the whole file, so that a single flipped bit shows. Nothing
is unpickled: the optimiser's tree comes from a template.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from kip._version import __version__
from kip.algorithm import Checkpoint, State
from kip.data.checks import check_memory, megabytes, memory_limit
from kip.files import Bytes, flush_folder, remove_partials, sha256, write_atomic
from kip.kernels.base import precision

SCHEMA = 2
KEPT = 2
"""How many checkpoints are kept: the last one may turn out to be damaged."""

HEADER_LIMIT = 16 * 2**20
"""A longer header than this is not one of ours."""

_NAME = re.compile(r"checkpoint-([0-9]{1,18})\.safetensors")
_DIGEST_KEY = b'"sha256":"'
_BLANK = b"0" * 64
"""Stands in the digest's place while the digest is computed."""

_UNSEALED = "1"
"""The schema whose checksum was computed in another way."""

_READ_SIZE = 2**20


class DamagedError(Exception):
    """A file is not the checkpoint that was written, or never was one."""


def save(folder: Path, state: State, identity: Mapping[str, Any]) -> Path:
    """Write `state` to `checkpoint-<step>.safetensors` in `folder`, whole or not at all; the last two are kept.

    `identity` is what the state belongs to, as JSON values: the options and the hash of the data. After an OSError,
    such as a full disk, the checkpoints that were there are still there.
    """
    folder = Path(folder)
    path = folder / f"checkpoint-{state.step}.safetensors"
    parts = _encode(state, identity)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partials(folder, "checkpoint-*.safetensors")
        write_atomic(path, *parts)
        _prune(folder, state.step)
    except OSError as error:
        raise OSError(error.errno, _failure(path, sum(map(len, parts)), error)) from error
    return path


def latest(
    folder: Path,
    template: State,
    identity: Mapping[str, Any],
    *,
    say: Callable[[str], object] = warnings.warn,
) -> State | None:
    """The state of the newest undamaged checkpoint in `folder`, to the bit; None where there is none.

    `template` is a fresh state of the same run (`kip.algorithm.init`): it gives the optimiser's tree and the expected
    shapes and dtypes. Damaged files are skipped and reported through `say`. An undamaged checkpoint that belongs to
    other settings, or that this version cannot read, is a ValueError that shows the difference.
    """
    paths = list(_checkpoints(Path(folder)).values())
    while paths:
        path = paths.pop()
        try:
            return _read(path, template, identity, say)
        except DamagedError as error:
            then = f"going on from {paths[-1].name}" if paths else "there is none before it"
            say(f"{path} is damaged or not a checkpoint ({error}); {then}")
    return None


def clear(folder: Path) -> None:
    """Remove the checkpoints of a finished run, and what a killed one left half-written."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    remove_partials(folder, "checkpoint-*.safetensors")
    _remove(_checkpoints(folder).values())
    flush_folder(folder)


class Saver:
    """A hook that saves the state it is called with, once `every` seconds have gone by since the last save.

    `share`, where given, also spaces saves so far apart that they take no more than that fraction of the time.
    `before`, where given, is called first. `seconds` is the time spent saving so far, `saves` their number. `clock`
    counts seconds and should be monotonic; one that jumps back delays a save by `every` at most.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        every: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        share: float | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        if not every >= 0:
            raise ValueError(f"`every` must be a number of seconds, 0 or more; got {every}")
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"`share` must be a fraction of the time in (0, 1], or None; got {share}")
        self.folder, self.identity, self.every, self.share = Path(folder), dict(identity), every, share
        self.seconds, self.saves, self.before = 0.0, 0, before
        self._clock = clock
        self._since = clock()
        self._wait = every

    def __call__(self, state: State) -> None:
        """Save `state` if it is time to."""
        now = self._clock()
        self._since = min(self._since, now)
        if now - self._since >= self._wait:
            self.save(state)

    def save(self, state: State) -> Path:
        """Save `state` now, whatever the time: before stopping on purpose."""
        begin = self._clock()
        if self.before is not None:
            self.before()
        path = save(self.folder, state, self.identity)
        self._since = self._clock()
        spent = max(0.0, self._since - begin)
        self.seconds += spent
        self.saves += 1
        self._wait = self.every if self.share is None else max(self.every, spent / self.share - spent)
        return path


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Files named as checkpoints by their steps, oldest first."""
    if not folder.is_dir():
        return {}
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _prune(folder: Path, step: int) -> None:
    """Keep the checkpoint of `step` and the one before it; later ones are damaged or of another run."""
    found = _checkpoints(folder)
    kept = [number for number in found if number <= step][-KEPT:]
    _remove(path for number, path in found.items() if number not in kept)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.is_dir():
            path.unlink(missing_ok=True)


def _failure(path: Path, size: int, error: OSError) -> str:
    good = list(_checkpoints(path.parent).values())
    kept = f"{good[-1].name}, the last good one, is kept" if good else "there is no other"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    move = "free some space and resume" if full else "make the folder writable and resume"
    return f"could not write {path}, {megabytes(size)} ({error.strerror or error}); {kept}; {move}"


def _tree(state: Any, evaluated: np.ndarray) -> Any:
    """What is stored as tensors: all but two whole numbers that may exceed 64 bits; one tensor for all evaluations."""
    return replace(state, key=None, step=None, evaluated=evaluated)


def _tensors(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by their paths, such as `opt_state[0].mu['x']` and `best[0].y`; of JAX random keys, their data."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    plain = ((path, jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in leaves)
    return {jax.tree_util.keystr(path).removeprefix("."): np.asarray(leaf, order="C") for path, leaf in plain}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _encode(state: State, identity: Mapping[str, Any]) -> list[Bytes]:
    """The bytes of the file in three parts: the middle one is the digest."""
    arrays = _tensors(_tree(state, np.asarray(state.evaluated, np.float64)))
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" and array.dtype != jnp.bfloat16:
            raise ValueError(f"`state` cannot be saved: {name} has dtype {array.dtype}; use another optimiser")
    about = {
        "sha256": _BLANK.decode(),
        "schema": str(SCHEMA),
        **_versions(),
        "step": str(state.step),
        "key": str(state.key),
        "identity": json.dumps(dict(identity), allow_nan=False, sort_keys=True),
    }
    data = memoryview(safetensors.numpy.save(arrays, about))
    begin, end = _digest_place(data)
    return [data[:begin], sha256(data).encode(), data[end:]]


def _digest_place(data: Bytes) -> tuple[int, int]:
    """Where the digest stands in a file that begins with `data`; its key cannot occur inside a JSON string."""
    length = 8 + int.from_bytes(data[:8], "little")
    begin = bytes(data[:length]).find(_DIGEST_KEY) + len(_DIGEST_KEY)
    if not len(_DIGEST_KEY) <= begin <= length - len(_BLANK):
        raise DamagedError("it has no checksum")
    return begin, begin + len(_BLANK)


def _versions() -> dict[str, str]:
    """The versions that the numbers depend on."""
    return {"kip": __version__, **{name: metadata.version(name) for name in ("jax", "numpy", "optax")}}


def _read(path: Path, template: State, identity: Mapping[str, Any], say: Callable[[str], object]) -> State:
    if not path.is_file():
        raise DamagedError("it is not a regular file")
    try:
        is_whole = _is_whole(path)
        with safetensors.safe_open(path, "np") as file:
            about = file.metadata() or {}
            if not is_whole and about.get("schema") != _UNSEALED:
                raise DamagedError("its checksum is wrong")
            _check_version(path, about, say)
            _check_identity(path, about, identity)
            check_memory(path, path.stat().st_size, memory_limit())
            arrays = _arrays(file)
    except safetensors.SafetensorError as error:
        raise DamagedError(f"it is not a readable safetensors file: {error}") from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DamagedError("the disk cannot read it") from None
    tree = _restored(path, arrays, template)
    return replace(tree, step=_number(about, "step"), key=_number(about, "key"))


def _arrays(file: Any) -> dict[str, np.ndarray]:
    try:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
    except AttributeError:  # of NumPy, which has no 8-bit floats
        raise DamagedError("it has dtypes that are never saved") from None


def _is_whole(path: Path) -> bool:
    """Whether every byte of the file is as written; takes memory for the header alone."""
    with path.open("rb") as file:
        opening = file.read(8)
        length = int.from_bytes(opening, "little")
        if length > min(path.stat().st_size - 8, HEADER_LIMIT):
            raise DamagedError("its header does not fit in the file")
        opening += file.read(length)
        begin, end = _digest_place(opening)
        digest = hashlib.sha256(opening[:begin] + _BLANK + opening[end:])
        while data := file.read(_READ_SIZE):
            digest.update(data)
    return digest.hexdigest().encode() == opening[begin:end]


def _number(about: Mapping[str, str], name: str) -> int:
    try:
        return int(about[name])
    except (KeyError, ValueError):
        raise DamagedError(f"its metadata have no integer {name!r}") from None


def _check_version(path: Path, about: Mapping[str, str], say: Callable[[str], object]) -> None:
    if (schema := _number(about, "schema")) != SCHEMA:
        before = "before the format of checkpoints changed" if schema < SCHEMA else "with a newer format of checkpoints"
        raise ValueError(
            f"{path} was written by kip {about.get('kip', '?')} {before} (schema {schema}; this version reads "
            f"{SCHEMA}); finish the run with the version that began it, or begin anew in another folder"
        )
    others = [
        f"{name} {about.get(name)} (here {here})" for name, here in _versions().items() if about.get(name) != here
    ]
    if others:
        say(f"{path} was written with {', '.join(others)}; the run can continue, but may differ in the last bits")


def _check_identity(path: Path, about: Mapping[str, str], identity: Mapping[str, Any]) -> None:
    try:
        stored = dict(_flat(json.loads(about["identity"])))
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedError(f"its identity is not readable: {error!r}") from None
    given = dict(_flat(json.loads(json.dumps(dict(identity)))))
    differences = [
        f"{name}: {_shown(stored, name)} in the checkpoint, {_shown(given, name)} given"
        for name in sorted(stored.keys() | given.keys())
        if (name in stored) != (name in given) or stored.get(name) != given.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path} belongs to other settings ({'; '.join(differences)}). "
            "Resume with the checkpoint's, or begin anew in another folder"
        )


def _flat(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested mappings by dotted names, so that a difference is shown where it lies."""
    for key, value in entries.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(entries: Mapping[str, Any], name: str) -> str:
    return json.dumps(entries[name], ensure_ascii=False, sort_keys=True) if name in entries else "nothing"


def _restored(path: Path, arrays: Mapping[str, np.ndarray], template: State) -> State:
    """The state with these tensors, in the template's tree; `key` and `step` are not among them."""
    evaluated = arrays.get("evaluated")
    if evaluated is None or evaluated.dtype != np.float64 or evaluated.ndim != 1:
        raise DamagedError("its evaluations are not a list of numbers")
    kept = sum(re.fullmatch(r"best\[[0-9]+\]\.loss", name) is not None for name in arrays)
    empty = Checkpoint(0.0, 0, template.x, template.y, template.log_params)
    expected = _tree(replace(template, best=(empty,) * kept), evaluated)
    wanted = _tensors(expected)
    here, there = _forms(wanted), _forms(arrays)
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"{path} cannot be continued: it has {there.get(name, 'nothing')} as {name}, where this run has "
                f"{here.get(name, 'nothing')}. Resume with the same optimiser, or begin anew in another folder"
            )
    leaves, structure = jax.tree.flatten(expected)
    # Under the 64-bit switch nothing is narrowed on its way back into JAX.
    with precision(np.float64):
        found = [_like(leaf, arrays[name]) for leaf, name in zip(leaves, wanted, strict=True)]
    return replace(jax.tree.unflatten(structure, found), evaluated=tuple(evaluated.tolist()))


def _forms(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: f"{array.dtype.name} {array.shape}" for name, array in arrays.items()}


def _like(leaf: Any, array: np.ndarray) -> Any:
    """The array as what the template has there: a plain number, a JAX random key, a JAX or a NumPy array."""
    if type(leaf) in (int, float):
        return type(leaf)(array)
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array

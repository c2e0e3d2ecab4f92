"""Checkpoints of a run: its whole `State` in one file, written atomically, verified, and resumed from to the bit.

A checkpoint is a safetensors file, one tensor a leaf of the state, that any reader of the format opens. Its metadata
say what it belongs to, and begin with the SHA-256 of every other byte of the file, so that a single flipped bit shows.
Nothing is ever unpickled: what has no tensor (the optimiser's tree) comes from a template.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kip._version import __version__
from kip.algorithm import Checkpoint, State
from kip.data.checks import check_memory, megabytes, memory_limit
from kip.files import flush_folder, remove_partials, sha256, write_atomic
from kip.kernels.base import precision

SCHEMA = 1
KEPT = 2
"""So many of the last checkpoints are kept, since the last may turn out damaged."""

HEADER_LIMIT = 16 * 2**20
"""A longer header than this is not one of ours."""

_NAME = re.compile(r"checkpoint-([0-9]{1,18})\.safetensors")
_OPENING = b'{"__metadata__":{"sha256":"'
_DIGEST_LENGTH = 64
_READ_SIZE = 2**20
_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
"""safetensors' name of each dtype."""

_DTYPES = {code: jnp.dtype(name) for name, code in _CODES.items()}


class DamagedError(Exception):
    """A file is not the checkpoint that was written, or never was one."""


class _Best(NamedTuple):
    loss: Any
    step: Any
    x: Any
    y: Any
    log_params: Any


class _Tree(NamedTuple):
    """A state as a pytree of arrays; its leaves' paths name the tensors (`opt_state[0].mu['x']`, `best[0].y`)."""

    x: Any
    y: Any
    log_params: Any
    mask: Any
    opt_state: Any
    best: Any
    judged: Any


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies in the payload of a file, and what it is."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class _Contents:
    """A file whose checksum was found right: its metadata, its tensors, and where the payload begins."""

    metadata: dict[str, str]
    tensors: dict[str, _Tensor]
    payload: int


def save(folder: Path, state: State, identity: Mapping[str, Any]) -> Path:
    """Write `state` to `checkpoint-<step>.safetensors` in `folder`, whole or not at all; the last two are kept.

    `identity` is what the state belongs to, as JSON values: the options and the hash of the data. An OSError, for a
    full disk say, leaves the checkpoints that were there.
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
        raise OSError(error.errno, _failure(path, sum(len(part) for part in parts), error)) from error
    return path


def latest(
    folder: Path,
    template: State,
    identity: Mapping[str, Any],
    *,
    say: Callable[[str], object] = warnings.warn,
) -> State | None:
    """The state of the newest checkpoint in `folder` that is whole, to the bit; None where there is none.

    `template` is a fresh state of the same run (`kip.algorithm.init`): it gives the optimiser's tree, and the shapes
    and dtypes there must be. Damaged files are passed over and told of through `say`. A checkpoint that is whole but
    belongs to other settings, or cannot be read by this version, is a ValueError that shows the difference.
    """
    paths = _checkpoints(Path(folder))
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
    _remove(_checkpoints(folder))
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


def _checkpoints(folder: Path) -> list[Path]:
    """Files named as checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def _prune(folder: Path, step: int) -> None:
    """Keep the checkpoint of `step` and what came just before; later ones were found damaged, or are of another run."""
    before = [path for path in _checkpoints(folder) if _step_of(path) <= step]
    _remove(set(_checkpoints(folder)) - set(before[-KEPT:]))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.is_dir():
            path.unlink(missing_ok=True)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _failure(path: Path, size: int, error: OSError) -> str:
    good = _checkpoints(path.parent)
    kept = f"{good[-1].name}, the last good one, is kept" if good else "there is no other"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    move = "free some space and resume" if full else "make the folder writable and resume"
    return f"could not write {path}, {megabytes(size)} ({error.strerror or error}); {kept}; {move}"


def _tree(state: State) -> _Tree:
    best = tuple(_Best(np.float64(c.loss), np.int64(c.step), c.x, c.y, c.log_params) for c in state.best)
    judged = np.asarray(state.evaluated, np.float64)
    return _Tree(state.x, state.y, state.log_params, state.mask, state.opt_state, best, judged)


def _leaves(tree: _Tree) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path).removeprefix("."): leaf for path, leaf in paths}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """A leaf as a contiguous, little-endian array; of a JAX random key, its data."""
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _raw(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _encode(state: State, identity: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The parts of the file; the arrays are not copied."""
    arrays = {name: _plain(leaf) for name, leaf in _leaves(_tree(state)).items()}
    # Wide dtypes first, so that every tensor is aligned.
    names = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    header: dict[str, Any] = {"__metadata__": {"sha256": "", **_metadata(state, identity)}}
    begin = 0
    for name in names:
        array = arrays[name]
        if array.dtype.name not in _CODES:
            raise ValueError(f"`state` cannot be saved: {name} has dtype {array.dtype}; use another optimiser")
        end = begin + array.nbytes
        code = _CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    rest = text.removeprefix(_OPENING)
    rest += b" " * (-(len(text) + _DIGEST_LENGTH) % 8)
    opening = (len(_OPENING) + _DIGEST_LENGTH + len(rest)).to_bytes(8, "little") + _OPENING
    payload = [_raw(arrays[name]) for name in names]
    return [opening, sha256(opening, rest, *payload).encode(), rest, *payload]


def _metadata(state: State, identity: Mapping[str, Any]) -> dict[str, str]:
    return {
        "schema": str(SCHEMA),
        **_versions(),
        "step": str(state.step),
        "key": str(state.key),
        "best": str(len(state.best)),
        "identity": json.dumps(dict(identity), allow_nan=False, sort_keys=True),
    }


def _versions() -> dict[str, str]:
    """What the numbers depend on."""
    return {"kip": __version__, "jax": jax.__version__, "numpy": np.__version__, "optax": optax.__version__}


def _read(path: Path, template: State, identity: Mapping[str, Any], say: Callable[[str], object]) -> State:
    if not path.is_file():
        raise DamagedError("it is not a regular file")
    try:
        with path.open("rb") as file:
            contents = _verify(file, path.stat().st_size)
            about = contents.metadata
            _check_version(path, about, say)
            _check_identity(path, about, identity)
            check_memory(path, path.stat().st_size, memory_limit())
            expected = _expected(contents, template)
            _check_structure(path, contents, expected)
            arrays = {name: _read_tensor(file, contents.payload, t) for name, t in contents.tensors.items()}
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DamagedError("the disk cannot read it") from None
    leaves = [arrays[name] for name in _leaves(expected)]
    tree = jax.tree.unflatten(jax.tree.structure(expected), leaves)
    return _state(tree, template, step=_number(about, "step"), key=_number(about, "key"))


def _verify(file: BufferedReader, size: int) -> _Contents:
    """The header, once every byte of the file is known to be as written. Takes memory for the header alone."""
    length = int.from_bytes(file.read(8), "little")
    if not len(_OPENING) + _DIGEST_LENGTH < length <= min(size - 8, HEADER_LIMIT):
        raise DamagedError("its header does not fit in the file")
    header = file.read(length)
    digest = hashlib.sha256(length.to_bytes(8, "little"))
    rest = header[len(_OPENING) + _DIGEST_LENGTH :]
    digest.update(header[: len(_OPENING)] + rest)
    while data := file.read(_READ_SIZE):
        digest.update(data)
    if header != _OPENING + digest.hexdigest().encode() + rest:
        raise DamagedError("its checksum is wrong")
    metadata, tensors = _parse(header)
    end = 0
    for tensor in sorted(tensors.values(), key=lambda t: (t.begin, t.end)):
        if tensor.begin != end:
            raise DamagedError("its tensors overlap, or leave gaps")
        end = tensor.end
    if 8 + length + end != size:
        raise DamagedError("its tensors are not as long as the file")
    return _Contents(metadata, tensors, 8 + length)


def _parse(header: bytes) -> tuple[dict[str, str], dict[str, _Tensor]]:
    # A right checksum is no proof that we wrote it: a stranger can compute one too.
    try:
        entries = json.loads(header)
        metadata = entries.pop("__metadata__")
        tensors = {name: _tensor(**entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedError(f"its header is not ours: {error!r}") from None
    if not all(isinstance(value, str) for value in metadata.values()):
        raise DamagedError("its metadata are not text")
    return metadata, tensors


def _tensor(dtype: str, shape: list[int], data_offsets: list[int]) -> _Tensor:
    begin, end = data_offsets
    numbers = (*shape, begin, end)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"sizes and offsets must be natural numbers; got {numbers}")
    if end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"a {dtype} tensor of {shape} does not fill {end - begin} bytes")
    return _Tensor(_DTYPES[dtype], tuple(shape), begin, end)


def _number(about: Mapping[str, str], name: str) -> int:
    text = about.get(name, "")
    if not re.fullmatch(r"-?[0-9]{1,1000}", text):
        raise DamagedError(f"its metadata have no whole number {name!r}")
    return int(text)


def _check_version(path: Path, about: Mapping[str, str], say: Callable[[str], object]) -> None:
    schema, writer = _number(about, "schema"), about.get("kip", "?")
    if schema != SCHEMA:
        raise ValueError(
            f"{path} cannot go on with kip {__version__}: it has schema {schema}, and {SCHEMA} is what is read here. "
            f"Resume with kip {writer}, or begin anew in another folder"
        )
    others = [
        f"{name} {about.get(name)} (here {here})" for name, here in _versions().items() if about.get(name) != here
    ]
    if others:
        say(f"{path} was written with {', '.join(others)}; the run can go on, but may differ in the last bits")


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


def _expected(contents: _Contents, template: State) -> _Tree:
    """The tree the file should hold: the template's, with as many judgements and best support sets as it says."""
    count = _number(contents.metadata, "best")
    judged = contents.tensors.get("judged")
    if not 0 <= count <= len(contents.tensors) or judged is None or len(judged.shape) != 1:
        raise DamagedError("its judgements are not all there")
    like = _Best(np.float64(0), np.int64(0), template.x, template.y, template.log_params)
    scores = np.broadcast_to(np.float64(0), judged.shape)
    return _tree(template)._replace(best=(like,) * count, judged=scores)


def _check_structure(path: Path, contents: _Contents, expected: _Tree) -> None:
    wanted = {name: _form(_plain(leaf)) for name, leaf in _leaves(expected).items()}
    found = {name: _form(tensor) for name, tensor in contents.tensors.items()}
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} cannot go on: it has {found.get(name, 'nothing')} as {name}, where this run has "
                f"{wanted.get(name, 'nothing')}. Resume with the same optimiser, or begin anew in another folder"
            )


def _form(array: np.ndarray | _Tensor) -> str:
    return f"{array.dtype.name} {array.shape}"


def _read_tensor(file: BufferedReader, payload: int, tensor: _Tensor) -> np.ndarray:
    array = np.empty(tensor.shape, tensor.dtype)
    file.seek(payload + tensor.begin)
    if file.readinto(_raw(array)) != array.nbytes:
        raise DamagedError("it shrank while it was read")
    return array


def _state(tree: _Tree, template: State, *, step: int, key: int) -> State:
    best = tuple(Checkpoint(float(b.loss), int(b.step), b.x, b.y, b.log_params) for b in tree.best)
    # Under the 64-bit switch nothing is narrowed on its way back into JAX.
    with precision(np.float64):
        opt_state = jax.tree.map(_to_jax, tree.opt_state, template.opt_state)
    judged = tuple(tree.judged.tolist())
    return State(tree.x, tree.y, tree.log_params, tree.mask, opt_state, key, step, best, judged)


def _to_jax(array: np.ndarray, like: Any) -> jax.Array:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array)

"""Every reader of the package, each with valid files to damage and a word of what must come of them.

Whatever the bytes, a reader gives what it promises or raises one line (`ALLOWED`), takes no more memory than the limit,
and writes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import CycloptsError
from tests.faults.inputs import SEEDS, bounded, outcome, surrounded

import kip
from kip import algorithm, checkpoint, cli, runs
from kip.gram_cache import CachedGram, Store
from kip.options import Options
from kip.task import prepare

ALLOWED = (ValueError, FileNotFoundError, CycloptsError)


@dataclass(frozen=True)
class Reader:
    """What reads `path`; `seeds` are valid contents, `finish` mends a damaged one so that it gets past the checksum."""

    path: Path
    seeds: tuple[bytes, ...]
    read: Callable[[], object]
    finish: Callable[[bytes], bytes] = bytes
    beside: Callable[[bytes], object] | None = None

    def attack(self, content: bytes) -> None:
        """Read these contents; an AssertionError, or whatever else comes out, is a finding."""
        content = self.finish(content)
        self.path.write_bytes(content)
        if self.beside is not None:
            self.beside(content)
        before = self._listing()
        word = "read"
        with bounded():
            try:
                self.read()
            except ALLOWED as error:
                word = str(error).strip()
        assert word, "an error must have a word"
        assert self._listing() == before

    def _listing(self) -> dict[str, int]:
        return {str(p): p.stat().st_size for p in self.path.parent.rglob("*")}


def readers(root: Path) -> dict[str, Reader]:
    """All readers, each in a folder of its own below `root`."""
    made: dict[str, Callable[[Path], Reader]] = {
        **{name: lambda folder, name=name: _data(name, folder) for name in SEEDS},
        "distilled.json": _description,
        "distilled.safetensors": _arrays,
        "distilled.safetensors, resealed": _resealed_arrays,
        "checkpoint": _checkpoint,
        "checkpoint, resealed": _resealed_checkpoint,
        "config.json": _config,
        "TOML": _toml,
        "history.jsonl": _history,
        "Gram tile": _tile,
    }
    found = {}
    for number, (name, make) in enumerate(made.items()):
        folder = root / str(number)
        folder.mkdir(parents=True)
        found[name] = make(folder)
    return found


def _data(name: str, folder: Path) -> Reader:
    path, place, seeds = surrounded(name, folder)
    return Reader(path, seeds, lambda: outcome(place))


def _saved(folder: Path, **more: Any) -> kip.DistilledSet:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 4, 4)).astype(np.uint8)
    small = kip.distill(x, np.repeat(["a", "b"], 20), size=2, steps=1, **more)
    small.save(folder)
    return small


RAW = np.zeros((1, 4, 4), np.uint8)


def _used(folder: Path) -> None:
    """Open a set and use what a reader of strangers' sets would use."""
    small = kip.load(folder)
    small.images()
    small.certificate()
    assert len(small.classes) == small.y.shape[1]
    assert small.predict(RAW)[0] in small.classes


def _description(folder: Path) -> Reader:
    _saved(folder, corruption=0.5, preprocess="zca")
    path = folder / "distilled.json"
    text = path.read_bytes()
    return Reader(path, (text, json.dumps(json.loads(text)).encode()), lambda: _used(folder))


def _arrays(folder: Path) -> Reader:
    _saved(folder)
    path = folder / "distilled.safetensors"
    return Reader(path, (path.read_bytes(),), lambda: _used(folder))


def _resealed_arrays(folder: Path) -> Reader:
    """The same with the right hash in the description, as one who made the file would have put it."""
    _saved(folder, corruption=0.5)
    about = json.loads((folder / "distilled.json").read_text())

    def reseal(content: bytes) -> None:
        about["hashes"]["distilled.safetensors"] = hashlib.sha256(content).hexdigest()
        (folder / "distilled.json").write_text(json.dumps(about))

    path = folder / "distilled.safetensors"
    return Reader(path, (path.read_bytes(),), lambda: _used(folder), beside=reseal)


def _checkpoint(folder: Path) -> Reader:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 4, 4)).astype(np.uint8)
    options = Options(size=2, steps=2, labels="learned", corruption=0.3, evaluate_every=1, augment="none")
    task = prepare(x, np.repeat(["a", "b"], 20), options)
    fresh = algorithm.init(task.problem, task.config, key=0)
    state = algorithm.run(task.problem, task.config, fresh)
    identity = dataclasses.asdict(options)
    path = checkpoint.save(folder, state, identity)
    said: list[str] = []
    return Reader(path, (path.read_bytes(),), lambda: checkpoint.latest(folder, fresh, identity, say=said.append))


def _resealed_checkpoint(folder: Path) -> Reader:
    return dataclasses.replace(_checkpoint(folder), finish=sealed)


def sealed(data: bytes) -> bytes:
    """A file with the checksum of its contents, as a stranger who knows how it is computed would write it."""
    try:
        begin, end = checkpoint._digest_place(data)
    except checkpoint.DamagedError:
        return data
    digest = hashlib.sha256(data[:begin] + checkpoint._BLANK + data[end:]).hexdigest().encode()
    return data[:begin] + digest + data[end:]


def _parsed(*tokens: str) -> None:
    """Everything the command line does before a command begins."""
    app = cli.build(cli._config(tokens))
    app.parse_args(tokens, exit_on_error=False, print_error=False)


def _config(folder: Path) -> Reader:
    config = {"command": "distill", "version": "0", "data": "digits", "size": 10, "kernel": "rbf", "ridge": 1e-6}
    config |= {"batch": None, "learn_kernel": False, "time_budget": "10m", "augment": "digits", "draws": 3}
    seeds = (json.dumps(config, indent=2).encode(), json.dumps(config).encode())

    def read() -> None:
        runs.read_config(folder)
        _parsed("distill", "--resume", "--out", str(folder))

    return Reader(folder / "config.json", seeds, read)


def _toml(folder: Path) -> Reader:
    path = folder / "kip.toml"
    seeds = (
        b'[distill]\nsize = 20\nkernel = "fc1"\nridge = 1e-3\nlearn-kernel = true\n',
        b'[distill]\ndata = "digits"\n[evaluate]\nkernels = "rbf"\n[data.fetch]\n',
    )
    return Reader(path, seeds, lambda: _parsed("distill", "--config", str(path)))


def _history(folder: Path) -> Reader:
    line = b'{"step": %d, "loss": 0.5, "evaluated": 0.25, "seconds": 1.5}\n'
    seeds = (b"".join(line % step for step in range(1, 6)),)

    def read() -> None:
        entries = runs.read_history(folder)
        assert all(isinstance(entry["step"], int) for entry in entries)
        assert runs.seconds_until(folder, 3) >= 0

    return Reader(folder / runs.HISTORY, seeds, read)


def _tile(folder: Path) -> Reader:
    """A tile that is not whole is computed again, and so written again: what is read back is right in any case."""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    kept = CachedGram(kip.kernel("linear"), Store(folder))
    right = kept.gram(x, x + 1)
    (path,) = folder.iterdir()
    data = path.read_bytes()

    def read() -> None:
        np.testing.assert_array_equal(CachedGram(kip.kernel("linear"), Store(folder)).gram(x, x + 1), right)
        path.write_bytes(content)

    content = data

    def remember(given: bytes) -> None:
        nonlocal content
        content = given

    return Reader(path, (data,), read, beside=remember)

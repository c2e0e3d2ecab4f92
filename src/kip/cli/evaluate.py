"""`kip evaluate`: a distilled set's accuracy under kernels it was not made for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from kip import runs
from kip._version import __version__
from kip.cli import common
from kip.cli.options import (
    CACHE_HELP,
    CONFIG_HELP,
    DATA,
    FIT_HELP,
    RUNNING,
    SKIP_UNREADABLE_HELP,
)
from kip.cli.progress import say, show
from kip.files import as_text
from kip.options import DataOptions

if TYPE_CHECKING:
    import numpy as np

    from kip.artefact import DistilledSet
    from kip.cli.watch import Watch
    from kip.data import Dataset

USUAL = ("rbf", "fc1", "fc2")
"""Kernels tried where none is named: those that cost little."""


def evaluate(
    run: Annotated[list[Path], Parameter(help="Folders of runs, or of distilled sets.", negative="")],
    /,
    *,
    kernels: Annotated[
        str | None,
        Parameter(
            show_default=lambda _: "those it was made for, " + ",".join(USUAL),
            help="Kernels with commas between; a network's name means its NTK and its NNGP, fc1:nngp one of them.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        Parameter(
            group=DATA,
            show_default=lambda _: "the test part of the run's own data",
            help="Data to test on: a data set's name, or a path, of which its test part is tested if it has one, and "
            "everything otherwise.",
        ),
    ] = None,
    label: Annotated[str | None, Parameter(group=DATA, help="Column of a .csv that holds the classes.")] = None,
    resize: Annotated[int | None, Parameter(group=DATA, help="Bring the images of a folder to this size.")] = None,
    fit: Annotated[
        Literal["crop", "pad", "stretch"] | None,
        Parameter(group=DATA, show_default=lambda _: "that of the run", help=FIT_HELP),
    ] = None,
    skip_unreadable: Annotated[
        bool, Parameter(group=DATA, negative="", show_default=False, help=SKIP_UNREADABLE_HELP)
    ] = False,
    picture: Annotated[
        Path | None,
        Parameter(
            group=RUNNING,
            show_default=lambda _: "evaluate.png in the run, or beside them",
            help="The matrix of runs by kernels.",
        ),
    ] = None,
    device: Annotated[str | None, Parameter(group=RUNNING, help="JAX device, such as cpu or gpu:1.")] = None,
    cache: Annotated[Path | None, Parameter(group=RUNNING, help=CACHE_HELP)] = None,
    config: Annotated[Path | None, Parameter(group=RUNNING, help=CONFIG_HELP)] = None,
) -> int:
    """Score distilled sets on test data under kernels of your choice.

    Shows whether a set carries over to kernels it was not made for. Writes
    evaluate.json into each folder, and draws the matrix of kernels.

    For example:

        kip evaluate runs/digits-rbf-10-s0
        kip evaluate runs/mnist-rbf-100-s0 --kernels rbf,fc1,conv2
        kip evaluate runs/flowers-rbf-10-s0 --data later.csv
        kip evaluate runs/mnist-* --kernels fc1,fc2 --picture transfer.png
    """
    del config  # read before the command is called
    from kip.artefact import load
    from kip.cli.watch import Watch

    common.use_device(device)
    watch = Watch(cache)
    sets = [load(folder) for folder in run]
    places = [data_of(folder, data, label, resize, fit, skip_unreadable) for folder in run]
    found = []
    loaded: dict[_Place, Dataset] = {}
    specs = _specs(kernels, sets)
    for folder, small, options in zip(run, sets, places, strict=True):
        place = _Place(options, own=data is None or _is_own(folder, data))
        if place not in loaded:
            loaded[place] = common.load_data(options, whole=not place.own, describe=place.tested)
        found.append(_scored(small, loaded[place], specs, as_text(folder.name), watch))
        _write(folder, options, loaded[place], found[-1])
    show(_table(run, sets, found))
    place_of_picture = picture or _beside(run)
    _draw(place_of_picture, [as_text(folder.name) for folder in run], found)
    say(f"drawn in {place_of_picture}")
    say(f"written to {', '.join(str(folder / 'evaluate.json') for folder in run)}")
    return 0


@dataclass(frozen=True)
class _Place:
    """Where test points come from, and whether a run learned from the same data."""

    options: DataOptions
    own: bool

    def tested(self, dataset: Dataset) -> str:
        """The line that says which points of the data set are tested."""
        count, kind = len(dataset.x_test), "rows" if dataset.x_test.ndim == 2 else "images"
        if _all_tested(dataset):
            return f"{dataset.name}: all {count:,} {kind} are tested"
        if self.own and not dataset.test_given:
            return f"{dataset.name}: the {count:,} {kind} that the run set aside are tested"
        return f"{dataset.name}: its test part of {count:,} {kind} is tested"


def _all_tested(dataset: Dataset) -> bool:
    """Whether all points that were found are tested, since no test part came with them."""
    return not dataset.test_given and not len(dataset.x_train)


def data_of(
    folder: Path,
    data: str | None,
    label: str | None,
    resize: int | None,
    fit: Literal["crop", "pad", "stretch"] | None = None,
    skip_unreadable: bool = False,
) -> DataOptions:
    """The data given, or those of the run; they are read as the run read its own, where nothing else is said."""
    described = (folder / runs.CONFIG).is_file()
    if data is None and not described:
        raise ValueError(f"{folder} does not say what data it is of (it has no {runs.CONFIG}); give --data")
    stored = runs.read_config(folder) if described else {}
    own = data is None or _is_own(folder, data)
    names = ("label", "resize", "layout", "fit", "skip_unreadable", *(("data", "source") if own else ()))
    place = {name: stored.get(name) for name in names}
    given = {"data": data, "label": label, "resize": resize, "fit": fit, "skip_unreadable": skip_unreadable or None}
    place |= {name: value for name, value in given.items() if value is not None}
    return DataOptions(**{name: value for name, value in place.items() if value is not None})


def _is_own(folder: Path, data: str) -> bool:
    """Whether `data` is what the run in `folder` learned from, as its configuration says."""
    return (folder / runs.CONFIG).is_file() and runs.read_config(folder).get("data") == common.lasting(data)


def _specs(kernels: str | None, sets: Sequence[DistilledSet]) -> list[str]:
    """The kernels to score under, in canonical spelling; those of networks as NTK and as NNGP."""
    from kip.kernels import family, kernel

    if kernels is not None:
        given = [name.strip() for name in kernels.split(",") if name.strip()]
        if not given:
            raise ValueError(f"`--kernels` names no kernel; got {kernels!r}. Write rbf,fc1")
    else:
        given = [*dict.fromkeys(small.kernel for small in sets), *USUAL]
    specs: list[str] = []
    for name in given:
        if "+" in name:
            specs.append("+".join(k.spec for k in family(name)))
        else:
            specs += [kernel(twin).spec for twin in _twins(name)]
    return list(dict.fromkeys(specs))


def _twins(name: str) -> tuple[str, ...]:
    """A network's NTK and NNGP, unless the name says which of them."""
    from kip.kernels.network import named

    stem, *options = name.lower().split(":")
    said = {"ntk", "nngp"} & set(options)
    return (name, f"{name}:nngp") if named(stem) is not None and not said else (name,)


def _scored(small: DistilledSet, dataset: Dataset, specs: Sequence[str], name: str, watch: Watch) -> dict[str, float]:
    import numpy as np

    from kip.cli.watch import pass_pairs
    from kip.execution import DEFAULT
    from kip.kernels import family

    truth = codes(small, dataset, dataset.y_test)
    found = {}
    for spec in specs:
        bare, shape = small.kernels if spec == small.kernel else family(spec), small.x.shape[1:]
        kernels, slow = watch.kernels(bare, shape), any(kernel.expensive(shape) for kernel in bare)
        total = pass_pairs(kernels, len(small), small.x, len(dataset.x_test), DEFAULT)
        with watch.over(f"scoring {name} under {spec}", slow, total):
            scores = small.scores(dataset.x_test, kernels)
        found[spec] = float(np.mean(np.argmax(scores, axis=1) == truth))
    return found


def codes(small: DistilledSet, dataset: Dataset, labels: np.ndarray) -> np.ndarray:
    """The data's labels, which are indices of its own classes, as indices of the set's."""
    import numpy as np

    from kip.data.readers.base import listed

    index = {str(name): code for code, name in enumerate(small.classes)}
    unknown = [name for name in dataset.classes if name not in index]
    if unknown:
        raise ValueError(
            f"`--data` {dataset.name} has the class {unknown[0]!r}, which the set does not know; "
            f"it knows {listed(list(index))}. Remove the points of that class, or give other data."
        )
    return np.array([index[name] for name in dataset.classes])[labels]


def _write(folder: Path, place: DataOptions, dataset: Dataset, found: dict[str, float]) -> None:
    from kip.files import write_json

    part = "all" if _all_tested(dataset) else "test"
    about = {"version": __version__, "data": as_text(place.data), "part": part, "test_size": len(dataset.x_test)}
    write_json(folder / "evaluate.json", {**about, "test_accuracy": found})


def _table(folders: Sequence[Path], sets: Sequence[DistilledSet], found: Sequence[dict[str, float]]) -> Table:
    """Kernels down, runs across; a star where a set was made for the kernel."""
    table = Table(title="test accuracy, %", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("kernel")
    for folder in folders:
        table.add_column(as_text(folder.name), justify="right", overflow="fold")
    for spec in found[0]:
        cells = [
            f"[bold green]{100 * row[spec]:.2f} *[/]" if spec in _made_for(small) else f"{100 * row[spec]:.2f}  "
            for small, row in zip(sets, found, strict=True)
        ]
        table.add_row(spec + _kind(spec), *cells)
    table.caption, table.caption_justify = "* made for this kernel", "left"
    return table


def _made_for(small: DistilledSet) -> set[str]:
    return {small.kernel, *(kernel.spec for kernel in small.kernels)}


def _kind(spec: str) -> str:
    return "" if len(_twins(spec)) == 1 else " [dim]NTK[/]"


def _beside(folders: Sequence[Path]) -> Path:
    """Where the picture goes: into the one folder, or beside them all."""
    if len(folders) == 1:
        return folders[0] / "evaluate.png"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "evaluate.png"


def _draw(path: Path, names: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    import numpy as np

    from kip.files import write_atomic
    from kip.report import pictures

    values = np.array([list(row.values()) for row in found])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, pictures.matrix(values, names, list(found[0]), "distilled set", "tested under"))

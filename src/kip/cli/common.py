"""What `distill` and `label-solve` share: data and device made ready, runs repeated over seeds, results written."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kip import runs
from kip._version import __version__
from kip.cli.options import check, spelt
from kip.cli.progress import Interrupt, say, show, working
from kip.files import absolute, as_path
from kip.options import DataOptions, Options, RunOptions, SetOptions, declared

if TYPE_CHECKING:
    import numpy as np

    from kip.artefact import DistilledSet
    from kip.cli.measure import Measured
    from kip.cli.watch import Watch
    from kip.data import Dataset
    from kip.plan import Expected
    from kip.task import Outline, Task

BEGUN_BEFORE = "finish it with the version of kip that began it, or begin anew in another folder"


@dataclass(frozen=True)
class Done:
    """What one run came to: its folder, its test accuracy, and the exit status it asks for."""

    folder: Path
    seed: int
    accuracy: float
    status: int = 0


def use_device(name: str | None) -> None:
    """Make `name`, a platform with an index after a colon, the device JAX computes on."""
    if name is None:
        return
    import jax

    platform, _, index = name.partition(":")
    try:
        device = jax.devices(platform)[int(index or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ValueError(f"`--device` {name!r} is not on this machine, which has {known}") from None
    jax.config.update("jax_default_device", device)


def _parts(dataset: Dataset) -> str:
    shape = "×".join(map(str, dataset.x_train.shape[1:]))
    return (
        f"{dataset.name}: {len(dataset.x_train):,} training and {len(dataset.x_test):,} test points of {shape}, "
        f"{len(dataset.classes)} classes"
    )


def load_data(options: DataOptions, *, whole: bool = False, describe: Callable[[Dataset], str] = _parts) -> Dataset:
    """The data set asked for, with a line of what it is and of what had to be done to get it.

    With `whole`, a path without a test part of its own is not split: all of it is tested.
    """
    from kip.data import load

    dataset = load(
        options.data,
        label=_column(options.label),
        resize=options.resize,
        fit=options.fit,
        skip_unreadable=options.skip_unreadable,
        whole=whole,
        source=options.source,
        layout=options.layout,
        say=say,
    )
    say(describe(dataset))
    for note in dataset.notes:
        say(f"  {note}")
    return dataset


def _column(label: str | None) -> str | int | None:
    return int(label) if label is not None and label.lstrip("-").isdigit() else label


def class_names(dataset: Dataset) -> tuple[Any, ...]:
    """The classes as labels: integers where all of them are, so that what is predicted compares with the data's own."""
    if all(name.isascii() and str(name).lstrip("-").isdigit() and str(int(name)) == name for name in dataset.classes):
        return tuple(int(name) for name in dataset.classes)
    return dataset.classes


def outlined(dataset: Dataset, options: Options) -> Outline:
    """The task of a data set, checked, before anything is computed."""
    import numpy as np

    from kip.artefact import load
    from kip.task import Own, outline

    classes = class_names(dataset)
    options = dataclasses.replace(options, kind=options.kind or dataset.kind)
    own = Own()
    if options.start is not None:
        start = absolute(options.start)
        options, own = dataclasses.replace(options, start=start), Own(start=load(as_path(start)))
    return outline(dataset.x_train, np.asarray(classes)[dataset.y_train], options, own, classes=classes)


def ready(dataset: Dataset, options: Options) -> Task:
    """The task of a data set, prepared."""
    return outlined(dataset, options).prepared()


def described(
    command: str, task: Task, around: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What `config.json` holds: every option as it was used, so that `--config` repeats the run."""
    used = {**around, **more, **dataclasses.asdict(task.options)}
    return {"command": command, "version": __version__, **used, "data": lasting(around["data"])}


def identity(task: Task, dataset: Dataset) -> dict[str, Any]:
    """What the checkpoints of a run belong to: its options and the data."""
    import hashlib

    import numpy as np

    digest = hashlib.sha256()
    for array in (dataset.x_train, dataset.y_train):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"options": dataclasses.asdict(task.options), "data": digest.hexdigest()}


def check_resumed(run: runs.Run, config: Mapping[str, Any]) -> None:
    """Refuse to continue a run that is finished, or with other options than it has."""
    if runs.is_finished(run.folder):
        raise ValueError(f"`--resume`: the run in {run.folder} is finished; there is nothing to continue")
    stored = runs.read_config(run.folder)
    free = {"version", "time_budget", *(name for name, _, option in declared(RunOptions) if option.free)}
    for name, value in config.items():
        if name in free or stored.get(name) == value:
            continue
        if value is not None and name not in stored:
            raise ValueError(
                f"`--resume`: the run in {run.folder} was begun by kip {stored.get('version', '?')}, "
                f"which had no option {name!r}; {BEGUN_BEFORE}"
            )
        raise ValueError(f"`{spelt(name)}` is {value} but the run in {run.folder} has {stored.get(name)}; leave it out")


def lasting(data: str) -> str:
    """The data set's name, or its path as it is found from anywhere."""
    from kip.data import NAMES

    name = data.strip().lower()
    return name if name in NAMES else absolute(data)


def check_early(data: DataOptions, options: SetOptions, running: RunOptions, *, resume: bool = False) -> None:
    """Refuse what can be refused before data are read, which may take a download."""
    from kip.artefact import load
    from kip.data import preprocess
    from kip.data.checks import check_augmentation
    from kip.gram_cache import Store
    from kip.kernels import family

    check(data, options, running)
    if (start := getattr(options, "start", None)) is not None:
        load(as_path(start).expanduser())
    preprocess.parse(options.preprocess)
    augment = getattr(options, "augment", None)
    if augment not in (None, "auto"):
        check_augmentation(augment, spelt("augment"))
    if not resume:
        for out in _outs(options.seed, running):
            if out is not None:
                runs.check_free(out)
    use_device(running.device)
    if options.kernel is not None:
        family(options.kernel, options.engine)
    if running.cache is not None:
        Store(running.cache)


def _outs(seed: int, running: RunOptions) -> list[Path | None]:
    """The folder given for each seed: itself for one seed, and one in it for each of several."""
    if running.out is None or running.seeds == 1:
        return [running.out] * running.seeds
    return [running.out / f"s{each}" for each in range(seed, seed + running.seeds)]


def over_seeds(seed: int, running: RunOptions, one: Callable[[int, Path | None], Done]) -> int:
    """Run `one(seed, out)` for each seed, and say what they came to together; give the exit status."""
    done: list[Done] = []
    for each, out in zip(range(seed, seed + running.seeds), _outs(seed, running), strict=True):
        done.append(one(each, out))
        if done[-1].status:
            return done[-1].status
    if len(done) > 1:
        _print_seeds(done)
    return 0


def _print_seeds(done: Sequence[Done]) -> None:
    import numpy as np

    accuracies = np.array([run.accuracy for run in done])
    table = Table(title=f"{len(done)} seeds", title_justify="left", title_style="bold")
    table.add_column("seed", justify="right")
    table.add_column("test accuracy", justify="right", no_wrap=True)
    table.add_column("folder")
    for run in done:
        table.add_row(str(run.seed), f"{100 * run.accuracy:.2f} %", str(run.folder))
    show(table)
    say(f"mean {100 * accuracies.mean():.2f} %, standard deviation {100 * accuracies.std(ddof=1):.2f}")


@dataclass(frozen=True)
class Story:
    """What a run knows about itself beside what is measured of its set: how it went and how to draw it.

    `usual_steps` are the default steps of such a run; None where nothing is learned step by step.
    """

    title: str
    config: dict[str, Any]
    stopped: str
    seconds: dict[str, float]
    more: dict[str, Any]
    pictures: Callable[[DistilledSet, Path], None]
    planned: Expected | None = None
    usual_steps: int | None = None


def conclude(
    run: runs.Run,
    small: DistilledSet,
    task: Task,
    dataset: Dataset,
    running: RunOptions,
    story: Story,
    interrupt: Interrupt,
    watch: Watch,
) -> Done:
    """Save, measure, draw and print; `metrics.json` comes last and makes the run a finished one.

    The set is saved before it is measured: what took long to learn is on the disk before anything else can fail.
    """
    from kip import machine
    from kip.cli import cautions, measure

    small = dataclasses.replace(small, config={"data": dataset.name, **small.config})
    small.save(run.folder, overwrite=True)
    start = time.monotonic()
    measured = measure.measure(small, story.title, task, dataset, running.draws, running.full, interrupt, watch)
    metrics = {**measured.metrics, **story.more}
    used = {**dataclasses.asdict(task.options), "labels": story.more["labels"]}
    warnings = cautions.of_run(metrics, used, story.usual_steps)
    small = dataclasses.replace(small, results=measured.headline())
    small.save(run.folder, overwrite=True)
    with working("drawing pictures"):
        story.pictures(small, run.folder)
    spent = {**story.seconds, "measuring": time.monotonic() - start}
    planned = {} if story.planned is None else story.planned.beside(spent["learning"], machine.peak_memory())
    stopped = "interrupted" if interrupt() else story.stopped
    run.finish(
        {
            **metrics,
            "warnings": warnings,
            "stopped": stopped,
            "seconds": round(story.seconds["learning"], 3),
            "seconds_by_part": {name: round(value, 3) for name, value in spent.items()},
            **({"planned": planned} if planned else {}),
            "seed": task.options.seed,
            "config": story.config,
        }
    )
    watch.forget()
    _say_done(run.folder, small, measured, dataset, warnings, interrupt)
    return Done(run.folder, task.options.seed, measured.metrics["test_accuracy"], interrupt.status)


def _say_done(
    folder: Path,
    small: DistilledSet,
    measured: Measured,
    dataset: Dataset,
    warnings: Sequence[str],
    interrupt: Interrupt,
) -> None:
    from kip.artefact import made_for

    kind = "images" if small.x.ndim == 4 else "points"
    show(measured.table(f"{dataset.name} → {len(small)} {kind}, kernel {small.kernel}, seed {small.seed}", kind))
    for sentence in warnings:
        say(f"note: {sentence}")
    if interrupt():
        say("interrupted: the set was saved as it stands")
    say(f"saved in {folder}; to use it: kip.load({str(folder)!r}).predict(raw)")
    say(made_for(small))


def draw_set(small: DistilledSet, folder: Path, columns: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> None:
    """Write images.png, sets of (title, preprocessed points, labels) beside one another, and labels.png."""
    from kip.files import write_atomic
    from kip.report import pictures

    if small.x.ndim == 4:
        shown = [pictures.Column(title, small.preprocess.invert(x), y) for title, x, y in columns]
        write_atomic(folder / "images.png", pictures.images(shown, small.classes))
    write_atomic(folder / "labels.png", pictures.labels(small.y, small.classes))


def draw_curve(folder: Path, title: str) -> None:
    """Write curve.png from the history."""
    from kip.files import write_atomic
    from kip.report import pictures

    picture = pictures.curve(runs.read_history(folder), title)
    if picture is not None:
        write_atomic(folder / "curve.png", picture)


def short(name: str) -> str:
    """A data set's name without the ending of its file."""
    return Path(name).stem if Path(name).suffix.lower() in (".csv", ".tsv", ".txt", ".npz") else name

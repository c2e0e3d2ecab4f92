"""`kip transfer`: how well networks do that are trained on a distilled set, beside as many natural images."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from kip import defaults
from kip._version import __version__
from kip.cli import common, evaluate
from kip.cli.options import CONFIG_HELP, COUNT, DATA, NOT_NEGATIVE, POSITIVE, RUNNING, seconds
from kip.cli.progress import Interrupt, StoppedError, console, duration, say

if TYPE_CHECKING:
    from kip.artefact import DistilledSet
    from kip.data import Dataset
    from kip.nets.grid import Point
    from kip.nets.study import Study
    from kip.nets.training import Settings, Trained

TRAINING = Group("How networks are trained", sort_key=2)

FULL_BATCH, FULL_PASSES, FULL_SECONDS = 128, 10, 300.0
"""How a network is trained on the full training set: points a step, passes at most, and seconds without a budget."""

GRID_SHARE = 0.6
"""Of a time budget, for the grid and what it chose, where --full takes the rest."""


@Parameter(name="*")
@dataclass(frozen=True)
class TrainOptions:
    """How the networks are trained where no grid says otherwise; the fields of `kip.nets.training.Settings`."""

    loss: Annotated[
        Literal["mse", "xent"] | None,
        Parameter(group=TRAINING, show_default=lambda _: "xent; both in a grid", help="Mean-square or cross-entropy."),
    ] = None
    optimiser: Annotated[Literal["adam", "momentum"], Parameter(group=TRAINING, help="Momentum is 0.9.")] = "adam"
    learning_rate: Annotated[
        float | None,
        POSITIVE,
        Parameter(
            group=TRAINING, show_default=lambda _: "by optimiser and parameterisation", help="The optimiser's rate."
        ),
    ] = None
    l2: Annotated[float, NOT_NEGATIVE, Parameter(group=TRAINING, help="μ of ½μ‖θ‖².")] = 0.0
    schedule: Annotated[Literal["constant", "cosine"], Parameter(group=TRAINING, help="What becomes of the rate.")] = (
        "constant"
    )
    steps: Annotated[int, COUNT, Parameter(group=TRAINING, help="Steps; which is kept is chosen on validation.")] = 500
    batch: Annotated[
        int | None, COUNT, Parameter(group=TRAINING, show_default=lambda _: "all", help="Points per step.")
    ] = None
    augment: Annotated[
        str | None,
        Parameter(
            group=TRAINING, metavar="NAME", help="Augment the points: digits, photos, flips; alone, by the data."
        ),
    ] = None
    width: Annotated[
        int | None, COUNT, Parameter(group=TRAINING, help="Units (1024) or channels (128); conv2:512 for one network.")
    ] = None
    parameterisation: Annotated[
        Literal["standard", "ntk"], Parameter(group=TRAINING, help="Of networks built from layer lists.")
    ] = "standard"
    soft_labels: Annotated[
        Literal["argmax", "clip", "softmax"],
        Parameter(group=TRAINING, help="What cross-entropy makes of labels that are not one-hot."),
    ] = "argmax"
    read_out: Annotated[
        Literal["auto", "zero", "drawn"],
        Parameter(group=TRAINING, help="How the last layer starts; auto: zero under mean-square loss."),
    ] = "auto"


USUAL_TRAINING = TrainOptions()


def transfer(
    run: Annotated[Path, Parameter(help="Folder of a run.")],
    /,
    *,
    net: Annotated[
        str,
        Parameter(
            help="Networks with commas between: fc1, conv2, convnet, lenet, alexnet, wideresnet, …, or module:Name of "
            "your own."
        ),
    ],
    grid: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Choose rate, L2, parameterisation and loss on validation."),
    ] = False,
    training: TrainOptions = USUAL_TRAINING,
    corruption: Annotated[
        float | None,
        Parameter(
            show_default=lambda _: "that of the run", help="Compare also with natural images of which ρ is noise."
        ),
    ] = None,
    seeds: Annotated[int, COUNT, Parameter(group=RUNNING, help="Networks trained of each kind.")] = 5,
    grid_seeds: Annotated[int, COUNT, Parameter(group=RUNNING, help="Networks at each setting of the grid.")] = 1,
    validation_size: Annotated[
        int, COUNT, Parameter(group=RUNNING, help="Points of the validation split to choose on, at most.")
    ] = 2000,
    full: Annotated[
        bool,
        Parameter(
            group=RUNNING, negative="", show_default=False, help="Train on the full training set too, which gives ε."
        ),
    ] = False,
    time_budget: Annotated[
        str | None, Parameter(group=RUNNING, help="Shorten the grid, alike for all sets, and --full to 10m or 1h.")
    ] = None,
    data: Annotated[
        str | None, Parameter(group=DATA, show_default=lambda _: "that of the run", help="Where the data are now.")
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(group=RUNNING, show_default=lambda _: "transfer.json in the run", help="File for the results."),
    ] = None,
    device: Annotated[str | None, Parameter(group=RUNNING, help="JAX device, such as cpu or gpu:1.")] = None,
    config: Annotated[Path | None, Parameter(group=RUNNING, help=CONFIG_HELP)] = None,
) -> int:
    """Train networks on a distilled set, and on as many natural images.

    The step and, with --grid, the settings are chosen on a validation split,
    for each set alike; the test set is scored at the end. The split is what
    `kip distill --validation 0.1` held out; where a run held nothing out, a
    tenth of its training set serves, and that is said. Natural images are
    drawn anew for each seed. Writes transfer.json and, beside it, a scatter of
    natural against distilled accuracy over the grid.

    For example:

        kip transfer runs/mnist-100 --net fc1,lenet
        kip transfer runs/mnist-100 --net fc1 --grid --optimiser momentum
        kip transfer runs/cifar10-100 --net conv2,convnet --grid --time-budget 20m
    """
    del config  # read before the command is called
    from kip.artefact import load

    budget = None if time_budget is None else seconds(time_budget)
    if budget is not None and not (grid or full):
        raise ValueError("`--time-budget` shortens --grid and --full, and neither is given; give fewer --steps")
    names = [name.strip() for name in net.split(",") if name.strip()]
    if not names:
        raise ValueError(f"`--net` names no network; got {net!r}. Write fc1,lenet")
    common.use_device(device)
    _need_flax()
    small = load(run)
    dataset = common.load_data(evaluate.data_of(run, data, None, None))
    if training.augment is not None:
        kind = dataset.kind or defaults.kind_of(dataset.x_train.shape[1:])
        training = dataclasses.replace(training, augment=defaults.augmentation(training.augment, "none", kind))
    study = _studied(small, dataset, corruption, seeds, validation_size)
    target = out or run / "transfer.json"
    share = None if budget is None else budget / len(names)
    plan = _Plan(training, grid, range(seeds), range(min(grid_seeds, seeds)), full, share)
    _check_networks(names, study, plan)
    with Interrupt() as interrupt:
        results = _each(names, study, plan, target, interrupt)
    if results is not None:
        _draw(target.with_suffix(".png"), results)
        say(f"written to {target}, drawn in {target.with_suffix('.png')}")
    return interrupt.status


def _each(names: Sequence[str], study: Study, plan: _Plan, target: Path, interrupt: Interrupt) -> dict[str, Any] | None:
    """Examine network after network, each written when it is done: one that was stopped half-way is not a result."""
    results = None
    for number, name in enumerate(names):
        try:
            found = _examined(name, study, plan, interrupt)
        except StoppedError:
            say(f"interrupted: {', '.join(names[number:])} left out")
            break
        results = _write(target, study, plan, name, found)
        console.print(_table(name, found))
    return results


def _need_flax() -> None:
    try:
        import kip.nets  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True)
class _Plan:
    """What is done for each network, in `budget` seconds if there are any."""

    options: TrainOptions
    grid: bool
    seeds: range
    grid_seeds: range
    full: bool
    budget: float | None

    def settings(self, name: str) -> list[Settings]:
        """The settings to try, the usual ones first."""
        from kip.nets import grid
        from kip.nets.training import LOSSES, Settings

        given = dataclasses.asdict(self.options)
        usual = {"loss": "xent", "learning_rate": grid.RATES[given["optimiser"], given["parameterisation"]][0]}
        base = Settings(**given | {name: given[name] or value for name, value in usual.items()})
        return grid.settings_of(name, base, LOSSES if given["loss"] is None else [base.loss]) if self.grid else [base]


def _studied(
    small: DistilledSet, dataset: Dataset, corruption: float | None, seeds: int, validation_size: int
) -> Study:
    """The run's own split recreated, and the sets to compare."""
    from kip.nets.study import UNSEEN_SHARE, prepare

    found = prepare(
        small,
        (dataset.x_train, evaluate.codes(small, dataset, dataset.y_train)),
        (dataset.x_test, evaluate.codes(small, dataset, dataset.y_test)),
        corruption=corruption,
        seeds=seeds,
        validation_size=validation_size,
    )
    if not found.held_out:
        say(f"  the run held nothing out: {UNSEEN_SHARE:.0%} of the training set, which it has seen, is chosen on")
    return found


def _check_networks(names: Sequence[str], study: Study, plan: _Plan) -> None:
    """Refuse a name or a shape that will not do before anything is trained."""
    from kip.nets.training import outlined

    shape, classes = study.small.x.shape[1:], len(study.small.classes)
    for name in names:
        outlined(name, shape, classes, plan.settings(name)[0])


@dataclass(frozen=True)
class _Found:
    """What one network came to on every arm."""

    points: tuple[Point, ...]
    tried: int
    chosen: Mapping[str, tuple[Settings, Trained]]
    full: tuple[Settings, Trained] | None
    seconds: float

    def epsilon(self, arm: str) -> float | None:
        """The smallest ε of eq. (weak-approx) under zero-one loss, against the full training set."""
        return None if self.full is None else abs(self.full[1].mean - self.chosen[arm][1].mean)


def _examined(name: str, study: Study, plan: _Plan, interrupt: Interrupt) -> _Found:
    """Search the grid, train what was chosen with all seeds, and where asked on the full training set."""
    from kip.nets import grid

    interrupt.check()
    start = time.monotonic()
    settings = plan.settings(name)
    late = None
    if plan.budget is not None:
        share = GRID_SHARE if plan.full else 1.0
        late = grid.within(share * plan.budget, len(plan.seeds) / len(plan.grid_seeds), time.monotonic)
    once = len(settings) == 1
    every = max(1, plan.options.steps // 20)
    trainings = len(study.arms) * (1 if once else len(settings) + 1)
    with _bar(name, trainings * plan.options.steps, interrupt) as (label, tick):
        examine = grid.Examiner(name, study.watch, study.quick_test, every, tick)
        points: list[Point] = []
        if not once:
            label("grid")
            points = grid.search(study.arms, settings, examine, plan.grid_seeds, late=late)
        last = dataclasses.replace(examine, test=study.test)
        chosen = {}
        for arm in study.arms:
            label(arm.name)
            best = settings[0] if once else grid.best(points, arm.name)
            chosen[arm.name] = (best, last(arm, best, plan.seeds))
        if once:
            points = [grid.Point(settings[0], {arm: trained for arm, (_, trained) in chosen.items()})]
    left = FULL_SECONDS if plan.budget is None else max(1.0, plan.budget - (time.monotonic() - start))
    whole = _whole(name, study, chosen["natural"][0], left, interrupt) if plan.full else None
    return _Found(tuple(points), len(settings), chosen, whole, time.monotonic() - start)


def _whole(
    name: str, study: Study, settings: Settings, budget: float, interrupt: Interrupt
) -> tuple[Settings, Trained]:
    """The network on the full training set, with the settings of natural images, for as long as the budget allows."""
    from kip.nets.training import train

    end = time.monotonic() + budget
    a_pass = max(1, len(study.train) // FULL_BATCH)
    settings = dataclasses.replace(settings, batch=FULL_BATCH, steps=FULL_PASSES * a_pass)
    with _bar(name, settings.steps, interrupt) as (label, tick):
        label("full training set")
        found = train(
            name,
            study.train,
            settings,
            seeds=[0],
            watch=study.watch,
            watch_every=max(1, a_pass // 4),
            test=study.test,
            progress=tick,
            stop=lambda: time.monotonic() >= end,
        )
    return settings, found.scores()


@contextmanager
def _bar(
    name: str, total: int, interrupt: Interrupt
) -> Iterator[tuple[Callable[[str], None], Callable[[int, float | None], None]]]:
    """A bar over all trainings of a network on a terminal, elsewhere a line a stage.

    `tick` takes a training's step, and leaves the training by an exception after an interrupt.
    """
    words, before, start = "", 0, time.monotonic()

    def label(text: str) -> None:
        nonlocal words
        words = text
        if not console.is_terminal:
            say(f"{name}: {text}, after {duration(time.monotonic() - start)}")

    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, expand=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total, left="compiling")

        def tick(step: int, accuracy: float | None) -> None:
            nonlocal before
            interrupt.check()
            bar.advance(task, step - before if step > before else step)
            before = step
            watched = "" if accuracy is None else f"validation {accuracy:.1%}  "
            done = bar.tasks[0].completed
            spent = time.monotonic() - start
            bar.update(
                task,
                description=f"{name}: {words}",
                left=f"{watched}{duration(spent * max(total - done, 0) / done)} left",
            )

        yield label, tick


def _described(settings: Settings, trained: Trained) -> dict[str, Any]:
    return {
        "settings": dataclasses.asdict(settings),
        "test_accuracy": trained.mean,
        "test_accuracy_std": trained.std,
        "test_accuracies": list(trained.test_accuracies),
        "validation_accuracy": trained.validation_accuracy,
        "step": trained.chosen_step,
        "last_step": trained.watch[-1][0],
        "seconds": round(trained.seconds, 2),
    }


def _write(path: Path, study: Study, plan: _Plan, name: str, found: _Found) -> dict[str, Any]:
    """Write what was found beside what the file already holds of other networks."""
    from kip.files import write_json

    about = _about(study)
    results = {"version": __version__, **about, "networks": {**_before(path, about), name: _network(plan, found)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, results)
    return results


def _about(study: Study) -> dict[str, Any]:
    """What all networks of a file have in common."""
    small = study.small
    return {
        "data": small.config.get("data"),
        "size": len(small),
        "kernel": small.kernel,
        "corruption": study.rho,
        "certificate": small.certificate().holds if small.corruption.rho else None,
        "run": dict(small.config),
        "validation": {"size": len(study.watch), "unseen_by_distillation": study.held_out},
        "test_size": len(study.test),
        "grid_test_size": len(study.quick_test),
        "chosen_on": "validation: settings and step; the paper stops where test accuracy was best",
    }


def _before(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """The networks that the file holds, if they were trained on the same sets and chosen on the same points."""
    from kip.files import read_json

    before = read_json(path) if path.is_file() else {}
    if not isinstance(before, dict) or not before.get("networks"):
        return {}
    other = [key for key in ("run", "validation", "corruption") if before.get(key) != about[key]]
    if other:
        say(f"{path} held networks of another {other[0]}: {', '.join(before['networks'])} left out")
        return {}
    return dict(before["networks"])


def _network(plan: _Plan, found: _Found) -> dict[str, Any]:
    return {
        "seeds": len(plan.seeds),
        "grid_seeds": len(plan.grid_seeds) if plan.grid else None,
        "time_budget": plan.budget,
        "grid": [
            {
                "settings": dataclasses.asdict(point.settings),
                "arms": {arm: _of_point(point, arm) for arm in point.arms},
            }
            for point in found.points
        ],
        "grid_left_out": found.tried - len(found.points),
        "chosen": {
            arm: {**_described(*pair), "epsilon_weak": found.epsilon(arm)} for arm, pair in found.chosen.items()
        },
        "full": None if found.full is None else _described(*found.full),
        "seconds": round(found.seconds, 1),
    }


def _of_point(point: Point, arm: str) -> dict[str, Any]:
    found = _described(point.settings, point.arms[arm])
    return {name: value for name, value in found.items() if name != "settings"}


def _table(name: str, found: _Found) -> Table:
    title = f"{name}, {len(next(iter(found.chosen.values()))[1].test_accuracies)} seeds"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", min_width=60)
    table.add_column("trained on")
    for heading in ("test accuracy", "validation", "step", "weak ε"):
        table.add_column(heading, justify="right")
    for i, (arm, (_, trained)) in enumerate(found.chosen.items()):
        away = found.epsilon(arm)
        cells = [f"{100 * trained.mean:.2f} ± {100 * trained.std:.1f} %", f"{100 * trained.validation_accuracy:.2f} %"]
        cells += [f"{trained.chosen_step}", "–" if away is None else f"{away:.3f}"]
        table.add_row(arm, *cells, style="bold green" if i == 0 else None)
    if found.full is not None:
        _, whole = found.full
        table.add_row("full training set", f"{100 * whole.mean:.2f} %", "", f"{whole.chosen_step}", "0")
    return table


def _draw(path: Path, results: Mapping[str, Any]) -> None:
    from kip.files import write_atomic
    from kip.report import networks

    title = f"{results['data']}, {results['size']} images; a point is a setting"
    write_atomic(path, networks.scatter(results["networks"], title))

"""Runners: one module per kind of work. `measure` runs cells and gives each its result as soon as it has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kip.paper.recipes import Cell
from kip.paper.running.base import Context, Result, StoppedError
from kip.paper.works import Comparison, Kip, Network, Part, Solved, Subset, Whole, Work

__all__ = ["Context", "Result", "StoppedError", "measure", "run"]


def measure(cells: Sequence[Cell], context: Context) -> Iterator[tuple[Cell, Result]]:
    """Run `cells` in the order given; random subsets of one data set come together, since they share their work."""
    done: set[str] = set()
    for cell in cells:
        if cell.id in done:
            continue
        context.check()
        group = _together(cell, cells)
        if len(group) > 1:
            from kip.paper.running import subsets

            works = [each.work for each in group if isinstance(each.work, Subset)]
            results = subsets.run(works, context)
            yield from ((each, results[each.work]) for each in group if isinstance(each.work, Subset))
        else:
            context.say(f"{cell.id}:")
            yield cell, run(cell.work, context)
        done |= {each.id for each in group}


def _together(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that are measured with `cell`: of the same data, drawn the same way."""
    if not isinstance(cell.work, Subset):
        return [cell]
    way = (cell.work.data, cell.work.balanced)
    return [each for each in cells if isinstance(each.work, Subset) and (each.work.data, each.work.balanced) == way]


def run(work: Work, context: Context) -> Result:
    """Measure one work."""
    # Each runner is imported where it is used: networks need packages that kernels do not.
    if isinstance(work, Subset):
        from kip.paper.running import subsets

        return subsets.run([work], context)[work]
    if isinstance(work, Whole | Solved):
        from kip.paper.running import solving

        return solving.whole(work, context) if isinstance(work, Whole) else solving.solved(work, context)
    if isinstance(work, Kip | Part):
        from kip.paper.running import learning

        return learning.run(work, context) if isinstance(work, Kip) else learning.part(work, context)
    if isinstance(work, Network):
        from kip.paper.running import networks

        return networks.run(work, context)
    assert isinstance(work, Comparison)
    from kip.paper.running import comparing

    return comparing.run(work, {trial.name: run(trial.work, context) for trial in work.trials})

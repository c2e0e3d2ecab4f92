"""The command line: `kip COMMAND`. One file a command group; this one parses, calls, and answers for failures.

Bad input is one line on stderr and exit status 2; a run that diverged or ran out of memory exits 1, one that was
interrupted as the signal has it. Commands import what computes only when they run.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError
from cyclopts.config import Dict

from kip import machine, runs
from kip._version import __version__
from kip.cli import bench, common, data, distill, evaluate, label_solve, options, plan, reproduce, transfer

BAD_INPUT, FAILED = 2, 1
FULL_DISK = "; free some space, and continue with `--resume` where a checkpoint was kept"


def build(config: Sequence[Any] = ()) -> App:
    """The commands as one app, with what a configuration file says."""
    app = App(
        name="kip",
        version=__version__,
        help="Distil a labelled data set into a very small one that trains nearly as well.\n\n"
        "`kip distill` needs no option and takes seconds: start with it. Every\n"
        "command has its own --help, with examples.",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # main answers for it
        config=list(config),
    )
    app.command(data.app)
    commands: list[Callable[..., int]] = [
        distill.distill,
        plan.plan,
        label_solve.label_solve,
        evaluate.evaluate,
        transfer.transfer,
        reproduce.reproduce,
        bench.bench,
    ]
    for rank, command in enumerate(commands):
        app.command(command, sort_key=rank)
    return app


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line on `tokens`, by default those of this process; give the exit status."""
    _forgive_encodings()
    machine.name_processor_to_blas()
    machine.spare_address_space()
    tokens = options.with_augment_named(sys.argv[1:] if tokens is None else list(tokens))
    try:
        app = build(_config(tokens))
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except CycloptsError as error:
        return _failed(str(error), BAD_INPUT)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError) as error:
        return _failed(_words(error), BAD_INPUT)
    except ArithmeticError as error:
        return _failed(str(error), FAILED)
    except (MemoryError, ImportError, RuntimeError, SystemError) as error:
        if not _is_want_of_memory(error):
            raise
        return _failed(_memory_words(error), FAILED)
    return result if isinstance(result, int) else 0


WANT_OF_MEMORY = (
    *("can't start new thread", "failed to map segment", "cannot allocate memory", "RESOURCE_EXHAUSTED"),
    "error return without exception set",
)
"""How Python, the loader of libraries, XLA and compiled modules say that there is no memory left."""


def _is_want_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in WANT_OF_MEMORY)


def _memory_words(error: Exception) -> str:
    """What failed, what the limit is, and what to do."""
    limit, found = machine.tightest_limit(), str(error)
    amount = f"{limit.total / 1e9:.1f} GB"
    here = f"this machine has {amount}: " if limit.name is None else ""
    here = here or f"the limit here is {amount} of {limit.of} ({limit.name}): raise it, or "
    return f"out of memory{f' ({found})' if found else ''}; {here}use a smaller --size, --batch or --targets"


def _config(tokens: Sequence[str]) -> list[Any]:
    """Where options come from that are not given: `--config`, or with `--resume` the run."""
    path = options.value_of("--config", tokens)
    remedy = "rename it there"
    if "--resume" in tokens and path is None and (path := options.value_of("--out", tokens)) is not None:
        path = path / runs.CONFIG
        if not path.is_file():
            raise FileNotFoundError(f"`--resume`: {path.parent} holds no run that was begun; leave --resume out")
        remedy = common.BEGUN_BEFORE
    if path is None:
        return []
    commands, _, _ = build().parse_commands(tokens)
    table = options.read_config(path, commands, remedy=remedy)
    return [Dict(_under(commands, table), source=str(path))] if table else []


def _under(commands: Sequence[str], table: dict[str, Any]) -> dict[str, Any]:
    """The table under its command's name: at the root the option `data` would be taken for the command, and dropped."""
    for command in reversed(commands):
        table = {command: table}
    return table


def _failed(words: str, status: int) -> int:
    print("kip:", " ".join(words.split()), file=sys.stderr)
    return status


def _words(error: Exception) -> str:
    """What went wrong, with the file it went wrong at."""
    if isinstance(error, OSError) and error.strerror:
        at = f"{Path(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and "resume" not in error.strerror
        return f"{at}{error.strerror[0].lower()}{error.strerror[1:]}{FULL_DISK if full else ''}"
    return str(error)


def _forgive_encodings() -> None:
    """Print a question mark where a terminal cannot show a letter, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

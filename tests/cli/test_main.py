"""The face of the command line: help that answers at once, and bad input answered in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kip
from kip.cli import main

COMMANDS = (["distill"], ["plan"], ["label-solve"], ["evaluate"], ["data", "list"], ["data", "fetch"], ["bench"])


def test_help_imports_nothing_that_computes() -> None:
    code = """
import sys
from kip.cli import main
assert main(["--help"]) == 0
assert main(["distill", "--help"]) == 0
heavy = {"jax", "numpy", "scipy", "sklearn", "matplotlib", "numba", "optax", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command[0] in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "For example:" in text
    assert f"    kip {' '.join(command)}" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == kip.__version__


BAD = [
    ("distill --size 4", "`size` must be at least the 10 classes"),
    ("distill --size ten", "--size"),
    ("distill --size 20.5", "a whole number is needed; got '20.5'"),
    ("distill --steps nan", "a whole number is needed; got 'nan'"),
    ("distill --size 99999", "`size` must be at most"),
    ("distill --steps 0", "--steps"),
    ("distill --sise 10", "--size"),
    ("distil", "distill"),
    ("distill extra", "extra"),
    ("distill --kernel rfb", "'rbf'"),
    ("distill --kernel", "--kernel"),
    ("distill --data minst", "'mnist'"),
    ("distill --data nowhere.npz", "nowhere.npz"),
    ("distill --labels solve", '"solved"'),
    ("distill --device tpu", "--device"),
    ("distill --device cpu:99", "--device"),
    ("distill --engine numba", "jax engine"),
    ("distill --dtype float16", "--dtype"),
    ("distill --time-budget soon", "--time-budget"),
    ("distill --corruption 1.5", "corruption"),
    ("distill --validation 2", "validation"),
    ("distill --ridge 0", "ridge"),
    ("distill --damping inf", "--damping"),
    ("distill --seed -1", "--seed"),
    ("distill --augment sideways", "--augment"),
    ("distill --resume", "--out"),
    ("distill --resume --out nowhere", "holds no run"),
    ("distill --config none.toml", "none.toml"),
    ("plan --size 4", "`size` must be at least the 10 classes"),
    ("plan --time-budget soon", "--time-budget"),
    ("evaluate", "RUN"),
    ("evaluate nowhere", "nowhere"),
    ("data fetch minst", "'mnist'"),
    ("data fetch digits", "nothing to fetch"),
    ("bench --kernels foo", "foo"),
    ("bench --kernels ,", "--kernels"),
]


@pytest.mark.parametrize(("line", "word"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    line: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("kip: ")
    assert error.count("\n") == 1
    assert word in error
    assert list(tmp_path.iterdir()) == []


def test_what_a_configuration_file_gets_wrong_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kip.toml").write_text("[distill]\nsise = 10\n")
    assert main(["distill", "--config", "kip.toml"]) == 2
    assert "sise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(28, "No space left on device", "runs/x"), 2),
        (MemoryError(), 1),
        (FloatingPointError("no finite number"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_have_a_word_and_no_traceback(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("kip.cli.common.load_data", fail)
    if isinstance(error, BrokenPipeError):
        monkeypatch.setattr("os.dup2", lambda *_: None)
    assert main(["distill"]) == status
    assert "Traceback" not in capfd.readouterr().err

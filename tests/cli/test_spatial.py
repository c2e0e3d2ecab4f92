"""What convolutional kernels refuse on the command line: one line on stderr that says what to do, and status 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kip
from kip.cli import main


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(command) == 2
    words = capsys.readouterr().err
    assert words.count("\n") == 1
    assert words.startswith("kip: ")
    return words


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    x = np.random.default_rng(0).normal(size=(40, 4, 4))
    np.savez(tmp_path / "tiny.npz", x=x, y=np.repeat([0, 1], 20))
    return str(tmp_path / "tiny.npz")


@pytest.mark.parametrize("command", ["distill", "label-solve"])
def test_images_smaller_than_the_pools_need(
    command: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = refused([command, "--data", tiny, "--kernel", "convnet3", "--out", str(tmp_path / "run")], capsys)
    assert "pools 3 times and needs images of at least 8×8; got 4×4. Use larger images or fewer pools." in words


def test_vectors_do_not_go_through_a_convolution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "flat.npz", x=np.random.default_rng(0).normal(size=(40, 6)), y=np.repeat([0, 1], 20))
    command = ["label-solve", "--data", str(tmp_path / "flat.npz"), "--kernel", "conv2", "--out", str(tmp_path / "run")]
    assert "needs images" in refused(command, capsys)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("conv-relu", "End it with flatten or gap."),
        ("conv-relu-flatten-gap", "Keep one of them."),
        ("conv-rellu-gap", "Did you mean 'relu'?"),
        ("myrtle6", "myrtle5, myrtle7 and myrtle10"),
    ],
)
def test_lists_of_layers_that_are_none(kernel: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["distill", "--kernel", kernel], capsys)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        kip.kernel(kernel)


def test_images_of_mixed_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("a", 8), ("b", 9)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for n in range(4):
            Image.new("L", (size, size), 10 * n).save(tmp_path / "data" / name / f"{n}.png")
    words = refused(["distill", "--data", str(tmp_path / "data"), "--kernel", "conv2"], capsys)
    assert "--resize" in words
    with pytest.raises(ValueError, match="points of one shape"):
        kip.kernel("conv2").gram(np.zeros((2, 8, 8, 1)), np.zeros((2, 9, 9, 1)))


def test_an_engine_that_cannot_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "jax engine only" in refused(["distill", "--kernel", "rbf", "--engine", "numba"], capsys)
    monkeypatch.setattr("kip.kernels.on_cpu", lambda: False)
    words = refused(["distill", "--kernel", "conv2", "--engine", "numba"], capsys)
    assert "runs on CPUs only" in words
    with pytest.raises(ValueError, match="use engine='jax'"):
        kip.kernel("conv2", "numba")
    with pytest.raises(ValueError, match="`engine` must be one of"):
        kip.kernel("conv2", "torch")
    assert "gpu:7" in refused(["distill", "--kernel", "conv2", "--device", "gpu:7"], capsys)

"""The example is ended in two processes, and goes on in one, with another number of stages."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpp import checkpoint

EXAMPLES = Path(__file__).parents[3] / "examples"
TINY = ("--microbatches", "4", "--layers", "2", "--optimizer", "sgd")


def test_ended_in_two_processes_it_goes_on_in_one(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "gpt.py"), *TINY, "--checkpoint", str(tmp_path)]
    two = ("--stages", "2", "--data", "1", "--processes", "2", "--steps", "100000")
    lines: list[str] = []
    with subprocess.Popen([*command, *two], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as training:
        assert training.stdout
        for line in training.stdout:
            lines.append(line)
            if line.startswith("  step  10"):
                training.terminate()
    step = checkpoint.latest_step(tmp_path)
    assert training.returncode == 0
    assert (
        f"told to end: saved after step {step}, in {tmp_path}\n" in lines
    )  # the other process may log something behind it
    assert step is not None
    one = ("--stages", "1", "--data", "2", "--schedule", "gpipe", "--steps", str(step + 2), "--check")
    output = subprocess.check_output([*command, *one], text=True)
    assert re.findall(r"^  step +(\d+) ", output, re.MULTILINE)[0] == str(step + 1)
    assert "largest relative difference" in output
    assert "TOO LARGE" not in output
    assert checkpoint.latest_step(tmp_path) == step + 2


def test_another_model_is_a_short_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    gpt_checkpoints: Any = importlib.import_module("gpt_checkpoints")
    state = {"weight": np.ones(2)}
    assert gpt_checkpoints.resume(tmp_path, state) == (state, 0)
    checkpoint.save(tmp_path, 7, state)
    assert gpt_checkpoints.resume(tmp_path, state)[1] == 7
    with pytest.raises(SystemExit, match=r"^--checkpoint: .*/7 is the checkpoint of another model\n  bias: not in"):
        gpt_checkpoints.resume(tmp_path, state | {"bias": 1})

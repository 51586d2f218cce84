"""The smaller examples run as their reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["two_towers", "two_towers --spread", "delayed"])
def test_learns_the_same_as_plain_jit(name: str) -> None:
    file, *options = name.split()
    environment = {key: value for key, value in os.environ.items() if key != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{file}.py", *options, "--check"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"(\d+\.\d+) after", done.stdout))
    assert last < 0.5 * first
    assert "largest relative difference from plain jax.jit: " in done.stdout
    if file == "two_towers":
        (share,) = re.findall(r"(\d+)% of them beside the picture's", done.stdout)
        assert int(share) > 0

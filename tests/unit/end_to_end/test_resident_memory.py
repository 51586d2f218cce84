"""The memory that a plan promises, that the runtime holds, and that the operating system sees."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("resident.py")
WITHIN = 0.02


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells how much memory was resident")
def test_three_accounts_agree() -> None:
    """Within 2 %, residuals kept, made again and offloaded: there the plan counts the device's memory alone."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, JOB], capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    for way in ("keep", "recompute", "offload"):
        assert found[way]["resident"] == pytest.approx(found[way]["runtime"], rel=WITHIN), way
        if way != "offload":
            assert found[way]["runtime"] == pytest.approx(found[way]["plan"], rel=WITHIN), way
    assert found["offload"]["plan"] < 0.7 * found["keep"]["plan"]

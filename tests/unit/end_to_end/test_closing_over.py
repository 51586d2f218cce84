"""A step that closes over arrays has the results of plain `jax.jit`, however JAX lowers them."""

import os
import subprocess
import sys
from pathlib import Path

from unit.end_to_end import closing_over


def test_constants() -> None:
    closing_over.check_steps()
    closing_over.check_arguments()


def test_arguments_that_jax_adds() -> None:
    """JAX reads its flag when it is imported."""
    tests = Path(__file__).parents[2]
    flags = {
        "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1",
        "JAX_NUM_CPU_DEVICES": "2",
        "PYTHONPATH": os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    program = [sys.executable, "-m", closing_over.__name__]
    done = subprocess.run(program, env=os.environ | flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

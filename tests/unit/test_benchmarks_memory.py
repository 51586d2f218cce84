"""What a budget of recompute buys, by `benchmarks/memory.py`."""

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
memory: Any = importlib.import_module("memory")


def test_what_a_recompute_keeps_of_a_block() -> None:
    """At most half of the bytes at 5 % more FLOPs; at most 0.15 of them at one more forward, a third more FLOPs."""
    model = memory.gpt_model.Config(3, 3, 256, 4, 128, "float32")
    text = np.zeros((2, 4, model.sequence + 1), np.int32)
    parameters = jax.eval_shape(lambda: memory.gpt_model.init(model, 0))
    everything, some, inputs = (
        memory.analyse(memory.lower(model, way, text, parameters)) for way in ("all", "budget 20 %", "inputs")
    )
    assert some.kept <= 0.5 * everything.kept
    assert some.flops <= 1.05 * everything.flops
    assert inputs.kept <= 0.15 * everything.kept
    assert inputs.flops <= 4 / 3 * everything.flops

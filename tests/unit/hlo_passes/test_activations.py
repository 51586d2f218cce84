"""The tests' own account of activations, on programs written by hand."""

from pathlib import Path

import pytest
from jaxlib.mlir import ir
from unit.activations import peak_activations

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import run_passes
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.runtime import load


@pytest.mark.parametrize(
    ("name", "mesh", "expected"), [("received_weight", 1, 0), ("recomputed", 1, 1), ("recomputed_fused", 0, 1)]
)
def test_what_counts(name: str, mesh: int, expected: int) -> None:
    text = (Path(__file__).with_name("activations") / f"{name}.txt").read_text()
    with make_context():
        module = ir.Module.parse(text)
        run_passes(module, [InsertTransfers(), PlanBuffers()])
        assert peak_activations(load(module))[mesh] == expected

"""The microbatch loop and its schedule."""

from dataclasses import replace

import pytest
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, main_of, operations
from jaxpp.ir.loop import MicrobatchLoop

TEXT = """
func.func @main(%x: tensor<i32>) {
  %0 = stablehlo.while(%i = %x) : tensor<i32> cond {
    %1 = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    stablehlo.return %i : tensor<i32>
  }
  return
}
"""


def test_a_schedule_is_what_its_text_says() -> None:
    """Also right behind the pass that wrote it: parsing checks it."""
    plan = schedules.resolve("gpipe", meshes=1, microbatches=2)
    with make_context():
        module = ir.Module.parse(TEXT)
        loop = MicrobatchLoop(operations(body_of(main_of(module)))[0], 2, 1, str(plan), [0], [0], [1])
        assert loop.plan == plan
        wrong = loop.rescheduled(lambda plan: replace(plan, orders=(plan.orders[0][::-1],)))
        with pytest.raises(PassError, match="which comes later on mesh 0"):
            _ = wrong.plan

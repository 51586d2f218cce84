"""What passes hand on of a straight line."""

from collections.abc import Iterator

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, main_of, operations
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.steps import MainLine, Relay, Step, handed, leave

TEXT = """
module attributes {jaxpp.meshes = 2 : i64} {
  func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward"} {
    return %x : tensor<f32>
  }
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
        : (tensor<f32>) -> tensor<f32>
    %b = stablehlo.negate %a : tensor<f32>
    %c = call @forward_0(%b) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
        : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
}
"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with make_context():
        yield ir.Module.parse(TEXT)


def test_a_line_is_read_once(module: ir.Module) -> None:
    relay = Relay(module)
    with relay.lap():
        line = main_of_phase(module, placed=False)
        leave(module, line)
    with relay.lap():
        assert main_of_phase(module, placed=False) is line
    with relay.lap():  # the pass before has left nothing
        assert handed(module, MainLine) is None
        assert main_of_phase(module, placed=False) is not line


def test_nothing_is_handed_outside_of_a_pipeline(module: ir.Module) -> None:
    leave(module, main_of_phase(module, placed=False))
    assert handed(module, MainLine) is None


def test_a_line_is_handed_to_those_that_read_its_phase(module: ir.Module) -> None:
    relay = Relay(module)
    with relay.lap():
        leave(module, main_of_phase(module, placed=False))
    with relay.lap():
        assert handed(module, MeshLines) is None
        assert main_of_phase(module, placed=True).placed


def test_what_is_left_of_one_module_is_not_handed_for_another(module: ir.Module) -> None:
    other = ir.Module.parse(TEXT)
    relay = Relay(module)
    with relay.lap():
        leave(module, main_of_phase(module, placed=False))
        leave(other, main_of_phase(other, placed=False))
    with relay.lap():
        assert handed(other, MainLine) is None
        line = main_of_phase(other, placed=False)
        assert line.steps[0].op == operations(body_of(main_of(other)))[0]
        assert main_of_phase(module, placed=False) is handed(module, MainLine)


def test_operations_that_came_between_two_passes_are_refused(module: ir.Module) -> None:
    relay = Relay(module)
    with relay.lap():
        leave(module, main_of_phase(module, placed=False))
    first = operations(body_of(main_of(module)))[0]
    first.clone(ir.InsertionPoint(first))
    with pytest.raises(RuntimeError, match="an observer changed the module"):
        relay.check()


def test_the_tests_find_a_line_that_the_module_has_left_behind(module: ir.Module) -> None:
    relay = Relay(module)
    with relay.lap():
        line = main_of_phase(module, placed=False)
        first = line.steps[0]
        first.task = 0, 0, 0, 0
        leave(module, line)
        first.op.attributes[at.MESH] = at.i64(1)
    with relay.lap(), pytest.raises(AssertionError):
        handed(module, MainLine)


def test_what_a_step_writes_stands_in_the_module(module: ir.Module) -> None:
    op = operations(body_of(main_of(module)))[2]
    step = Step.of(op)
    argument = body_of(main_of(module)).arguments[0]
    step.use(0, argument)
    assert list(op.operands) == step.operands == [argument]

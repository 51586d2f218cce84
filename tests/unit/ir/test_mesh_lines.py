"""The program as data and as text: what is read, when it is written, and who may change it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.base import run_unwritten
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import LimitError, ProgramError
from jaxpp.ir.functions import body_of, operations
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.program import Constant
from jaxpp.ir.read_lines import read_lines
from jaxpp.program import ProgramModule
from jaxpp.runtime import load

TEXT = """
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %c = stablehlo.constant dense<4.0> : tensor<f32>
    %a = call @forward_0(%x, %c) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
        : (tensor<f32>, tensor<f32>) -> tensor<f32> loc("first.py":1:1)
    %b = call @forward_1(%a, %c) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
        : (tensor<f32>, tensor<f32>) -> tensor<f32> loc("second.py":2:2)
    return %b : tensor<f32>
  }
  FUNCTIONS
}
"""
FUNCTION = """
  func.func private @NAME(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32>
      attributes {jaxpp.kind = "forward", jaxpp.stage = STAGE : i64} {
    %a = stablehlo.add %x, %y : tensor<f32>
    return %a : tensor<f32>
  }
"""
LAST_USE = "jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 1"
PASSES = (InsertTransfers(), PlanBuffers(), VerifyProgram())


def text_with(*stages: int) -> str:
    """The module with a function for each stage, all equal."""
    each = [FUNCTION.replace("NAME", f"forward_{stage}").replace("STAGE", str(stage)) for stage in stages]
    return TEXT.replace("FUNCTIONS", "".join(each))


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with make_context():
        yield ir.Module.parse(text_with(0, 1))


def test_a_function_that_nobody_calls_may_be_the_one_that_stays() -> None:
    alias = "@forward_9(%x: tensor<f32> {tf.aliasing_output = 0 : i32}"
    with make_context():
        module = ir.Module.parse(text_with(9, 0, 1).replace("@forward_9(%x: tensor<f32>", alias))
    run_passes(module, PASSES)
    assert str(module).count("call @forward_9") == 2


def test_merged_functions_leave_each_call_its_location(module: ir.Module) -> None:
    with pytest.raises(LimitError, match=r"second.py:2:2: error: mesh 1 needs 8 bytes"):
        run_passes(module, (*PASSES[:2], VerifyProgram(memory_limit="100 1")))


def test_passes_on_text_merge_functions_too(module: ir.Module) -> None:
    run_passes(module, PASSES[:1])
    assert "@forward_1" in str(module)
    run_passes(module, PASSES[1:])
    assert "@forward_1" not in str(module)


def test_what_a_user_has_written_into_mesh_functions_stays(module: ir.Module) -> None:
    run_passes(module, PASSES)
    function = mesh_functions(module)[1]
    function.attributes["mine"] = ir.UnitAttr.get(module.context)
    with module.context:
        function.attributes[at.BYTES] = at.attribute_of({"peak": 99, "host_peak": 77, "mine": 5})
    run_passes(module, PASSES[1:])
    assert "mine" in function.attributes
    assert at.noted_bytes(function) == {"peak": 8, "mine": 5}


def test_last_uses_are_found_anew(module: ir.Module) -> None:
    run_passes(module, PASSES)
    text = str(module)
    assert LAST_USE in text
    for stale in ("jaxpp.last_use = array<i64: 9>", "jaxpp.last_use = 9 : i64", "jaxpp.last_use = array<i32: 0>"):
        with module.context:
            again = ir.Module.parse(text.replace("jaxpp.last_use = array<i64: 0>", stale))
            with pytest.raises(ProgramError, match=at.LAST_USE):
                read_lines(again)
        run_passes(again, PASSES[1:])
        assert str(again) == text


@pytest.mark.parametrize(
    ("edit", "by", "message"),
    [
        ("return %", "return {jaxpp.last_use = array<i64: 0>} %", "jaxpp.last_use names operand 0, which must not die"),
        ("jaxpp.bytes = {", "jaxpp.bytes = [5], mine = {", r"jaxpp.bytes is \[5\], expected numbers of bytes by name"),
    ],
)
def test_texts_that_are_no_programs(module: ir.Module, edit: str, by: str, message: str) -> None:
    run_passes(module, PASSES)
    head, found, tail = str(module).partition("@mesh_1")
    with module.context:
        broken = ir.Module.parse(head + found + tail.replace(edit, by, 1))
    with pytest.raises(ProgramError, match=message):
        load(broken)


def test_a_module_may_be_changed_by_those_who_take_it(module: ir.Module) -> None:
    program = ProgramModule(module, lines=run_unwritten(module, PASSES))
    peaks = program.peak_bytes
    assert program.module is module
    assert program.peak_bytes == peaks
    with module.context, ir.Location.unknown():
        function = mesh_functions(module)[0]
        literal = next(op for op in operations(body_of(function)) if op.name == "stablehlo.constant")
        new = ir.Operation.parse("%0 = stablehlo.constant dense<5.0> : tensor<f32>")
        ir.InsertionPoint(literal).insert(new)
        literal.results[0].replace_all_uses_with(new.results[0])
        literal.erase()
    values = [each.value for each in program.loaded.sequences[0] if isinstance(each, Constant)]
    assert values == [5.0]


def test_threads_see_the_whole_text(module: ir.Module) -> None:
    expected = ir.Module.parse(text_with(0, 1), module.context)
    run_passes(expected, PASSES)
    program = ProgramModule(module, lines=run_unwritten(module, PASSES))
    with ThreadPoolExecutor(4) as pool:
        texts = [pool.submit(program.as_text) for _ in range(8)]
    assert {each.result() for each in texts} == {str(expected)}


def test_what_was_proven_is_loaded_without_another_proof(module: ir.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ProgramModule(module, lines=run_unwritten(module, PASSES))
    with monkeypatch.context() as patch:
        patch.setattr("jaxpp.runtime.execution.load.ProgramReader", None)
        found = program.loaded
    again = load(ir.Module.parse(program.as_text(), module.context))
    assert found.functions.keys() == again.functions.keys()
    assert (found.sequences, found.registers, found.results) == (again.sequences, again.registers, again.results)

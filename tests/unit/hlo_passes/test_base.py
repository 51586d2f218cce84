"""What a pass is handed in a run, and what the proofs read themselves."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.base import Observer, Pass, run_unwritten
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.once_per_run import OncePerRun
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.verify_main import VerifyMain
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, functions, main_of, operations
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.read_program import ProvenLines
from jaxpp.ir.steps import leave
from jaxpp.ir.write_lines import write_lines

TEXT = """
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %a = call @f(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
        : (tensor<f32>) -> tensor<f32>
    return %a : tensor<f32>
  }
  func.func private @f(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %a = stablehlo.tanh %x : tensor<f32>
    return %a : tensor<f32>
  }
}
"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with make_context():
        yield ir.Module.parse(TEXT)


@dataclass(frozen=True)
class _Breaks(Pass):
    """Leaves what it has read, and then breaks a promise of `@main`."""

    name: ClassVar[str] = "breaks"
    placed: bool
    edit: Callable[[ir.Operation], None]

    def run(self, module: ir.Module) -> None:
        leave(module, main_of_phase(module, placed=self.placed))
        self.edit(main_of(module))


def _forget_the_mesh_of_the_call(main: ir.Operation) -> None:
    del operations(body_of(main))[0].attributes[at.MESH]


def _forget_the_mesh_of_the_argument(main: ir.Operation) -> None:
    at.set_tables(main, arguments=[{}])


def test_the_module_of_the_proofs_keeps_its_promises(module: ir.Module) -> None:
    run_passes(module, (VerifyMain(),))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_Breaks(False, _forget_the_mesh_of_the_call), "the call of @f has no mesh"),
        (_Breaks(True, _forget_the_mesh_of_the_call), "the call of @f has no mesh"),
        (_Breaks(True, _forget_the_mesh_of_the_argument), "argument 0 of @main has no mesh"),
    ],
)
def test_a_proof_reads_the_module(
    module: ir.Module, broken: Pass, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the pass before has left of it; without the check of the tests, which would find that first."""
    monkeypatch.setattr("jaxpp.ir.steps.CHECKS", [])
    with pytest.raises(PassError, match=message):
        run_passes(module, (broken, VerifyMain()))


class _Adds(Observer):
    """An observer that adds a constant to `@main`, which none may."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Add it."""
        first = operations(body_of(main_of(module)))[0]
        constant(ir.RankedTensorType.get([], ir.F32Type.get()), 1, ip=ir.InsertionPoint(first), loc=first.location)


def test_an_observer_must_not_add_operations(module: ir.Module) -> None:
    with pytest.raises(RuntimeError, match="an observer changed the module: it gained or lost operations"):
        run_passes(module, (ShareFunctions(),), (_Adds(),))


class _Looks(Observer):
    """An observer that notes whether the module has mesh functions."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def after(self, step: Pass, module: ir.Module) -> None:
        """Note it."""
        self.seen.append(any(at.MESH in function.attributes for function in functions(module).values()))


class _LooksAway(_Looks):
    """One that tells that it doesn't need them."""

    reads_program = False


@pytest.mark.parametrize("reads", [True, False])
def test_mesh_functions_are_written_when_somebody_looks(module: ir.Module, reads: bool) -> None:
    looks = _Looks() if reads else _LooksAway()
    lines = run_unwritten(module, (InsertTransfers(), PlanBuffers(), VerifyProgram()), (looks,))
    assert looks.seen == [reads] * 3
    assert (lines is None) == reads
    if lines is not None:
        assert isinstance(lines, ProvenLines)
        write_lines(module, lines)
    text = str(module)
    again = ir.Module.parse(TEXT, module.context)
    for step in (InsertTransfers(), PlanBuffers(), VerifyProgram()):
        with module.context, ir.Location.unknown():
            step.run(again)
    assert str(again) == text


@dataclass(frozen=True)
class _CountsMeshes(Pass):
    """A pass that knows nothing of lines, and needs the mesh functions."""

    name: ClassVar[str] = "counts-meshes"
    found: list[int]

    def run(self, module: ir.Module) -> None:
        self.found.append(len(mesh_functions(module)))


def test_a_pass_that_takes_no_lines_sees_the_mesh_functions(module: ir.Module) -> None:
    found = list[int]()
    run_passes(module, (InsertTransfers(), _CountsMeshes(found), PlanBuffers(), _CountsMeshes(found), VerifyProgram()))
    assert found == [1, 1]


PASSES = [
    (
        OncePerRun,
        {"gather_weights": "nonsense"},
        "gather_weights is 'nonsense', expected one of microbatch, ",
    ),
    (
        FindMicrobatchLoop,
        {"schedule": "1f2b"},
        "no schedule is named '1f2b'; did you mean '1f1b'? There are gpipe, ",
    ),
    (
        FindMicrobatchLoop,
        {"meshes": -1},
        "meshes is -1, expected a number of meshes, or 0 for that of the module",
    ),
]


@pytest.mark.parametrize(("of", "options", "text"), PASSES)
def test_options_of_passes_that_there_are_not(of: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        of(**options)

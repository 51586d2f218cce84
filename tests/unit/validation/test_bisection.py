"""`Bisection`: planted faults are found at their pass, and sound passes are not blamed."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._compat import make_context
from jaxpp.hlo_passes import base
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, replace
from jaxpp.ir.functions import nested
from jaxpp.ir.tasks import inherit_task
from jaxpp.validation import MOST_TRIPS
from jaxpp.validation.apart import Apart
from jaxpp.validation.bisection import Bisection, WrongResult, refer
from jaxpp.validation.compare import Difference

STEP = Path(__file__).parents[2] / "lit" / "opt" / "validate.mlir"
PASSES = mpmd("1f1b", 2)


@pytest.fixture(autouse=True)
def users_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes run as they do for users: the observers of tests refuse some faults before the search."""
    monkeypatch.setattr(base, "STANDING", [])


@dataclass(frozen=True)
class Plant(Pass):
    """A broken pass."""

    change: Callable[[ir.Operation], None]
    of: str

    def run(self, module: ir.Module) -> None:
        """Changes the last operation of a name in the loop."""
        self.change([op for op in nested(module.operation) if op.name == self.of and len(op.results[0].type.shape)][-1])


def drop(op: ir.Operation) -> None:
    """Loses what an addition adds to a sum."""
    replace(op, [op.operands[0]])


def swap(op: ir.Operation) -> None:
    left, right = op.operands
    op.operands[0], op.operands[1] = right, left


def zero(op: ir.Operation) -> None:
    replace(op, [constant(op.results[0].type, 0, ip=ir.InsertionPoint(op), loc=op.location)])


def first_row(op: ir.Operation) -> None:
    """Reads always the first microbatch."""
    op.operands[1] = constant(op.operands[1].type, 0, ip=ir.InsertionPoint(op), loc=op.location)


def root(op: ir.Operation) -> None:
    """Makes NaNs of negative numbers."""
    made = stablehlo.sqrt(op.results[0], ip=ir.InsertionPoint.after(op), loc=op.location).owner.operation
    inherit_task(made, op)
    op.results[0].replace_all_uses_except(made.results[0], made)


FAULTS = {
    "a dropped accumulation": Plant(drop, "stablehlo.add"),
    "swapped operands": Plant(swap, "stablehlo.subtract"),
    "a wrong constant": Plant(zero, "stablehlo.multiply"),
    "a wrong index": Plant(first_row, "stablehlo.dynamic_slice"),
    "a NaN": Plant(root, "stablehlo.dot_general"),
}


@functools.cache
def reference(text: str) -> Apart:
    """Returns a process that knows a module, and keeps what it compiled."""
    with make_context() as context, ir.Location.unknown():
        return refer(0, MOST_TRIPS, None, ir.Module.parse(text, context))


def bisect(text: str, steps: Sequence[Pass], lines: list[str]) -> WrongResult | None:
    with make_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text, context)
        search = Bisection(module, steps, partial(reference, text), lines.append)
        return search.wrong_pass(lambda step: f"look at {step.name}")


@pytest.mark.parametrize(
    ("name", "place", "task", "value", "line"),
    [
        ("a dropped accumulation", 1, "microbatch 0", "carried value 6, stablehlo.add", 67),
        ("a dropped accumulation", 9, "backward of stage 1, microbatch 0", "carried value 3, stablehlo.add", 67),
        ("a dropped accumulation", 21, "backward of stage 0, microbatch 0", "result 0, stablehlo.add", 66),
        ("swapped operands", 4, "outside of the microbatches", "stablehlo.subtract", 77),
        ("a wrong constant", 7, "outside of the microbatches", "stablehlo.multiply", 76),
        ("a wrong index", 10, "microbatch 1", "stablehlo.dynamic_slice", 87),
        ("a NaN", 13, "backward of stage 0, microbatch 0", "stablehlo.transpose", 64),
    ],
)
def test_faults_are_found_at_their_pass_task_and_value(name: str, place: int, task: str, value: str, line: int) -> None:
    lines: list[str] = []
    found = bisect(STEP.read_text(), [*PASSES[:place], FAULTS[name], *PASSES[place:]], lines)
    assert found is not None
    text = str(found).splitlines()
    assert text[0] == f"first wrong: after pass 'plant', {place + 1} of {len(PASSES) + 1}"
    assert text[1] == f"task: {task}"
    assert text[2].startswith(f"value: {value} {'is NaN' if name == 'a NaN' else 'differs by '}")
    assert text[3].startswith(f"line: -:{line}:")
    assert text[4].startswith("result: result ")
    assert text[5].startswith("error: is NaN" if name == "a NaN" else "error: differs by ")
    assert text[6] == "next: look at plant"
    assert len(lines) <= math.ceil(math.log2(len(PASSES) + 1)) + 2


def test_an_early_free_is_found() -> None:
    class Free(Pass):
        """A broken pass."""

        def run(self, module: ir.Module) -> None:
            """Frees the batch in the first task."""
            calls = (op for op in nested(module.operation) if op.name == "func.call")
            call = next(op for op in calls if at.MICROBATCH in op.attributes)
            call.attributes[at.LAST_USE] = at.i64s(range(len(call.operands)))

    lines: list[str] = []
    found = bisect(STEP.read_text(), [*PASSES[:-1], Free(), PASSES[-1]], lines)
    assert found is not None
    assert found.cause == f"after pass 'free', {len(PASSES)} of {len(PASSES) + 1}"
    assert found.worst.title == "the module"
    assert found.worst.problem.startswith("does not run: ")
    assert lines[0] == f"pass 'verify-program' fails: the search is among the {len(PASSES)} passes before it"


@pytest.mark.parametrize("type_", ["f32", "bf16"])
def test_sound_passes_are_not_blamed(type_: str) -> None:
    lines: list[str] = []
    assert bisect(STEP.read_text().replace("f32", type_), PASSES, lines) is None
    assert lines == [f"the module after {len(PASSES)} of {len(PASSES)} passes: the results agree"]


def test_a_fault_in_bfloat16() -> None:
    fault = FAULTS["a dropped accumulation"]
    found = bisect(STEP.read_text().replace("f32", "bf16"), [*PASSES[:2], fault, *PASSES[2:]], [])
    assert found is not None
    assert found.cause == f"after pass 'plant', 3 of {len(PASSES) + 1}"


def test_a_module_that_does_not_run_is_wrong(tmp_path: Path) -> None:
    def lose(op: ir.Operation) -> None:
        made = ir.Operation.create(
            "stablehlo.custom_call",
            results=[op.results[0].type],
            attributes={"call_target_name": ir.StringAttr.get("nobody_has_it")},
            ip=ir.InsertionPoint(op),
        )
        replace(op, made.results)

    steps = [PASSES[0], Plant(lose, "stablehlo.subtract"), *PASSES[1:3]]
    found = bisect(STEP.read_text(), steps, [])
    assert found is not None
    assert found.cause == "after pass 'plant', 2 of 4"
    assert found.worst.title == "the module"
    assert found.worst.problem.startswith("does not run: custom call @nobody_has_it")
    assert found.line == ""


def test_the_worst_result_is_shown() -> None:
    found = WrongResult("here", [Difference("a", "little", 0, 0.1), Difference("b", "much", 1, 0.2)], "", "go on")
    assert str(found) == (
        "first wrong: here\ntask: unknown\nvalue: unknown\nline: unknown\n"
        "result: b, and 1 more\nerror: much\nnext: go on"
    )


def test_no_passes_change_nothing() -> None:
    assert bisect(STEP.read_text(), [], []) is None

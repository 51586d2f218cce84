"""The sums of a step, compared from pass to pass."""

from functools import partial

import pytest
from fuzz import sum_faults
from fuzz.kept_sums import KeptSums, KeptSumsOfProgram
from fuzz.planted_sums import SumFault
from jaxlib.mlir import ir
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import debug
from jaxpp._compat import own_copy
from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.ir.errors import PassError

Material = tuple[ir.Module, list[Pass]]


@pytest.fixture(scope="module")
def chain() -> Material:
    """The module and the passes of a step of two stages."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="1f1b"), make_mesh(2))
    seen = debug.PassesSeen()
    with debug.watching(seen):
        step.lower(weights(2), batch(4)).program()
    return seen.module, [*seen.steps]


def refused(material: Material, kind: str, after: str) -> str:
    """Returns the words with which a fault after a pass is refused; each fault is at the first place for it."""
    module, steps = material
    index = 1 + [step.name for step in steps].index(after)
    with pytest.raises(PassError) as error:
        run_passes(own_copy(module), [*steps[:index], SumFault(kind, 0), *steps[index:]], [KeptSumsOfProgram()])
    return str(error.value)


def test_a_sound_step_is_passed(chain: Material) -> None:
    for observer in (KeptSums(), KeptSumsOfProgram()):
        run_passes(own_copy(chain[0]), chain[1], [observer])


@pytest.mark.parametrize(
    ("kind", "after", "words"),
    [
        (
            "a mean for a sum",
            "outline-stages",
            "compare.py:107:37: error: after add-tasks, result[0][1] of the step depends on -0.025 times the sum over "
            "4 microbatches of stage 1; after delay-reductions on -0.1 times the sum over 4 microbatches of stage 1\n"
            "  a pass between the two dropped a sum, or scaled it",
        ),
        ("a term that is lost", "share-functions", "after verify-program, result[0][1] of the step depends on no such"),
        ("a microbatch that is left out", "insert-transfers", "a sum over 4 microbatches lacks what the backward of"),
        ("a term that is added twice", "assign-stages", "depends on -0.2 times the sum over 4 microbatches; after"),
        ("a clip before the sum", "infer-placement", "after share-functions, result[0][1] of the step depends on no"),
    ],
)  # fmt: skip
def test_a_fault_is_refused(chain: Material, kind: str, after: str, words: str) -> None:
    assert words in refused(chain, kind, after)


def test_a_sum_over_experts_is_kept() -> None:
    kinds = ["a collective that is lost", "a collective that is doubled"]
    outcome = sum_faults.run(sum_faults.EXPERTS, kinds)
    assert outcome.alarm == ""
    assert [kind for kind, *_ in outcome.faults] == kinds
    assert all("added over expert" in error for *_, error in outcome.faults)

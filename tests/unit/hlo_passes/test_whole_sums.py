"""The sums of a step, compared from pass to pass."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fuzz import sum_faults
from fuzz.planted_sums import SumFault
from jaxlib.mlir import ir
from unit.end_to_end.compare import batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import debug
from jaxpp._compat import own_copy
from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.hlo_passes.whole_sums import WholeSums, WholeSumsOfProgram
from jaxpp.ir.errors import PassError

Material = tuple[ir.Module, list[Pass]]


@pytest.fixture(scope="module")
def chain() -> Material:
    """The module and the passes of a step of two stages."""
    return passes_of(partial(sgd_step, schedule="1f1b"))


def passes_of(function: Callable[..., Any]) -> Material:
    """The module and the passes of a step that takes weights and a batch."""
    step, seen = jaxpp.mpmd_jit_with_loop(function, make_mesh(2)), debug.PassesSeen()
    with debug.watching(seen):
        step.lower(weights(2), batch(4)).program()
    return seen.module, [*seen.steps]


def refused(material: Material, kind: str, after: str) -> str:
    """Returns the words with which a fault after a pass is refused; each fault is at the first place for it."""
    module, steps = material
    index = 1 + [step.name for step in steps].index(after)
    with pytest.raises(PassError) as error:
        run_passes(own_copy(module), [*steps[:index], SumFault(kind, 0), *steps[index:]], [WholeSumsOfProgram()])
    return str(error.value)


def test_a_sound_step_is_passed(chain: Material) -> None:
    for observer in (WholeSums(), WholeSumsOfProgram()):
        run_passes(own_copy(chain[0]), chain[1], [observer])


def test_a_factor_that_a_pass_finds_to_be_a_constant_is_not_compared() -> None:
    """In the loop the number of rows is a sum, and after it a constant."""

    def counted(params: Any, microbatch: Any) -> Any:
        return loss(params, microbatch), jnp.sum(jnp.ones(3))

    def step(params: Any, batch: Any) -> Any:
        operation = (jaxpp.Mean, jaxpp.Count), jaxpp.Mean
        gradient = partial(jax.value_and_grad(counted, has_aux=True), params)
        _, gradients = jaxpp.treduce(gradient, batch, schedule="1f1b", operation=operation)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    module, steps = passes_of(step)
    run_passes(own_copy(module), steps, [WholeSumsOfProgram()])


@pytest.mark.parametrize(
    ("kind", "after", "words"),
    [
        (
            "a mean for a sum",
            "outline-stages",
            "compare.py:101:20: error: after add-tasks, result[0][1] of the step depends on -0.025 times the sum over "
            "4 microbatches of stage 1; after delay-reductions on -0.1 times the sum over 4 microbatches of stage 1\n"
            "  a pass between the two dropped a sum, or scaled it",
        ),
        ("a term that is lost", "share-functions", "after verify-program, result[0][1] of the step depends on no"),
        ("a microbatch that is left out", "insert-transfers", "a sum over 4 microbatches lacks what the backward of"),
        ("a term that is added twice", "assign-stages", "on -0.2 times the sum over 4 microbatches of stage 0; after"),
        ("a clip before the sum", "infer-placement", "on -0.1 times the sum over 1 microbatch of stage 1; after"),
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

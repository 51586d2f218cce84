"""`StepOptions`, and the keywords of `mpmd_jit_with_loop` that became its fields."""

import inspect
import re
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from unit.end_to_end import decoder
from unit.end_to_end.compare import batch, check, lowered, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.hlo_passes import Pass
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant
from jaxpp.ir.functions import body_of, functions
from jaxpp.step_options import OtherKeywords

GIVEN: dict[str, Any] = {
    "operations": {"log": print},
    "gather_weights": "step",
    "scatter_gradients": "chunk",
    "share_tasks": "never",
    "host_memory_limit": "1 GB",
    "costs": schedules.Costs(),
}
JAXPP = {"in_specs", "out_specs"}


def made(**keywords: Any) -> tuple[Any, Any, Any]:
    """The parts of a step that depend on its options."""
    step = jaxpp.mpmd_jit_with_loop(sgd_step, make_mesh(2), memory_limit="1 GB", **keywords)
    return step._options["operations"], step._passes, step._costs


@pytest.mark.parametrize("name", GIVEN)
def test_a_field_is_a_keyword_for_one_release(name: str) -> None:
    message = f"mpmd_jit_with_loop: {name}=... is deprecated: options=jaxpp.StepOptions({name}=...)"
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(message)}$") as warned:
        old = made(**{name: GIVEN[name]})
    assert Path(warned[0].filename) == Path(__file__)
    assert old == made(options=jaxpp.StepOptions(**{name: GIVEN[name]})) != made()


def test_keywords_are_added_to_the_options() -> None:
    both = jaxpp.StepOptions(gather_weights="step", share_tasks="never")
    with pytest.warns(DeprecationWarning, match=r"gather_weights=\.\.\., share_tasks=\.\.\. is deprecated"):
        assert made(gather_weights="step", share_tasks="never") == made(options=both)
    with pytest.warns(DeprecationWarning, match="share_tasks"):
        assert made(options=jaxpp.StepOptions(gather_weights="step"), share_tasks="never") == made(options=both)


def test_all_fields_and_the_keywords_of_jaxpp_are_known() -> None:
    assert OtherKeywords.__annotations__.keys() == GIVEN.keys() | JAXPP
    assert {each.name for each in fields(jaxpp.StepOptions)} == GIVEN.keys() | {"passes"}  # which was no keyword
    parameters = inspect.signature(jaxpp.mpmd_jit_with_loop).parameters.keys() | JAXPP
    jaxpps = {"mpmd_mesh", "in_shardings", "out_shardings", "static_argnums", "donate_argnums", "compiler_options"}
    assert jaxpps | JAXPP <= parameters


def test_what_is_refused() -> None:
    for name in ("donate", "passes"):
        with pytest.raises(TypeError, match=rf"^mpmd_jit_with_loop\(\) got an unexpected keyword argument '{name}'$"):
            made(**{name: 0})
    for wrong in ({}, "auto"):
        with pytest.raises(TypeError, match=rf"^options: expected jaxpp\.StepOptions, found {type(wrong).__name__}$"):
            made(options=wrong)


@dataclass(frozen=True)
class AddConstants(Pass):
    """Adds constants to the functions of stages, and may break the module."""

    how: str = ""

    def run(self, module: ir.Module) -> None:
        """Adds a constant; breaks the module if told so."""
        first = next(op for name, op in functions(module).items() if name.startswith("forward_"))
        block = body_of(first)
        with ir.InsertionPoint.at_block_begin(block), ir.Location.file("mine.py", 3, 4):
            made = constant(ir.RankedTensorType.get([], ir.F32Type.get()), 7)
            if self.how == "invalid":
                stablehlo.AddOp.build_generic(results=[block.arguments[0].type], operands=[made])
        if self.how == "promise":
            del first.attributes[at.KIND]


class Nothing(Pass):
    """Does nothing."""

    def run(self, module: ir.Module) -> None:
        """Does nothing."""


def program_of(*passes: tuple[str, Pass], **options: Any) -> str:
    step = jaxpp.mpmd_jit_with_loop(
        sgd_step, make_mesh(2), schedule="1f1b", options=jaxpp.StepOptions(passes=passes), **options
    )
    return step.lower(weights(2), batch(2)).program().as_text()


@pytest.mark.parametrize("options", [{}, {"memory_limit": "1 GB"}])
def test_passes_of_ones_own(options: dict[str, Any]) -> None:
    passes = [("outline-stages", AddConstants()), ("add-tasks", AddConstants()), ("outline-stages", AddConstants())]
    found = program_of(*passes, **options)
    assert found.count("dense<7.0") == 3
    assert "dense<7.0" not in program_of(**options)


SLICED = partial(decoder.train_step, schedule="seq1f1b{slices=3}", loss=partial(decoder.loss, slices=3))


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        (partial(sgd_step, schedule="1f1b"), (weights(2), batch(2))),
        (partial(sgd_step, schedule="zb-v"), (weights(4), batch(2))),
        (SLICED, (decoder.parameters(2), decoder.batch(2))),
    ],
    ids=["1f1b", "zb-v", "seq1f1b"],
)
def test_a_pass_that_does_nothing_changes_nothing_anywhere(step: Any, arguments: Any) -> None:
    everywhere = [(each.name, Nothing()) for each in mpmd()[:-1]]
    programs = [lowered(step, arguments, make_mesh(2), passes=passes).program() for passes in ([], everywhere)]
    assert programs[0].as_text() == programs[1].as_text()


def test_a_step_with_a_pass_of_ones_own_computes_the_same() -> None:
    check(
        partial(sgd_step, schedule="1f1b"), (weights(2), batch(2)), make_mesh(2), passes=[("add-tasks", AddConstants())]
    )


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (
            [("outline-stages", AddConstants("invalid"))],
            "mine.py:3:4: error: pass 'add-constants' made an invalid module: "
            "'stablehlo.add' op expected 2 operands, but found 1",
        ),
        (
            [("outline-stages", AddConstants("promise"))],
            "pass 'add-constants' broke a promise: the loop calls @forward_0, which is no task: no jaxpp.kind\n"
            "  docs/ir.md has the promises between passes",
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, {"memory_limit": 4096}])
def test_a_pass_that_breaks_the_module(passes: Any, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(jaxpp.PassError) as error:
        program_of(*passes, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("passes", "kind", "message"),
    [
        ([AddConstants()], TypeError, "passes: expected pairs such as ('outline-stages', MyPass()), found AddConstant"),
        ([("outline-stages", AddConstants)], TypeError, "passes: expected pairs such as ('outline-stages', MyPass())"),
        ([("outline", AddConstants())], ValueError, "is named 'outline'; did you mean 'outline-stages'?"),
        (
            [("verify-program", AddConstants())],
            ValueError,
            "pass 'add-constants': no pass before verify-program is named 'verify-program'; ",
        ),
    ],
)
def test_passes_that_are_refused(passes: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        program_of(*passes)

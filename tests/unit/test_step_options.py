"""`StepOptions`, and the keywords of `mpmd_jit_with_loop` that became its fields."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from unit.end_to_end.compare import make_mesh, sgd_step

import jaxpp.api as jaxpp
from jaxpp import schedules
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
    assert OtherKeywords.__annotations__.keys() == {each.name for each in fields(jaxpp.StepOptions)} | JAXPP
    assert {each.name for each in fields(jaxpp.StepOptions)} == GIVEN.keys()
    parameters = inspect.signature(jaxpp.mpmd_jit_with_loop).parameters.keys() | JAXPP
    jaxpps = {"mpmd_mesh", "in_shardings", "out_shardings", "static_argnums", "donate_argnums", "compiler_options"}
    assert jaxpps | JAXPP <= parameters


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^mpmd_jit_with_loop\(\) got an unexpected keyword argument 'donate'$"):
        made(donate=0)
    for wrong in ({}, "auto"):
        with pytest.raises(TypeError, match=rf"^options: expected jaxpp\.StepOptions, found {type(wrong).__name__}$"):
            made(options=wrong)

"""`jaxpp.debug.bisect`: a step beside a reference."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from unit.end_to_end.compare import batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import debug
from jaxpp.hlo_passes.loop.split_stacks import SplitStacks
from jaxpp.ir.functions import nested
from jaxpp.validation import ValidationError


def step_of(**options: Any) -> Any:
    return partial(sgd_step, schedule="1f1b", loss=loss, **options)


def made() -> Any:
    return jaxpp.mpmd_jit_with_loop(step_of(), make_mesh(2), donate_argnums=0)


def test_a_right_step_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    params = weights(2)
    assert debug.bisect(made(), jax.jit(step_of()), params, batch(2)) is None
    assert capsys.readouterr().out == "the 3 results agree with the reference\n"
    assert not any(w.is_deleted() for w in params)


def test_a_function_that_is_not_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    def other(params: Any, data: Any) -> Any:
        (first, second), losses = jax.jit(step_of())(params, data)
        return [first, second * 1.01], losses

    found = debug.bisect(made(), other, weights(2), batch(2))
    assert found is not None
    assert found.cause == "before all passes"
    assert [each.number for each in found.differences] == [1]
    assert found.line.rpartition(":")[0].rpartition(":")[0].endswith("compare.py")
    first, result, error, line, following = capsys.readouterr().out.splitlines()
    assert first == "first wrong: before all passes"
    assert result.startswith("result: result 1 (")
    assert error.startswith("error: differs by ")
    assert line == f"line: {found.line}"
    assert following.startswith("next: the function of the step is not the reference")


def test_a_broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SplitStacks.run

    def broken(self: SplitStacks, module: ir.Module) -> None:
        right(self, module)
        op = [op for op in nested(module.operation) if op.name == "stablehlo.subtract"][-1]
        left, other = op.operands
        op.operands[0], op.operands[1] = other, left

    monkeypatch.setattr(SplitStacks, "run", broken)
    found = debug.bisect(made(), jax.jit(step_of()), weights(2), batch(2))
    assert found is not None
    assert found.cause == "after pass 'split-stacks', 9 of 27"


def test_a_wrong_run(monkeypatch: pytest.MonkeyPatch) -> None:
    right = debug.on_host

    def wrong(tree: Any) -> Any:
        first, *others = right(tree)
        return [first + 1, *others]

    calls = iter([wrong])  # the results of the step
    monkeypatch.setattr(debug, "on_host", lambda tree: next(calls, right)(tree))
    found = debug.bisect(made(), jax.jit(step_of()), weights(2), batch(2))
    assert found is not None
    assert found.cause == "in the run, after all passes"


def test_no_step_and_other_results() -> None:
    with pytest.raises(TypeError, match=r"^bisect: expected a step of mpmd_jit_with_loop, found function$"):
        debug.bisect(loss, loss)
    with pytest.raises(ValidationError, match="result 1 has the shape None, expected"):
        debug.bisect(made(), lambda *_: jnp.zeros((8, 8)), weights(2), batch(2))

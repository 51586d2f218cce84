"""`jaxpp.debug.bisect`: a step beside a reference."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from unit.end_to_end.compare import batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import debug
from jaxpp.hlo_passes import base
from jaxpp.hlo_passes.loop.split_stacks import SplitStacks
from jaxpp.ir.functions import nested
from jaxpp.runtime import Executable
from jaxpp.validation import ValidationError
from jaxpp.validation.compare import Tolerance
from jaxpp.validation.records import Record


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
    first, task, value, line, result, error, following = capsys.readouterr().out.splitlines()
    assert first == "first wrong: before all passes"
    assert (task, value) == ("task: unknown", "value: unknown")
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
    monkeypatch.setattr(base, "STANDING", standing := [])  # without the sums, which show this fault, too
    monkeypatch.setattr(debug, "STANDING", standing)
    found = debug.bisect(made(), jax.jit(step_of()), weights(2), batch(2))
    assert found is not None
    assert found.cause == "after pass 'split-stacks', 9 of 27"
    assert found.value is not None
    assert (found.value.task, found.value.operation) == ("outside of the microbatches", "stablehlo.subtract")
    assert found.line.partition(":")[0].endswith("compare.py")


def test_a_wrong_run_names_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Executable._dispatch  # nothing else makes a device compute wrongly

    def wrong(self: Executable, steps: Any, registers: Any, observe: Any = None) -> None:
        def broken(step: Any) -> Any:
            function, operands, results, frees, handlers, label = step
            if not any(str(each) == "backward of stage 1, microbatch 1" for _, each in label):
                return step
            return function, lambda values: _doubled(operands(values)), results, frees, handlers, label

        right(self, list(map(broken, steps)), registers, observe)

    monkeypatch.setattr(Executable, "_dispatch", wrong)
    found = debug.bisect(made(), jax.jit(step_of()), weights(2), batch(2))
    assert found is not None
    assert found.cause == "in the run, after all passes"
    assert found.value is not None
    assert found.value.task == "backward of stage 1, microbatch 1 on mesh 1"
    assert found.line.partition(":")[0].endswith("compare.py")


def _doubled(operands: Any) -> list[Any]:
    """Returns the operands of a task, the first one of floating point numbers doubled."""
    number = next(n for n, each in enumerate(operands) if jnp.issubdtype(each.dtype, jnp.floating) and each.ndim)
    return [2 * each if n == number else each for n, each in enumerate(operands)]


def test_records_of_two_schedules(tmp_path: Path) -> None:
    for name in ("1f1b", "gpipe"):
        step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=name, loss=loss), make_mesh(2), donate_argnums=0)
        debug.record(step, tmp_path / f"{name}.npz", weights(2), batch(4))
    one, other = (Record.from_bytes((tmp_path / f"{name}.npz").read_bytes()) for name in ("1f1b", "gpipe"))
    assert {str(each.task) for each in one.values} == {str(each.task) for each in other.values}
    assert one.differences(other, Tolerance(1e-5)) == []
    assert one.wrong_value(other, Tolerance(1e-5)) is None


def test_no_step_and_other_results() -> None:
    with pytest.raises(TypeError, match=r"^bisect: expected a step of mpmd_jit_with_loop, found function$"):
        debug.bisect(loss, loss)
    with pytest.raises(TypeError, match=r"^record: expected a step of mpmd_jit_with_loop, found function$"):
        debug.record(loss, "never.npz")
    with pytest.raises(ValidationError, match="result 1 has the shape None, expected"):
        debug.bisect(made(), lambda *_: jnp.zeros((8, 8)), weights(2), batch(2))

"""`jaxpp-bisect`: its answers, and the text of its errors."""

from pathlib import Path
from unittest import mock

import pytest
import runline
from jaxlib.mlir import ir

from jaxpp.hlo_passes import PASSES
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.functions import nested
from jaxpp.tools import bisect

STEP = Path(__file__).parents[2] / "lit" / "opt" / "validate.mlir"


class SwapSubtract(Pass):
    """A broken pass."""

    def run(self, module: ir.Module) -> None:
        """Swaps the operands of the last subtraction."""
        op = [op for op in nested(module.operation) if op.name == "stablehlo.subtract"][-1]
        left, right = op.operands
        op.operands[0], op.operands[1] = right, left


def test_the_pass_the_result_and_the_line() -> None:
    passes = "inline-calls,swap-subtract,canonicalize,cse"
    with mock.patch.dict(PASSES, {"swap-subtract": SwapSubtract}):
        code, output, errors = runline.call(bisect.main, STEP, "-p", passes).texts
    assert code == 1
    first, result, error, line, following = output.splitlines()
    assert first == "first wrong: after pass 'swap-subtract', 2 of 4"
    assert result == "result: result 1 (result[0][1])"
    assert error.startswith("error: differs by ")
    assert line == f"line: {STEP}:77:10"
    assert following == (
        f"next: jaxpp-reduce {STEP} -p {passes} --stop-after swap-subtract --validate "
        "--expect 'changed what the module computes'"
    )
    assert errors.splitlines()[0] == "the module after 4 of 4 passes: wrong results: 1"


@pytest.mark.parametrize(("name", "task"), [("log", "forward of stage 1, microbatch 0 on mesh 1"), ("tanh", "")])
def test_the_first_nan_of_a_program(name: str, task: str, tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(STEP.read_text().replace("stablehlo.tanh %19", f"stablehlo.{name} %19"))
    arguments = ("--pipeline", "mpmd", "--schedule", "1f1b", "--meshes", "2", "--nan")
    code, output, _ = runline.call(bisect.main, path, *arguments).texts
    if task:
        assert (code, output.splitlines()[0]) == (1, f"first NaN: {task}")
        assert output.splitlines()[1].startswith("value: stablehlo.log, ")
        assert output.splitlines()[2] == f"line: {path}:35:13"
    else:
        assert (code, output) == (0, f"{path}: no value is NaN after 27 passes\n")


def test_the_first_nan_before_there_are_tasks(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %0 = stablehlo.log %x : tensor<4xf32>\n  %1 = stablehlo.add %0, %x : tensor<4xf32>\n"
        "  return %1 : tensor<4xf32>\n}\n"
    )
    code, output, _ = runline.call(bisect.main, path, "-p", "inline-calls", "--nan").texts
    assert (code, output.splitlines()[0], output.splitlines()[2]) == (1, "first NaN: @main", f"line: {path}:2:8")


def test_the_root_of_the_state_of_an_optimizer_is_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(
        """
        func.func @main(%w: tensor<4xf32>, %moment: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.optimization_barrier {
            jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %w : tensor<4xf32>
          %1 = stablehlo.sqrt %moment : tensor<4xf32>
          %2 = stablehlo.add %0, %1 : tensor<4xf32>
          return %2 : tensor<4xf32>
        }"""
    )
    assert runline.call(bisect.main, path, "-p", "inline-calls", "--nan").texts[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "error: the input is empty; expected an MLIR module"),
        ("func.func private @main() { return }", "has neither a public function @main nor mesh functions"),
        ("func.func @f() { return }", "has neither a public function @main nor mesh functions"),
    ],
)
def test_bad_input_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(text)
    code, output, errors = runline.call(bisect.main, path, "-p", "inline-calls").texts
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(f"{path}: error: ")
    assert message in errors


def test_a_pass_that_refuses_the_module(tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text("func.func @main() { return }")
    code, output, errors = runline.call(bisect.main, path, "-p", "find-microbatch-loop").texts
    assert (code, output) == (1, "")
    assert errors == f"{path}:1:1: error: no microbatch loop, and no stage mark\n"


def test_usage() -> None:
    code, _, errors = runline.call(bisect.main, STEP).texts
    assert code == 2
    assert errors.splitlines()[-1] == "jaxpp-bisect: error: give the passes, with -p or --pipeline"

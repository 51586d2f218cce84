"""`jaxpp-bisect`: its answers, and the text of its errors."""

from pathlib import Path
from unittest import mock

import pytest
import runline
from jaxlib.mlir import ir

from jaxpp.hlo_passes import PASSES
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.functions import nested
from jaxpp.tools import bisect, execute, opt

STEP = Path(__file__).parents[2] / "lit" / "opt" / "validate.mlir"
BASIC = Path(__file__).parents[2] / "lit" / "execute" / "basic.mlir"


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
    first, task, value, line, result, error, following = output.splitlines()
    assert first == "first wrong: after pass 'swap-subtract', 2 of 4"
    assert task == "task: outside of the microbatches"
    assert value.startswith("value: stablehlo.subtract differs by ")
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


def test_the_first_nan_in_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(
        """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %two = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %root = stablehlo.sqrt %y : tensor<4xf32>
    stablehlo.return %next, %root : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
"""
    )
    code, output, _ = runline.call(bisect.main, path, "-p", "inline-calls", "--nan").texts
    first, value, line = output.splitlines()
    assert (code, first, line) == (1, "first NaN: @main", f"line: {path}:11:13")
    assert value.startswith("value: stablehlo.sqrt, ")


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
    assert errors.splitlines()[-1] == "jaxpp-bisect: error: give the passes, with -p or --pipeline, or a second file"
    for more, message in (
        (("-p", "cse"), "two files are compared as they are: leave out the passes"),
        (("--nan",), "two files are compared as they are: leave out --nan"),
    ):
        code, _, errors = runline.call(bisect.main, STEP, STEP, *more).texts
        assert (code, errors.splitlines()[-1]) == (2, f"jaxpp-bisect: error: {message}")
    code, _, errors = runline.call(bisect.main, "-", "-", stdin="").texts
    assert (code, errors.splitlines()[-1]) == (2, "jaxpp-bisect: error: the two files can't both be stdin")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Programs of one step by two schedules, a wrong one, and records of the first and of the wrong one."""
    folder = tmp_path_factory.mktemp("programs")
    found = {name: folder / f"{name}.mlir" for name in ("1f1b", "gpipe", "wrong")}
    for name in ("1f1b", "gpipe"):
        pipeline = ("--pipeline", "mpmd", "--schedule", name, "--meshes", 2)
        assert runline.call(opt.main, BASIC, *pipeline, "-o", found[name], stdin="").texts[0] == 0
    text = found["gpipe"].read_text(encoding="utf-8")
    found["wrong"].write_text(text.replace("stablehlo.cosine", "stablehlo.tanh"), encoding="utf-8")
    for name in ("1f1b", "wrong"):
        found[f"{name} record"] = record = folder / f"{name}.npz"
        assert runline.call(execute.main, found[name], "--record", record, stdin="").texts[0] == 0
    return found


@pytest.mark.parametrize("one", ["1f1b", "1f1b record"])
@pytest.mark.parametrize("other", ["wrong", "wrong record"])
def test_two_programs_or_records(one: str, other: str, programs: dict[str, Path]) -> None:
    code, output, errors = runline.call(bisect.main, programs[one], programs[other]).texts
    assert (code, errors) == (1, "")
    first, task, value, line, result, error, _ = output.splitlines()
    assert first == f"first wrong: {programs[other]} beside {programs[one]}"
    assert task.startswith("task: forward of stage 1, microbatch 0")
    assert value.startswith("value: result 0, stablehlo.")
    assert line.startswith(f"line: {programs['1f1b']}:")
    assert result.startswith("result: result 0")
    assert error.startswith("error: differs by ")


def test_two_schedules_agree(programs: dict[str, Path]) -> None:
    for one in ("1f1b", "1f1b record"):
        code, output, _ = runline.call(bisect.main, programs[one], programs["gpipe"]).texts
        assert (code, output) == (0, f"{programs['gpipe']}: the results agree with {programs[one]}\n")


def test_a_record_of_a_program_that_lacks_an_argument_of_the_reference(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    record = tmp_path / "record.npz"
    given = programs["1f1b"], "--reference", BASIC, "--record", record
    assert runline.call(execute.main, *given, stdin="").texts[0] == 0
    code, output, _ = runline.call(bisect.main, record, programs["gpipe"]).texts
    assert (code, output) == (0, f"{programs['gpipe']}: the results agree with {record}\n")


def test_records_that_do_not_fit(programs: dict[str, Path], tmp_path: Path) -> None:
    record, other = programs["1f1b record"], tmp_path / "other.npz"
    other.write_bytes(b"PK")
    code, output, errors = runline.call(bisect.main, record, other).texts
    assert (code, output, errors) == (1, "", f"{other}: error: it is no record of a run: File is not a zip file\n")
    assert runline.call(execute.main, programs["1f1b"], "--record", other, "--seed", 1, stdin="").texts[0] == 0
    code, output, errors = runline.call(bisect.main, record, other).texts
    told = "the arguments have other numbers: record both runs with the same arguments and --seed"
    assert (code, output, errors) == (1, "", f"{other}: error: {told}\n")
    code, output, errors = runline.call(execute.main, BASIC, "--record", other, stdin="").texts
    told = "--record: error: a module with @main has no tasks to record, expected a program"
    assert (code, errors.splitlines()[-1]) == (1, told)

"""`jaxpp-reduce`: each reduction, the search, and the ends of a run."""

import argparse
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import runline
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.schedules.errors import ScheduleError
from jaxpp.tools import reduce, reduce_run
from jaxpp.tools.reduce_run import Reducer
from jaxpp.tools.reductions import (
    REDUCTIONS,
    Arguments,
    Attributes,
    ByArguments,
    ByOperands,
    ByZeros,
    Carried,
    FewerResults,
    FewerStages,
    Functions,
    Passes,
    Reduction,
    Regions,
    SmallerNumbers,
    clean,
    size,
)

ROOT = Path(__file__).parents[3]
CHAIN = """
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  %1 = stablehlo.cosine %0 : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""
LOOP = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<6> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %b = stablehlo.cosine %a : tensor<4xf32>
      stablehlo.return %next, %b : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}
"""


def reduced(text: str, reduction: Reduction, first: int = 0, end: int | None = None) -> str:
    """The module after a reduction at some of its sites."""
    with make_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text, context)
        module = reduction.apply(module, reduction.sites(module)[first:end])
        clean(module)
        assert module.operation.verify()
        return str(module)


def count_of(text: str) -> int:
    with make_context() as context:
        return size(ir.Module.parse(text, context))


CALLED = (
    CHAIN.replace("@main", "private @f")
    + """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0:2 = func.call @f(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#1 : tensor<4xf32>
}"""
)
"""A chain in a function that @main calls."""


def test_passes_inline_calls_first() -> None:
    found = reduced(CALLED, Passes(), end=1)
    assert "@f" not in found
    assert "stablehlo.cosine" in found


def test_functions_return_zeros() -> None:
    found = reduced(CALLED, Functions())
    assert "func.func private @f" in found
    assert "stablehlo.cosine" not in found


def test_results_go_with_what_only_they_need() -> None:
    found = reduced(CHAIN, FewerResults(), first=1)
    assert "stablehlo.cosine" not in found
    assert "-> tensor<4xf32> {" in found


def test_dropped_results_end_donation_to_them() -> None:
    donated = CHAIN.replace("%y: tensor<4xf32>", "%y: tensor<4xf32> {tf.aliasing_output = 1 : i32}")
    assert "tf.aliasing_output" not in reduced(donated, FewerResults(), end=1)


def test_unused_arguments_go_and_feeds_are_renumbered() -> None:
    text = CHAIN.replace("-> (tensor<4xf32>,", "-> (tensor<4xf32> {jaxpp.feeds = 1 : i64},").replace("%x, %y", "%y, %y")
    found = reduced(text, Arguments())
    assert "(%arg0: tensor<4xf32>) ->" in found
    assert "jaxpp.feeds = 0" in found


def test_zeros_replace_operations() -> None:
    found = reduced(CHAIN, ByZeros())
    assert "stablehlo.add" not in found
    assert "dense<0.000000e+00>" in found


def test_operands_replace_operations() -> None:
    assert "return %arg0, %arg0" in reduced(CHAIN, ByOperands())


def test_arguments_replace_operations_whose_operands_are_of_other_types() -> None:
    text = """
    func.func @main(%x: tensor<f32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    assert "return %arg1" in reduced(text, ByArguments())
    assert "broadcast_in_dim" in reduced(text, ByOperands())


def test_an_operation_without_results_goes() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) {
      %0 = stablehlo.custom_call @f(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
      return
    }"""
    assert count_of(reduced(text, ByZeros())) == 0


def test_a_loop_runs_once() -> None:
    found = reduced(LOOP, Regions())
    assert "stablehlo.while" not in found
    assert "stablehlo.cosine %arg0" in found


@pytest.mark.parametrize("branch", [0, 1])
def test_a_conditional_becomes_one_of_its_branches(branch: int) -> None:
    text = """
    func.func @main(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.if"(%c) ({
        %1 = stablehlo.cosine %x : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }, {
        %1 = stablehlo.sine %x : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    found = reduced(text, Regions(), first=branch)
    assert "stablehlo.if" not in found
    assert ("cosine" if branch == 0 else "sine %") in found


def test_carried_values_keep_their_initial_value() -> None:
    found = reduced(LOOP, Carried(), first=1)
    assert "stablehlo.while" not in found  # nothing uses its count
    assert "return %arg0" in found


def test_numbers_change_dimensions_and_limits_but_no_names() -> None:
    text = reduced(LOOP.replace("@main", "@main6"), SmallerNumbers(), end=1)
    assert "dense<1> : tensor<i32>" in text
    assert "@main6" in text
    halved = """
    func.func @main(%x: tensor<2x4xf32>) -> tensor<4x2xf32> {
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
      return %0 : tensor<4x2xf32>
    }"""
    assert "tensor<2x1xf32>) -> tensor<1x2xf32>" in reduced(halved, SmallerNumbers(), end=1)


def test_stages_and_microbatches_leave_the_schedule_of_the_loop() -> None:
    text = (ROOT / "tests/lit/opt/validate.mlir").read_text()
    grid = "schedule: gpipe\\0Aplacement: 0 1\\0Amesh 0: 0F0 0F1 0F2 . . . 0B0 0B1 0B2\\0A"
    grid += "mesh 1: . 1F0 1F1 1F2 1B0 1B1 1B2"
    text = text.replace('schedule = ""', f'schedule = "{grid}"')
    one = reduced(text, FewerStages(), end=1)
    assert "stage = 0" in one
    assert "stage = 1" not in one
    assert "placement: 0\\0Amesh 0: 0F0 0F1 0F2 0B0 0B1 0B2" in one
    with make_context() as context, ir.Location.unknown():
        pairs = list(SmallerNumbers().sites(ir.Module.parse(text, context)))
    found = reduced(text, SmallerNumbers(), pairs.index((3, 1)), pairs.index((3, 1)) + 1)
    assert "length = 1 : i64" in found
    assert "mesh 0: 0F0" in found
    assert "0F1" not in found


@pytest.mark.parametrize(
    ("old", "new", "stages"),
    [
        (r"stage = 0\b", 'stage = "x"', [1]),
        (r"stage = 0\b", "stage = -1", [1]),
        (r"\{[^{}]*stage = 0\b[^{}]*\}", "7", [1]),
        (r"microbatch_loop = \{[^{}]*\}", "microbatch_loop = {}", [0, 1]),
        (r"microbatch_loop = \{[^{}]*\}", "microbatch_loop = 7", [0, 1]),
    ],
)
def test_marks_and_loops_that_can_not_be_read_stay(old: str, new: str, stages: list[int]) -> None:
    text, count = re.subn(old, new, (ROOT / "tests/lit/opt/validate.mlir").read_text())
    assert count
    with make_context() as context, ir.Location.unknown():
        assert FewerStages().sites(ir.Module.parse(text, context)) == stages
    less = reduced(text, FewerStages())
    assert less.count("jaxpp.boundary") == text.count("jaxpp.boundary") - sum(
        text.count(f"stage = {n}") for n in stages
    )
    assert "tensor<2" in text
    assert "tensor<2" not in reduced(text, SmallerNumbers())


def test_a_schedule_without_a_stage_that_has_a_mark(tmp_path: Path) -> None:
    text = (ROOT / "tests/lit/opt/validate.mlir").read_text()
    grid = "schedule: gpipe\\0Aplacement: 0\\0Amesh 0: 0F0 0F1 0F2 0B0 0B1 0B2"
    text = text.replace('schedule = ""', f'schedule = "{grid}"')
    with pytest.raises(ScheduleError, match=r"^there is a mark of stage 1, the schedule has 1 stages$"):
        reduced(text, FewerStages(), end=1)
    assert "stage = 1" not in search(text, tmp_path, lambda each: "stablehlo.while" in each).best


def test_attributes_go() -> None:
    text = (ROOT / "tests/lit/opt/validate.mlir").read_text()
    found = reduced(text, Attributes())
    assert "jaxpp." not in found
    assert "sdy." not in found


def search(text: str, tmp_path: Path, is_interesting: Callable[[str], bool]) -> Reducer:
    """A finished search."""
    reducer = Reducer(text, str(tmp_path / "candidate"), lambda path: (is_interesting(Path(path).read_text()), ""))
    reducer.run()
    return reducer


def test_the_search_finds_one_operation_among_many(tmp_path: Path) -> None:
    lines = ["%0 = stablehlo.add %x, %x : tensor<4xf32>"]
    for number in range(1, 200):
        name = "sine" if number == 77 else "tanh"
        lines.append(f"%{number} = stablehlo.{name} %{number - 1} : tensor<4xf32>")
    body = "\n".join(lines)
    text = f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\nreturn %199 : tensor<4xf32>\n}}"
    found = search(text, tmp_path, lambda text: "stablehlo.sine" in text)
    assert count_of(found.best) <= 2
    assert found._tests < 60


def test_the_search_tries_no_module_twice(tmp_path: Path) -> None:
    tried: list[str] = []

    def is_interesting(text: str) -> bool:
        tried.append(text)
        return "stablehlo.add" in text

    search(CHAIN, tmp_path, is_interesting)
    assert len(tried) == len(set(tried))


def test_every_module_that_is_tried_verifies(tmp_path: Path) -> None:
    text = (ROOT / "tests/lit/opt/validate.mlir").read_text()

    def is_interesting(text: str) -> bool:
        with make_context() as context:
            assert ir.Module.parse(text, context).operation.verify()
        return "optimization_barrier" in text

    assert count_of(search(text, tmp_path, is_interesting).best) < 5


def test_ctrl_c_writes_the_best_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(CHAIN)
    seen = 0

    def interrupted(options: argparse.Namespace) -> reduce_run.Test:
        def test(path: str) -> tuple[bool, str]:
            nonlocal seen
            seen += 1
            if seen == 3:
                raise KeyboardInterrupt
            return True, ""

        return test

    monkeypatch.setattr(reduce_run, "_command", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reduce.main([str(source), "--test", "true", "-o", str(output)])
    assert "func.func" in output.read_text() or output.read_text() == "module {\n}\n"
    assert source.read_text() == CHAIN


def test_in_place_overwrites_the_input(tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(CHAIN)
    assert reduce.main([str(path), "--in-place", "--test", "grep -q cosine"]) == 0
    assert count_of(path.read_text()) == 2


def test_a_crash_is_an_output_of_the_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(CHAIN)

    def crash(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(reduce_run.opt_run, "run", crash)
    assert reduce.main([str(path), "-p", "inline-calls", "--expect", "SIGKILL", "-o", str(tmp_path / "out")]) == 0


def test_what_takes_too_long_is_not_interesting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(CHAIN)
    command = runline.call(reduce.main, path, "--test", "sleep 60; true", "--timeout", "1")
    assert command.texts[0] == 1
    assert command.texts[2] == (
        f"{path}: error: not interesting: expected exit code 0 of the test, found no end within 1 s\n"
    )

    def sleep(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        time.sleep(60)

    monkeypatch.setattr(reduce_run.opt_run, "run", sleep)
    passes = runline.call(reduce.main, path, "-p", "inline-calls", "--expect", "error", "--timeout", "1")
    assert passes.texts[2] == f"{path}: error: not interesting: expected 'error' of the test, found SIGALRM\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "the input is empty; expected an MLIR module"), ("HloModule x", "HLO text, expected an MLIR module")],
)
def test_bad_input_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(text)
    code, output, errors = runline.call(reduce.main, path, "--test", "true").texts
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert message in errors


def test_the_output_can_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text("module {\n}\n")
    code, _, errors = runline.call(reduce.main, path, "--test", "true", "-o", tmp_path / "no" / "out").texts
    assert code == 1
    assert errors.splitlines()[-1] == f"{tmp_path}/no/out: error: cannot write: No such file or directory"


def test_every_reduction_has_a_name_of_its_own() -> None:
    assert len({reduction.name for reduction in REDUCTIONS}) == len(REDUCTIONS)

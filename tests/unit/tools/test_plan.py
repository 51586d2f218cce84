"""`jaxpp-plan`: what it prints and writes, exit codes, and the text of every error."""

import dataclasses
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import pytest
import runline
from unit.planning import steps

import jaxpp
from jaxpp import schedules
from jaxpp.planning import CHIPS, Plan
from jaxpp.step import LoweredStep
from jaxpp.tools import plan

CPUS = ("--target", "cpu", "--devices", "2")
STEP = ("unit.planning.steps:train_step", *CPUS, "--shapes", "f32[8,8]", "float32[8,8]", "f32[4,2,8]")


_OF_SHAPES = "error: unit.planning.steps:train_step is a step without shardings, which takes no --against"
_NO = "error: unit.planning.steps:made is {}, which takes no {}"


def run(*argv: object) -> tuple[int, str, str]:
    return runline.call(plan.main, *argv).texts


def output(*argv: object) -> str:
    code, out, _ = run(*argv)
    assert code == 0
    return out


def failure(*argv: object) -> str:
    code, out, error = run(*argv)
    assert (code, out) == (1, "")
    return error.rstrip("\n")


def test_a_function_that_makes_a_step(tmp_path: Path) -> None:
    saved, page = tmp_path / "plan.json", tmp_path / "plan.html"
    out = output("unit.planning.steps:made", *CPUS, "--rank", "-o", saved, "--page", page)
    assert out.startswith("sgd_step on cpu x 2: 2 stages on 2 meshes, 2 devices, 4 microbatches")
    assert "schedules that fit, under these costs, in ms:" in out
    assert "zb-h1" in out
    assert out.startswith(str(Plan.load(saved)))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert output(saved) == f"{Plan.load(saved)}\n"


def test_a_training_step_with_shapes() -> None:
    assert output(*STEP, "--schedule", "1f1b").startswith("train_step on cpu x 2: 2 stages on 2 meshes")
    failed = failure(*STEP, "--schedule", "1f1b", "--memory-limit", "100")
    assert re.match(r".*/steps\.py:\d+:\d+: error: mesh 0 needs at least ", failed)


def test_a_schedule_is_for_a_loop_that_names_none() -> None:
    step = "unit.planning.steps:scheduled_step", *STEP[1:]
    assert output(*step).startswith("train_step on cpu x 2: 2 stages on 2 meshes")
    assert failure(*step, "--schedule", "gpipe").endswith(
        "error: --schedule is for a loop that names none: that of this step names its own"
    )


def test_a_lowered_module(tmp_path: Path) -> None:
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")
    step, arguments = steps.made(mesh)
    path = tmp_path / "step.mlir"
    path.write_text(step.lower(*arguments).as_text(), encoding="utf-8")
    out = output(path, *CPUS)
    assert out == output("unit.planning.steps:made", *CPUS)
    assert output(path, *CPUS, "--memory-limit", "1.5MB") == out
    assert failure(path, *CPUS, "--schedule", "gpipe") == (
        "error: --schedule is for a loop that names none: that of this step names its own"
    )
    limited = failure(path, *CPUS, "--memory-limit", "100")
    assert re.match(rf"{re.escape(str(path))}:\d+:\d+: error: mesh 1 needs at least ", limited)
    few = failure(path, "--target", "cpu", "--devices", "1", "--mesh", "mpmd=2")
    assert few == "error: cpu x 1 has 1 devices, the 2 meshes take 2"


def test_the_memory_of_hosts_is_limited(tmp_path: Path) -> None:
    """For a training step and for a module. With a limit for devices too a stage may compute again what it offloads."""
    offloaded = schedules.offload(schedules.make("1f1b", meshes=2, microbatches=4))
    grid, module = tmp_path / "offload.txt", tmp_path / "step.mlir"
    grid.write_text(str(offloaded), encoding="utf-8")
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(partial(steps.train_step, schedule=str(offloaded)), mesh)
    weight, inputs = jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((4, 2, 8), "float32")
    module.write_text(step.lower(weight, weight, inputs).as_text(), encoding="utf-8")
    for given in ((*STEP, "--schedule", grid), (module, *CPUS)):
        assert output(*given, "--host-memory-limit", "1KiB") == output(*given)
        refused = failure(*given, "--host-memory-limit", "100")
        assert (
            "mesh 0 needs 128 bytes of the memory of its host for each device, its host memory limit is 100" in refused
        )
        assert output(*given, "--host-memory-limit", "100", "--memory-limit", "1GB") != output(*given)


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (1950, 'to try: memory_limit="1950B" (--memory-limit 1950B), which recomputes or offloads residuals until'),
        (700, "no recompute is enough: arguments and temporaries alone are 1.12 KiB; shard parameters and optimizer"),
    ],
)
def test_what_does_not_fit(monkeypatch: pytest.MonkeyPatch, memory: int, words: str) -> None:
    """It says what the memory is needed for and what may help, and ranks only what fits."""
    monkeypatch.setitem(CHIPS, "cpu", dataclasses.replace(CHIPS["cpu"], memory_bytes=memory))
    code, out, _ = run("unit.planning.steps:made", *CPUS, "--rank")
    assert (code, "DOES NOT FIT\nmesh 1 needs most: 768 B for arguments, " in out) == (3, True)
    assert words in out
    assert "\nno schedule fits" in out


def test_only_schedules_that_fit_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHIPS, "cpu", dataclasses.replace(CHIPS["cpu"], memory_bytes=2000))
    out = output("unit.planning.steps:made", *CPUS, "--rank")
    ranked = out.partition("schedules that fit, under these costs, in ms:")[2]
    assert " 1f1b " in ranked
    assert " gpipe " not in ranked
    assert re.search(r"\n\d+ more need more memory than there is", ranked)


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("u8", "uint8"),
        ("ui8", "uint8"),
        ("s32", "int32"),
        ("i4", "int4"),
        ("u32", "uint32"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("bool", "bool"),
        ("i1", "bool"),
        ("uint8", "uint8"),
    ],
)
def test_types_of_shapes(element: str, dtype: str) -> None:
    assert plan._shape(f"{element}[2, 3]") == jax.ShapeDtypeStruct((2, 3), dtype)


def test_what_xla_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of what may be pages."""

    def refused(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large\n\n  Program hbm requirement: ...")

    monkeypatch.setattr(LoweredStep, "compile", refused)
    assert failure("unit.planning.steps:made", *CPUS) == (
        "error: XLA compiles no such step: RESOURCE_EXHAUSTED: too large"
    )


def test_a_message_says_error_once(tmp_path: Path) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text("module @jit_f { func.func public @main() { return } }", encoding="utf-8")
    assert failure(path, *CPUS).count("error: ") == 1


def test_a_page_is_no_source(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>plan</title>", encoding="utf-8")
    message = f"error: {path} is a page, expected a lowered module, or a plan that -o saved as .json\n"
    assert failure(path) == failure(path, *CPUS) == message.rstrip()


def test_a_saved_plan_is_rehearsed(tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    planned = output("unit.planning.steps:made", *CPUS, "-o", saved)
    out = output(saved, "--rehearse", "tokens=512", "price=0.1", "mtbf=1000")
    assert out.startswith(f"{planned}\nrehearsal on 2 chips:\nfirst results: after ")
    assert " tracing and passes, " in out
    assert "\na failure: every 20.8 days\n" in out
    assert "no failures: give mtbf=HOURS" in output(saved, "--rehearse")


def test_a_step_is_compared_with_other_meshes() -> None:
    """With those that are given, or with the usual ones; a mesh for which there is no step is left out."""
    given = "unit.planning.steps:sharded", *CPUS, "--rehearse", "tokens=1e6", "dispatch=0"
    out = output(*given, "--mesh", "mpmd=2,data=1", "--against")
    *_, table = out.split("\n\n")
    lines = table.splitlines()
    assert lines[0].split()[:3] == ["mesh", "step", "full"]
    assert sorted(line.split()[0] for line in lines[1:3]) == ["mpmd=1,data=2", "mpmd=2,data=1"]
    assert lines[3].startswith("the pipeline ")
    own = *given[:3], "--devices", "8", "--mesh", "mpmd=1,data=8"
    assert output(*own, "--against", "mpmd=8", "mpmd=2", "mpmd=1,data=8").endswith(
        "\nmpmd=8 is left out: 4 layers make no 8 equal stages\nmpmd=2 is left out: it has 2 chips, expected 8\n"
    )


@pytest.mark.skipif(find_spec("jax_plugins") is not None, reason="a plugin is installed")
def test_a_compiler_stands_in_for_an_absent_one() -> None:
    """Only in a rehearsal; it is said twice."""
    given = "unit.planning.steps:sharded", "--target", "h100", "--nodes", "2", "--gpus", "1", "--mesh", "mpmd=2"
    assert failure(*given) == "error: target 'h100' needs the CUDA plugin of JAX: pip install 'jaxpp[gpu-plan]'"
    code, out, error = run(*given, "--rehearse")
    assert code == 0
    assert error.startswith(
        "target 'h100' needs the CUDA plugin of JAX: pip install 'jaxpp[gpu-plan]'; until then XLA's "
    )
    assert re.match(r"step on h100 x 2 x 1: .* \(jaxlib .* for CPUs stands in for the compiler of h100\)\n", out)
    assert "\nmemory: " in out
    assert "roofline" in out


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"mpmd": 8}, [{"mpmd": 8}]),
        ({"mpmd": 2, "data": 4}, [{"mpmd": 8, "data": 1}, {"mpmd": 1, "data": 8}, {"mpmd": 2, "data": 4}]),
        (
            {"mpmd": 2, "data": 1, "model": 6},
            [
                {"mpmd": 12, "data": 1, "model": 1},
                {"mpmd": 1, "data": 12, "model": 1},
                {"mpmd": 1, "data": 1, "model": 12},
                {"mpmd": 3, "data": 4, "model": 1},
                {"mpmd": 3, "data": 1, "model": 4},
                {"mpmd": 1, "data": 3, "model": 4},
                {"mpmd": 2, "data": 2, "model": 3},
            ],
        ),
        ({"mpmd": 3, "data": 1}, [{"mpmd": 3, "data": 1}, {"mpmd": 1, "data": 3}]),
    ],
)
def test_usual_meshes(axes: dict[str, int], expected: list[dict[str, int]]) -> None:
    assert plan.alternatives(axes) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("no.mlir",), "no.mlir: error: cannot read: No such file or directory"),
        (("a.b:c",), "error: give a --target, such as v5p:4x4x4, h200 or cpu"),
        (("no_such_module:f", *CPUS), "error: No module named 'no_such_module'"),
        (("unit.planning.steps:f", *CPUS), "error: unit.planning.steps:f: the module has no function 'f'"),
        (
            ("unit.planning.steps:nothing", *CPUS),
            "error: unit.planning.steps:nothing returned a int, expected (step, arguments)",
        ),
        (
            STEP[:-1],
            "error: unit.planning.steps:train_step does not take 2 --shapes: missing a required argument: 'inputs'",
        ),
        (
            STEP[:5],
            "error: unit.planning.steps:train_step does not take a mesh alone; give a training step its --shapes",
        ),
        (("no.mlir", *CPUS), "no.mlir: error: cannot read: No such file or directory"),
        (("no.json",), "error: no.json: No such file or directory"),
        (("a.b:c", "--target", "v9"), "error: target: no chip 'v9' is known"),
        (
            ("unit.planning.steps:made", *CPUS, "--schedule", "1f1b"),
            _NO.format("a function that makes its step itself", "--schedule"),
        ),
        (
            ("saved.json", "--host-memory-limit", "9GB"),
            "error: saved.json is a saved plan, which takes no --host-memory-limit",
        ),
        (("saved.json", "--against", "mpmd=1"), "error: saved.json is a saved plan, which takes no --against"),
        ((*STEP, "--against"), _OF_SHAPES),
        (("a.mlir", *CPUS, "--against"), "error: a.mlir is a module, which takes no --against"),
        (("a.b:c", *CPUS, "--rehearse", "cost=3"), "error: rehearse: no condition 'cost' is known; there are tokens, "),
        (("unit.planning.steps:plain", *CPUS), "error: lowering gave a Lowered, expected a step of mpmd_jit_with_loop"),
        (("a.mlir", *CPUS, "--shapes", "f32[8]"), "error: a.mlir is a module, which takes no --shapes"),
        (
            ("a.mlir", *CPUS, "--mesh", "mpmd=2,data=1"),
            "error: a.mlir is a module, whose meshes have their shapes: give",
        ),
        ((".mod:build", *CPUS), "error: .mod:build: '.mod' is no name of a module, expected package.module:function"),
        (
            ("unit.planning.steps:made", *CPUS, "--mesh", "mpmd=4"),
            "error: cpu x 2 has 2 devices, a mesh of (4,) takes 4",
        ),
    ],
)
def test_bad_input(argv: tuple[str, ...], message: str) -> None:
    assert failure(*argv).startswith(message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--mesh", "model=2"), "expected axes with sizes, mpmd among them, as mpmd=8,model=8; found 'model=2'"),
        (("--shapes", "f32"), "expected a type with a shape, as f32[8,128]; found 'f32'"),
        (("--shapes", "int[2]"), "expected a type with a shape, as f32[8,128]; found 'int[2]'"),
        (("--shapes", "f33[2]"), "expected a type with a shape, as f32[8,128]; found 'f33[2]'"),
        (("--host-memory-limit", "0GB"), "expected bytes, as 95GB or 90GiB; found '0GB'"),
        (("--memory-limit", "much"), "expected bytes, as 95GB or 90GiB; found 'much'"),
        (("--memory-limit", "90gib"), "expected bytes, as 95GB or 90GiB; found '90gib'"),
    ],
)
def test_bad_usage(argv: tuple[str, ...], message: str) -> None:
    code, out, error = run("a.b:c", *argv)
    assert (code, out) == (2, "")
    assert error.splitlines()[-1] == f"jaxpp-plan: error: argument {argv[0]}: {message}"


def test_as_a_command(tmp_path: Path) -> None:
    """From a folder of the user's, whose modules it finds."""
    (tmp_path / "mine.py").write_text("def empty(mesh):\n    return None\n", encoding="utf-8")
    command = [sys.executable, "-m", "jaxpp.tools.plan", "mine:empty", *CPUS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("error: mine:empty returned a NoneType, expected (step, arguments)\n")

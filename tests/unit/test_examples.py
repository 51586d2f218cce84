"""The example and the README do what they say: each runs as its reader would run it, in a process of its own."""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import runline
from unit.end_to_end import tuning
from unit.end_to_end.decoder import SLICES
from unit.progress import without_progress
from unit.runtime.processes import forks
from unit.runtime.processes.test_faults import copy_launcher

from jaxpp import schedules
from jaxpp.tools import opt, schedule

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ("--stages", "2", "--microbatches", "4", "--data", "2", "--layers", "2", "--steps", "3", "--check")


GPT_FLAGS = (
    ("--optimizer", "sgd", "--steps", "6"),
    ("--schedule", "gpipe", "--data", "1", "--model", "2"),
    ("--stages", "1", "--microbatches", "2"),
    ("--schedule", "slimpipe{slices=2}", "--optimizer", "sgd"),
    ("--schedule", "vocab-1f1b", "--data", "1", "--optimizer", "sgd"),
    ("--schedule", "interleaved-zb{chunks=2}", "--layers", "4", "--stages", "4", "--data", "1"),
)


@pytest.mark.parametrize("flags", GPT_FLAGS, ids=" ".join)
def test_gpt_learns_the_same_as_plain_jit(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first flags in a process of their own, as a user would; the others here, where JAX runs already.

    One stage computes in bfloat16.
    """
    trace, costs, dump = (tmp_path / name for name in ("step.json", "costs.toml", "step.mlir"))
    files = ("--write", str(tmp_path))
    if flags == GPT_FLAGS[0]:
        output = run(EXAMPLES / "gpt.py", *TINY, *flags, *files)
    else:
        gpt, options = example("gpt", monkeypatch), example("gpt_options", monkeypatch)
        monkeypatch.setattr(options, "_find_devices", lambda known: jax.devices()[: known.devices])  # pyright: ignore[reportUnknownLambdaType]  # Options
        if "1" in flags[:2]:
            monkeypatch.setattr(gpt, "DTYPE", "bfloat16")
        assert gpt.main([*TINY, *flags, *files]) == 0
        output, errors = capsys.readouterr()
        assert without_progress(errors) == ""
    pipeline, plain = output.split("plain jax.jit on one device\n")[:2]
    losses = [[float(loss) for loss in re.findall(r"loss (\S+)", part)] for part in (pipeline, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert len(losses[0]) == 2 + ("--steps" in flags), "of the first, the fifth and the last step"
    assert losses[0][-1] < losses[0][0]
    assert len(re.findall(r"^  (losses|parameters) +\d\.\de[-+]\d\d", output, re.MULTILINE)) == 2
    assert "TOO LARGE" not in output

    stages = int(flags[flags.index("--stages") + 1]) if "--stages" in flags else 2
    name = flags[1] if "--schedule" in flags else "1f1b"
    meshes = stages // 2 if "chunks" in name else stages
    assert len(re.findall(r"^  mesh \d  busy +\d+%  idle +\d+%", output, re.MULTILINE)) == meshes
    names = {event["name"] for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]}
    last = stages - 1
    kinds = ["input_grad", "weight_grad"] if "interleaved-zb" in name else ["backward"]
    assert {"forward 0, 0", f"forward {last}, 1"} <= names
    assert {f"{kind} {task}" for kind in kinds for task in (f"{last}, 0", "0, 1")} <= names
    assert any(name.startswith("send 0, 0") for name in names) == (stages > 1)
    more = {"vocab-1f1b": meshes + 1, "slimpipe{slices=2}": 3 * meshes}.get(name, 0)
    assert schedules.Costs.load(costs).stages == stages + more
    plan = tmp_path / "plan.txt"  # given costs, and no file, the command may order the tasks of some by them
    plan.write_text(str(schedules.resolve(name, meshes=meshes, microbatches=2 if "--microbatches" in flags else 4)))
    code, simulated, _ = runline.call(schedule.main, "simulate", plan, "--costs", costs).texts
    assert code == 0
    (makespan,) = re.findall(r"^makespan +(\S+) ms", simulated, re.MULTILINE)
    (printed,) = re.findall(r"simulated: (\S+) ms", output)
    assert float(printed) == pytest.approx(float(makespan), abs=0.06)
    if flags == GPT_FLAGS[0]:
        code, program, _ = runline.call(opt.main, dump, "--pipeline", "mpmd").texts
        assert (code, program.count("func.func public @mesh_")) == (0, meshes)


def test_gpt_that_tunes_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to other stages and back, or stays there; the losses are those of jax.jit."""
    gpt, options = example("gpt", monkeypatch), example("gpt_options", monkeypatch)
    monkeypatch.setattr(options, "_find_devices", lambda known: jax.devices()[: known.devices])  # pyright: ignore[reportUnknownLambdaType]  # Options
    flags = ("--schedule", "auto", "--steps", "12", "--optimizer", "sgd", "--data", "1")
    with tuning.given([1, 1, 1, 4], lambda step: 9.0 - sum(step.choice.cuts[:-1])):
        assert gpt.main([*TINY, *flags]) == 0
    output, errors = capsys.readouterr()
    assert "TOO LARGE" not in output
    assert re.search(r"jaxpp: auto: takes 3, 1 layers in .*: 1\.17 times as fast", errors)


def test_gpt_in_several_processes(tmp_path: Path) -> None:
    """A stage in each; stages over two processes have tests of the runtime."""
    costs = tmp_path / "costs.toml"
    output = run(EXAMPLES / "gpt.py", *TINY, "--optimizer", "sgd", "--processes", "2", "--write", str(tmp_path))
    assert output.count("loss ") == 4, "one process prints, of the first and the last step"
    assert re.findall(r"^  mesh (\d)  busy", output, re.MULTILINE) == ["0", "1"]
    assert np.all(np.asarray(schedules.Costs.load(costs).hop) > 0)
    assert len(re.findall(r"^  (losses|parameters) +\d\.\de[-+]\d\d", output, re.MULTILINE)) == 2
    assert "TOO LARGE" not in output


def test_gpt_on_actors_of_ray() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    output = run(EXAMPLES / "gpt.py", *TINY, "--optimizer", "sgd", "--actors", "2")
    assert "TOO LARGE" not in output


def test_gpt_ends_when_one_of_its_processes_dies(tmp_path: Path) -> None:
    script = tmp_path / "gpt.py"  # started instead: each writes its id; then the last one dies, the others wait
    script.write_text(
        "import os, sys, time; number = int(sys.argv[-1]); open(f'{number}', 'w').write(str(os.getpid()))\n"
        "if number < 2: time.sleep(1000)\n"
        "while not (os.path.exists('0') and os.path.exists('1')): time.sleep(0.01)\n"
        "sys.exit(3)"
    )
    copy_launcher(tmp_path)
    starter = tmp_path / "start.py"
    starter.write_text("import gpt_processes, sys; gpt_processes.GRACE = 0.5; sys.exit(gpt_processes.start(3, []))")
    assert start(starter, folder=tmp_path).returncode == 3
    for number in range(3):
        assert not Path(f"/proc/{(tmp_path / str(number)).read_text()}").exists()


def test_gpt_knows_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    options = example("gpt_options", monkeypatch)
    monkeypatch.setattr(options, "_find_devices", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]  # Options
    per_mesh = {"interleaved-1f1b": 2, "kimi-k2": 2, "looped-bfs": 2, "hanayo": 2, "bitpipe": 2}
    per_mesh |= dict.fromkeys(
        ("interleaved-zb", "zb-v", "stp", "v-half", "v-min", "dualpipe-v", "gis", "po-h", "po-f"), 2
    )
    per_mesh |= SLICES
    for name in set(schedules.names()) - {*options.SPREAD, "slimpipe"}:
        known, _ = options.parse(["--schedule", name])
        assert (known.plan.name, known.plan.stages, known.devices) == (name, 4, 8 // per_mesh.get(name, 1))
    for name, layers in options.SPREAD.items():
        known, _ = options.parse(["--schedule", name])
        assert (known.plan.name, known.plan.stages, known.shards) == (name, 4 + 4 // layers + 1, 4 // layers)
    known, _ = options.parse(["--schedule", "slimpipe", "--layers", "8"])
    assert (known.plan.stages, known.plan.meshes, known.shards, known.exchange) == (28, 4, 0, True)
    known, _ = options.parse(["--schedule", "1f1b{chunks=4}"])
    assert str(known.plan.placement) == "0 0 0 0"


def test_gpt_takes_a_schedule_with_options_and_one_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = example("gpt_options", monkeypatch)
    monkeypatch.setattr(options, "_find_devices", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]  # Options
    known, _ = options.parse(["--schedule", "gis{chunks=4 group=1}"])
    assert (known.plan.stages, known.plan.meshes) == (4, 1)
    mine = schedules.make("zb-v", meshes=2, microbatches=8)
    (tmp_path / "mine").write_text(str(mine).replace("zb-v", "mine"))
    known, _ = options.parse(["--schedule", str(tmp_path / "mine")])
    assert (known.plan.name, known.plan.orders, known.devices) == ("mine", mine.orders, 4)
    for flag, value, found in (("--stages", 2, 4), ("--microbatches", 4, 8)):
        with pytest.raises(SystemExit):
            options.parse(["--schedule", str(tmp_path / "mine"), flag, str(value)])
        assert f"{flag} ({value}) must be {found}, as in {tmp_path / 'mine'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--layers 6", "--layers (6) must be a multiple of --stages (4)"),
        ("--microbatches 6", "the batch (32) must be a multiple of --microbatches (6)"),
        ("--data 3", "the batch / --microbatches (4) must be a multiple of --data (3)"),
        ("--model 3", "the heads (4) must be a multiple of --model (3)"),
        ("--layers 6 --stages 3 --schedule kimi-k2", "--stages (3) must be a multiple of the stages per mesh (2)"),
        ("--schedule hanayo{chunks=3}", "hanayo: chunks must be a multiple of 2, found 3: a wave goes down and up"),
        ("--schedule chimera{chunks=2}", "schedule 'chimera' has no option 'chunks': it takes doubling"),
        ("--schedule seq1f1b{slices=3}", "the sequence (64) must be a multiple of the slices (3)"),
        (
            "--schedule vocab-1f1b{embedding=true}",
            "--schedule vocab-1f1b is for stages that are a graph: those of this model are a chain",
        ),
        ("--schedule 1f1b{slices=2}", "schedule '1f1b' has no option 'slices': it takes chunks, placement"),
        ("--schedule gis{group=x}", "group must be a whole number, found 'x'"),
        ("--schedule auto --layers 1", "--layers (1) and two more must be at least --stages (4)"),
        ("--schedule none.txt", "none.txt: cannot read: No such file or directory"),
        ("--stages 0", "argument --stages: '0' is not a whole number of at least 1, below 2**31"),
        ("--steps many", "argument --steps: 'many' is not a whole number of at least 1, below 2**31"),
        ("--processes 3", "meshes x --data x --model (8) must be a multiple of --processes (3)"),
        ("--processes 2 --coordinator host:1", "--coordinator needs --process, the number of this process"),
        ("--processes 2 --coordinator auto --process 2", "--process (2) must be less than --processes (2)"),
        ("--actors 2 --processes 2", "the devices are either of --actors or of --processes"),
        (f"--write {__file__}", f"--write: {__file__} is no folder"),
    ],
)
def test_flags_that_cannot_be(
    flags: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = example("gpt_options", monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        options.parse(flags.split())
    assert stopped.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.endswith("[options]")
    assert error.endswith(f": error: {message}")


def test_devices_that_are_not_there() -> None:
    done = start(EXAMPLES / "gpt.py", platform="elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == ["gpt.py: error: JAX_PLATFORMS=elsewhere: JAX finds no such devices"]


def test_difference_counts_in_units_of_the_largest_expected_value(monkeypatch: pytest.MonkeyPatch) -> None:
    gpt = example("gpt", monkeypatch)
    assert gpt.difference([1.0, 3.0], [1.0, 4.0]) == 0.25
    assert gpt.difference([0.5, -8.0], [0.0, -8.0]) == 0.0625
    assert gpt.difference([0.0], [0.0]) == 0.0
    assert gpt.difference([0.5], [0.0]) == 0.5


@pytest.mark.parametrize("wrong", [2.1e-5, np.nan])
@pytest.mark.parametrize("where", ["losses", "parameters"])
def test_check_fails_on_a_difference(where: str, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt, options = example("gpt", monkeypatch), example("gpt_options", monkeypatch)
    monkeypatch.setattr(options, "_find_devices", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]  # Options
    known, _ = options.parse(["--optimizer", "sgd", "--stages", "1", "--data", "1"])
    right: dict[str, Any] = {"losses": [2.0, 1.0], "parameters": {"w": np.ones(2), "bias": np.array([1e-3, 0.0])}}
    found: dict[str, Any] = {
        "losses": [2.0, 1.0 + wrong],
        "parameters": {"w": np.ones(2), "bias": np.array([1e-3 * (1 + wrong), 0.0])},
    }
    for each, agrees in ((right, True), (right | {where: found[where]}, False)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert gpt.compare(known, tuple(each.values()), tuple(right.values())) is agrees
        assert output.getvalue().count("TOO LARGE") == (not agrees)


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    printed = re.findall(r"^```text\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [run(program(readme, tmp_path), folder=tmp_path)] == printed


@pytest.mark.parametrize("page", ["choose-a-schedule", "make-it-fit"])
def test_the_blocks_of_a_page_go_on_from_the_readme(page: str, tmp_path: Path) -> None:
    script = program(ROOT / "README.md", tmp_path)
    blocks = program(ROOT / "docs" / f"{page}.md", tmp_path).read_text(encoding="utf-8")
    script.write_text(f"{script.read_text(encoding='utf-8')}\nstate = weights\n{blocks}", encoding="utf-8")
    shown(script)


def test_the_guide_is_a_program(tmp_path: Path) -> None:
    printed = shown(program(ROOT / "docs" / "guide.md", tmp_path))
    for line in (
        "train_step: 4 stages on 4 meshes of 2 devices, 8 microbatches",
        "rounding: ",
        "no pass changes a result",
    ):
        assert re.search(f"^{line}", printed, re.MULTILINE), line
    assert "jaxpp.microbatch_loop" in (tmp_path / "step.mlir").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("evaluation", r"(training \d\.\d+, held out \d\.\d+, accuracy 0\.\d+\n){4}\(6, 4\) .*id=6.*id=7.*\n"),
        ("inference", r"\[ *0( +\d+){10}\]\n\(4, 3\) \[CpuDevice\(id=3\)\]\n"),
        ("recipes", r"(loss 1\.\d+, norm of the gradients 0\.\d+\n){6}rounding: .*\n(  .*\n)*0 bytes of rows sent\n"),
        ("fp8", r"(loss 1\.\d+\n){3}"),
    ],
)
def test_a_page_of_docs_is_a_program(page: str, printed: str, tmp_path: Path) -> None:
    """Which compares its results with those of plain `jax.jit`."""
    assert re.fullmatch(printed, shown(program(ROOT / "docs" / f"{page}.md", tmp_path)))


def test_readme_names_what_exists() -> None:
    for readme in (ROOT / "README.md", EXAMPLES / "README.md"):
        text = readme.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https:)([^)#]+)\)", text):
            assert (readme.parent / target).exists(), target
        targets = (ROOT / "Makefile").read_text(encoding="utf-8")
        for name in re.findall(r"\bmake (\w+)(?=`|  )", text):
            assert re.search(rf"^{name}:", targets, re.MULTILINE), name


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of examples/, as the scripts there see it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def program(page: Path, folder: Path) -> Path:
    """The Python blocks of a page that are no dialogue, as one script in `folder`."""
    blocks = re.findall(r"^```python\n(?!>>>)(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = folder / f"{page.stem}.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    return script


def run(script: Path, *flags: str, folder: Path = ROOT) -> str:
    """What a script prints; it has to succeed, and to stay silent on stderr."""
    done = start(script, *flags, folder=folder)
    assert (done.returncode, without_progress(done.stderr)) == (0, ""), f"{done.stdout}{done.stderr}"
    return done.stdout


def shown(script: Path) -> str:
    """What the script of a page prints, as `run`, in a fork: an import of JAX takes longer than most pages."""
    output = script.with_suffix(".output")
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    child = forks.start(f"{__name__}:run_page", [str(script)], [__name__], environment, str(output))
    code, errors = child.wait(500), script.with_suffix(".errors").read_text(encoding="utf-8")
    found = output.read_text(encoding="utf-8")
    assert (code, without_progress(errors)) == (0, ""), f"{found}{errors}"
    return found


def run_page(path: str) -> None:
    """Runs a script in its folder, in a fork. Its errors go to another file, and warnings are errors."""
    script = Path(path)
    os.chdir(script.parent)
    with script.with_suffix(".errors").open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    warnings.simplefilter("error")
    forks.run_script(path)


def start(script: Path, *flags: str, folder: Path = ROOT, platform: str = "") -> subprocess.CompletedProcess[str]:
    unset = {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"JAX_PLATFORMS": platform} if platform else {}
    command = (sys.executable, "-W", "error", str(script), *flags)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )

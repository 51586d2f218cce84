"""The commands of docs/debugging.md run, in their order, and print lines of the form that the page shows."""

import shlex
from pathlib import Path
from unittest import mock

import pytest
import runline
from jaxlib.mlir import ir
from unit.tools.test_bisect import STEP, SwapSubtract

from jaxpp.hlo_passes.stages.split_backward import SplitBackward
from jaxpp.tools import bisect, execute, opt

PAGE = (Path(__file__).parents[3] / "docs" / "debugging.md").read_text(encoding="utf-8")
TOOLS = {"jaxpp-bisect": bisect.main, "jaxpp-execute": execute.main}


def shown(first: str) -> list[str]:
    """Returns the first words of the lines of an output that the page shows."""
    block = PAGE[PAGE.index(f"    {first}:") :].partition("\n\n")[0]
    return [line.strip().partition(":")[0] for line in block.splitlines()]


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step with a schedule, in the current folder."""
    monkeypatch.chdir(tmp_path)
    text = STEP.read_text(encoding="utf-8").replace('schedule = ""', 'schedule = "1f1b"')
    path = tmp_path / "step.mlir"
    path.write_text(text.replace("attributes {mhlo", "attributes {jaxpp.meshes = 2 : i64, mhlo", 1), encoding="utf-8")
    return path


def test_the_commands_run(step: Path) -> None:
    assert runline.call(opt.main, step, "--pipeline", "mpmd", "-o", "program.mlir", stdin="").texts[0] == 0
    commands = [
        shlex.split(line) for line in PAGE.splitlines() if line.startswith(tuple(f"    {tool} " for tool in TOOLS))
    ]
    assert [tool for tool, *_ in commands] == ["jaxpp-bisect", "jaxpp-execute", "jaxpp-execute", "jaxpp-bisect"]
    output = ""
    for tool, *arguments in commands:
        code, output, errors = runline.call(TOOLS[tool], *arguments, stdin="").texts
        assert code == 0, errors
    assert output == "other.npz: the results agree with one.npz\n"


def test_the_lines_of_the_outputs(step: Path) -> None:
    right = SplitBackward.run

    def broken(self: SplitBackward, module: ir.Module) -> None:
        right(self, module)
        SwapSubtract().run(module)

    with mock.patch.object(SplitBackward, "run", broken):
        code, output, _ = runline.call(bisect.main, step, "--pipeline", "mpmd", stdin="").texts
    assert code == 1
    assert [line.partition(":")[0] for line in output.splitlines()] == shown("first wrong")
    assert output.startswith("first wrong: after pass 'split-backward', 16 of 27\n")
    step.write_text(
        step.read_text(encoding="utf-8").replace("stablehlo.tanh %19", "stablehlo.log %19"), encoding="utf-8"
    )
    code, output, _ = runline.call(bisect.main, step, "--pipeline", "mpmd", "--nan", stdin="").texts
    assert [line.partition(":")[0] for line in output.splitlines()] == shown("first NaN")

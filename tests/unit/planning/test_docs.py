"""The examples of docs/plan.md run, and the outputs in docs/rehearse.md are those of saved plans."""

import doctest
import re
import shlex
from pathlib import Path

import runline

from jaxpp.planning import Conditions, Plan, rehearse
from jaxpp.planning.show_rehearsal import compared
from jaxpp.tools import plan

ROOT = Path(__file__).parents[3]
PAGE, REHEARSAL = ROOT / "docs" / "plan.md", ROOT / "docs" / "rehearse.md"


def shown(command: str) -> tuple[list[str], str]:
    """Returns the arguments of the command on the page that begins like this, and its output there."""
    page = REHEARSAL.read_text(encoding="utf-8")
    found = re.search(rf"^    ({re.escape(command)} [^\n]*)\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return shlex.split(found[1])[1:], found[2]


def test_the_examples_of_the_page() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 10) == (0, True)


def test_a_rehearsal() -> None:
    (path, *arguments), output = shown("jaxpp-plan benchmarks/data/gpt3_pipeline.json")
    code, out, _ = runline.call(plan.main, ROOT / path, *arguments).texts
    assert code == 0
    assert out[out.index("rehearsal on") :] == output


def test_a_comparison() -> None:
    """Of plans that were saved: the command itself takes minutes."""
    arguments, output = shown("jaxpp-plan pays:gpt3")
    own, other = (arguments[arguments.index(flag) + 1] for flag in ("--mesh", "--against"))
    conditions = Conditions.parse(arguments[arguments.index("--rehearse") + 1 : arguments.index("--against")])
    names = {own: "gpt3_pipeline", other: "gpt3_fsdp"}
    plans = {axes: Plan.load(ROOT / "benchmarks" / "data" / f"{name}.json") for axes, name in names.items()}
    assert f"{compared({axes: rehearse(each, conditions) for axes, each in plans.items()})}\n" == output

"""A package of its own, tests/plugin, with plug-ins of each kind; and a package whose plug-ins can't be used."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import runline
from unit.end_to_end.compare import batch, check, lowered, make_mesh, sgd_step, weights
from unit.runtime.processes import conformance, test_faults

from jaxpp import PassError, _plugins, schedules
from jaxpp.ir.transports import RULES, rules_of
from jaxpp.runtime.processes import choice
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.schedules.library import options_of
from jaxpp.tools import opt, schedule

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "plugin"
MODULE = PLUGIN / "lit" / "multiply_by_reciprocal.mlir"
WRONG = {
    "jaxpp.passes": {
        "missing-module": "wrong_plugin_nowhere:Pass",
        "missing-class": "wrong_plugin:Nowhere",
        "raises": "wrong_plugin_raises:Pass",
        "a-function": "wrong_plugin:function",
        "abstract": "jaxpp.hlo_passes:Pass",
        "other-name": "wrong_plugin:Silent",
        "odd": "wrong_plugin:Odd",
        "cse": "wrong_plugin:Cse",
        "inline-calls": "wrong_plugin:Silent",
        "multiply-by-reciprocal": "wrong_plugin:Silent",
    },
    "jaxpp.schedules": {
        "missing-module": "wrong_plugin_nowhere:make",
        "a-class": "wrong_plugin:Nothing",
        "returns-none": "wrong_plugin:function",
        "deadlock": "wrong_plugin:deadlock",
        "placed": "wrong_plugin:placed",
        "1f1b": "wrong_plugin:function",
    },
    "jaxpp.transports": {
        "missing-module": "wrong_plugin_nowhere:Transport",
        "a-class": "wrong_plugin:Nothing",
        "no-transport": "wrong_plugin:Ruled",
    },
}
SOURCE = """
from dataclasses import dataclass, replace
from jaxpp import schedules
from jaxpp.hlo_passes import Pass
from jaxpp.ir.transports import Rules

class Silent(Pass):
    def run(self, module):
        pass

class Cse(Silent):
    pass

@dataclass(frozen=True)
class Odd(Silent):
    items: tuple = ()

class Nothing:
    pass

class Ruled:
    rules = Rules()

def function(meshes, microbatches):
    pass

def placed(meshes, microbatches, placement: schedules.Placement | None = None, style: str = "", fast: bool = False):
    assert (style, fast) == ("a", True)
    return schedules.make("gpipe", meshes=meshes, microbatches=microbatches, placement=placement)

def deadlock(meshes, microbatches):
    made = schedules.make("1f1b", meshes=meshes, microbatches=microbatches)
    return replace(made, orders=tuple(order[::-1] for order in made.orders))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "source")  # setuptools builds in its folder
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder / "site"))
    run(sys.executable, "-I", "-m", "pip", "install", *options, str(folder / "source"))
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets this process find the package."""
    monkeypatch.syspath_prepend(site)
    forget()
    yield
    forget()


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets this process find a package with plug-ins that can't be used."""
    (tmp_path / "wrong_plugin.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "wrong_plugin_raises.py").write_text("raise KeyError('a\\nb')", encoding="utf-8")
    metadata = tmp_path / "wrong_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-plugin\nVersion: 1\n", encoding="utf-8")
    lines = [line for group, each in WRONG.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in each.items()))]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    sys.modules.pop("wrong_plugin", None)
    forget()


def forget() -> None:
    _plugins._installed.cache_clear()
    options_of.cache_clear()


def run(*command: str, path: str = "") -> str:
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def refusal(*arguments: object) -> str:
    """The message of `jaxpp-opt`, which ends with exit code 2."""
    code, out, err = runline.call(opt.main, *arguments).texts
    assert (code, out) == (2, ""), err
    return err.partition("jaxpp-opt: error: ")[2].removesuffix("\n")


def test_the_page_has_the_code_of_the_package() -> None:
    page = (ROOT / "docs" / "your-first-pass.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python|mlir|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    paths = [path for path in PLUGIN.rglob("*.*") if path.suffix in (".py", ".mlir", ".toml")]
    files = [path.read_text(encoding="utf-8") for path in paths]
    assert len(blocks) == 3
    assert len(page.split()) <= 900
    assert [block for block in blocks if not any(block in file for file in files)] == []


@pytest.mark.usefixtures("installed")
def test_a_step_runs_both() -> None:
    arguments, mesh = (weights(2), batch(4)), make_mesh(2)
    passes = [("outline-stages", importlib.import_module("example_plugin.passes").MultiplyByReciprocal())]
    step = partial(sgd_step, schedule="run-ahead{ahead=1}")
    check(step, arguments, mesh, passes=passes)
    program, plain = (lowered(step, arguments, mesh, **options).program() for options in ({"passes": passes}, {}))
    assert program.schedule.startswith("schedule: run-ahead\n")
    assert program.as_text().count("stablehlo.divide") < plain.as_text().count("stablehlo.divide")


@pytest.mark.usefixtures("wrong")
def test_a_step_with_a_schedule_that_is_refused() -> None:
    with pytest.raises(PassError, match=r"compare\.py:.*error: plug-in 'missing-module' of package wrong-plugin can't"):
        lowered(partial(sgd_step, schedule="missing-module"), (weights(2), batch(4)), make_mesh(2)).program()


@pytest.mark.usefixtures("installed")
def test_a_transport_has_rules() -> None:
    assert rules_of("counted-pair") == RULES["pair"]
    with pytest.raises(ValueError, match=r"^transport is 'tcp', expected one of pull, device_put, pair, counted-pair$"):
        rules_of("tcp")


def test_a_transport_carries_values_between_processes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_TRANSPORT", "counted-pair")
    monkeypatch.setenv("RANDOM_PROGRAMS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    found = test_faults.run("programs_and_a_step", 2, devices=2, survivors=[0, 1], main=f"{conformance.__name__}:main")
    assert found.codes == [0, 0], found.shown
    assert "jaxpp: values go from process to process by counted-pair\n" in found.texts[0]


def test_stock_lit_runs_the_tests_of_the_package(site: Path) -> None:
    lit = Path(sys.executable).with_name("lit")
    done = run(str(lit), str(PLUGIN / "lit"), path=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    assert "Passed: 2" in done


@pytest.mark.usefixtures("installed")
def test_a_pass_has_a_name() -> None:
    code, out, err = runline.call(opt.main, MODULE, "-p", "multiply-by-reciprocal{inexact=true}").texts
    assert (code, err, out.count("stablehlo.multiply")) == (0, "", 2)
    assert (
        "multiply-by-reciprocal\n    Multiplies by the reciprocal" in runline.call(opt.main, "--list-passes").texts[1]
    )
    assert "no powers of two" in runline.call(opt.main, "--pass-doc", "multiply-by-reciprocal").texts[1]
    assert refusal("-p", "multiply") == "unknown pass 'multiply'; did you mean 'multiply-by-reciprocal'?"


@pytest.mark.usefixtures("installed")
def test_a_schedule_has_a_name() -> None:
    made = schedules.make("run-ahead", meshes=2, microbatches=4, ahead=1)
    assert schedules.resolve("run-ahead{ahead=1}", meshes=2, microbatches=4) == made
    shown = runline.call(schedule.main, "show", "run-ahead{ahead=1}", "--meshes", 2, "--microbatches", 4).texts
    assert shown == (0, f"{made}\n", "")
    assert "1F1B with more forwards" in runline.call(schedule.main, "list").texts[1]
    with pytest.raises(schedules.ScheduleError, match=r"^ahead must be a whole number, found 'x'$"):
        schedules.resolve("run-ahead{ahead=x}", meshes=2, microbatches=4)
    with pytest.raises(schedules.ScheduleError, match="did you mean 'run-ahead'"):
        schedules.make("run", meshes=2, microbatches=4)


@pytest.mark.usefixtures("installed")
def test_a_plug_in_is_imported_only_under_its_name() -> None:
    for name in [name for name in sys.modules if name.startswith("example_plugin")]:
        del sys.modules[name]
    runline.call(opt.main, MODULE, "-p", "inline-calls")
    schedules.make("1f1b", meshes=2, microbatches=2)
    assert _plugins._installed.cache_info().currsize == 0
    assert "run-ahead" in schedules.names()
    refusal("-p", "multiply")
    assert "example_plugin" not in sys.modules


def test_load_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    reference = "example_plugin.passes:MultiplyByReciprocal"
    load = ("--load-pass", reference)
    code, out, err = runline.call(opt.main, MODULE, *load, "-p", "multiply-by-reciprocal").texts
    assert (code, err, out.count("stablehlo.multiply")) == (0, "", 1)
    assert refusal(*load, *load) == f"plug-in '{reference}': the name 'multiply-by-reciprocal' is taken"
    assert refusal("--load-pass", "x") == "argument --load-pass: expected package.module:Class, found 'x'"
    assert refusal("--load-pass", "nowhere:Pass") == (
        "plug-in 'nowhere:Pass' can't be imported: ModuleNotFoundError: No module named 'nowhere'"
    )


def test_a_reproducer_names_the_loaded_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    load, file = ("--load-pass", "example_plugin.passes:MultiplyByReciprocal"), tmp_path / "found.mlir"
    invalid = PLUGIN / "lit" / "multiply_by_reciprocal_invalid.mlir"
    arguments = (invalid, *load, "-p", "multiply-by-reciprocal", "--reproducer", file)
    code, _, err = runline.call(opt.main, *arguments).texts
    assert code == 1
    assert err.endswith(f"{file} reproduces it: jaxpp-opt {file} --run-reproducer {' '.join(load)}\n")
    again = runline.call(opt.main, file, "--run-reproducer", *load).texts
    assert (again[0], "division by the constant 0" in again[2]) == (1, True)
    assert "unknown pass 'multiply-by-reciprocal'" in runline.call(opt.main, file, "--run-reproducer").texts[2]


@pytest.mark.usefixtures("wrong")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing-module", " can't be imported: ModuleNotFoundError: No module named 'wrong_plugin_nowhere'"),
        ("missing-class", " can't be imported: AttributeError: module 'wrong_plugin' has no attribute 'Nowhere'"),
        ("raises", r" can't be imported: KeyError: 'a\nb'"),
        ("a-function", ": expected a class of jaxpp.hlo_passes.Pass with a `run`, found a function"),
        ("abstract", ": expected a class of jaxpp.hlo_passes.Pass with a `run`, found the class Pass"),
        ("other-name", ": the pass Silent has the name 'silent'; give its entry point this name"),
        ("odd", ": pass 'odd': option 'items' is of type <class 'tuple'>, not int, str or bool"),
        ("cse", ": the name 'cse' is taken by MLIR"),
    ],
)
def test_passes_that_are_refused(name: str, problem: str) -> None:
    message = f"plug-in '{name}' of package wrong-plugin{problem}"
    assert refusal("-p", name) == refusal("--pass-doc", name) == message
    assert f"\n{name}\n    {message}\n" in runline.call(opt.main, "--list-passes").texts[1]


@pytest.mark.usefixtures("wrong")
def test_names_that_jaxpp_has() -> None:
    taken = "plug-in '{}' of package wrong-plugin: the name is taken by jaxpp"
    assert runline.call(opt.main, MODULE, "-p", "inline-calls").texts[0] == 0
    assert taken.format("inline-calls") in runline.call(opt.main, "--list-passes").texts[1]
    assert schedules.make("1f1b", meshes=2, microbatches=2).name == "1f1b"
    assert taken.format("1f1b") in runline.call(schedule.main, "list").texts[1]


@pytest.mark.usefixtures("wrong")
def test_options_of_all_types() -> None:
    made = schedules.resolve("placed{placement=0,1,1,0 style=a fast=true}", meshes=2, microbatches=2)
    assert made.placement == schedules.Placement.of(0, 1, 1, 0)


@pytest.mark.usefixtures("wrong", "installed")
def test_a_name_that_two_packages_have() -> None:
    message = refusal("-p", "multiply-by-reciprocal")
    assert message.startswith("plug-in 'multiply-by-reciprocal' of package ")
    assert message.endswith(("is taken by package wrong-plugin", "is taken by package example-plugin"))


@pytest.mark.usefixtures("wrong")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing-module", "plug-in 'missing-module' of package wrong-plugin can't be imported: ModuleNotFoundError: "),
        ("a-class", "plug-in 'a-class' of package wrong-plugin: expected a function of meshes, microbatches and opt"),
        ("returns-none", "the function of schedule 'returns-none' returned a NoneType, expected a Schedule"),
        ("deadlock", "mesh 0 position 0: B(stage 0, mb 1) needs F(stage 0, mb 1)"),
    ],
)
def test_schedules_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(schedules.ScheduleError) as error:
        schedules.make(name, meshes=2, microbatches=2)
    assert message in str(error.value)
    code, out, err = runline.call(schedule.main, "show", name, "--meshes", 2, "--microbatches", 2).texts
    assert (code, out) == (1, "")
    assert err.startswith(f"jaxpp-schedule: error: {error.value}")


@pytest.mark.usefixtures("wrong")
def test_transports_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    of = "plug-in '{}' of package wrong-plugin"
    cannot = f"{of.format('missing-module')} can't be imported: ModuleNotFoundError: No module named"
    wanted = f"{of.format('a-class')}: expected a class with `rules`, the Rules of jaxpp.ir.transports, found the class"
    for name, message in {"missing-module": cannot, "a-class": wanted}.items():
        assert message in refusal("-p", f"insert-transfers{{transport={name}}}")
    wanted = f"{of.format('no-transport')}: expected a class of OrderedTransport with the name 'no-transport', found"
    for name, message in {"missing-module": cannot, "no-transport": wanted}.items():
        monkeypatch.setenv("JAXPP_TRANSPORT", name)
        assert choice.name_of("cpu", can_put=False) == name
        with pytest.raises(ProcessError, match=f"^{re.escape(message)}"):
            choice._loaded(name, Mock())

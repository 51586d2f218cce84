"""What steps are compiled for, and what holds of each program that is compiled for it: `make hardware`.

Without the extras `tpu-plan` and `gpu-plan` the tests of this folder are skipped.
"""

from collections.abc import Callable, Generator
from typing import Any

import jax
import pytest
from jaxlib.mlir import ir
from unit.end_to_end import compare

import jaxpp
from jaxpp._compat import make_context
from jaxpp.jit import MpmdFunction
from jaxpp.planning.backend import PlanBackend, PlannedProgram
from jaxpp.runtime.execution.compiling import TRITON_FAILS
from jaxpp.targets.target import PlanError, Target

TARGETS: list[tuple[str, dict[str, int]]] = [("v5p:2x4x4", {}), ("v6e:4x8", {}), ("h200", {"nodes": 4, "gpus": 8})]
"""32 devices each."""


@pytest.fixture(scope="session", params=TARGETS, ids=["v5p", "v6e", "h200"])
def target(request: pytest.FixtureRequest) -> Target:
    name, options = request.param
    try:
        return jaxpp.target(name, **options)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where compilations are kept: a program that several steps have is compiled once."""
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def absent(target: Target, folder: str, monkeypatch: pytest.MonkeyPatch) -> Generator[list[PlannedProgram]]:
    """The devices of a test are those of the target. What it compiles is returned, and checked in the end."""
    made: list[PlannedProgram] = []
    compile_ = PlanBackend.compile

    def noting(self: PlanBackend, lowered: Any, program: Any, options: Any) -> PlannedProgram:
        try:
            made.append(compile_(self, lowered, program, options))
        except jax.errors.JaxRuntimeError as error:
            if TRITON_FAILS not in str(error):  # and plain jax.jit
                raise
            options = {**(options or {}), "xla_gpu_enable_triton_gemm": False}
            made.append(compile_(self, lowered, program, options))
        return made[-1]

    monkeypatch.setenv("JAXPP_PLAN_CACHE", folder)
    monkeypatch.setattr(PlanBackend, "compile", noting)
    monkeypatch.setattr(MpmdFunction, "__call__", lambda self, *args, **kwargs: self.compile(*args, **kwargs)(*args))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(compare, "check_compiled", run)
    monkeypatch.setattr(jax, "devices", lambda *_: list(target.devices))  # pyright: ignore[reportUnknownLambdaType]
    yield made
    for planned in made:
        check(planned)


def run(pipelined: Callable[..., Any], _: Any, args: Any, *, kwargs: Any = None, **__: Any) -> None:
    """Run a step only, and no plain `jax.jit`, which captured meshes of the target too."""
    pipelined(*args, **(kwargs or {}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take each test of another folder once for each target: its parameters are schedules and plans in most."""
    first: dict[tuple[str, str], pytest.Item] = {}
    for item in items:
        if isinstance(item, pytest.Function) and "absent" in item.fixturenames:
            again = "test_every_model" in item.nodeid and item.originalname != "test_example"
            which = item.originalname if again else item.nodeid
            first.setdefault((which, item.callspec.id.partition("-")[0]), item)
    items[:] = [item for item in items if item in first.values() or "absent" not in getattr(item, "fixturenames", ())]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Tests with `absent` end where their step would run: it is compiled."""
    try:
        return (yield)
    except jax.errors.JaxRuntimeError as error:
        reasons = {"Subslice": "a stage of TPUs has whole hosts", "compile-only": "it puts arrays on the devices"}
        for found, reason in reasons.items():
            if found in str(error):
                pytest.skip(reason)
        raise
    except PlanError as error:
        if "over the chips of the first host alone" in str(error):
            pytest.skip(str(error))
        if "absent" not in pyfuncitem.fixturenames or "it can't run" not in str(error):
            raise
        assert pyfuncitem.funcargs["absent"]
        return True


def check(planned: PlannedProgram) -> None:
    """What is donated becomes a result, and no collective leaves its mesh."""
    program, at = planned.program, {}
    for mesh, sequence in enumerate(program.sequences):
        at.update(dict.fromkeys((getattr(each, "function", "") for each in sequence), mesh))
    for each in planned.plan.programs:
        function, mesh = program.functions[each.name], at[each.name]
        donors = [donor for donor in function.donors if donor is not None]
        sizes = [program.shard_bytes(mesh, function.arguments[donor])[0] for donor in donors]
        assert each.alias_bytes >= sum(sizes), each.name
        with make_context():  # other devices than those of its partitions can take no part in it
            module = ir.Module.parse(function.bytecode)
            partitions = ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
            assert partitions == program.partitions[mesh], each.name

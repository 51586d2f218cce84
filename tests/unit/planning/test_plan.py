"""Plans of steps for CPUs that count as absent: all but running works."""

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end import transformer
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights
from unit.schedules.pages import data_of

import jaxpp
from jaxpp import schedules as S
from jaxpp import step as step_module
from jaxpp.planning import CHIPS, Plan, PlanError, Target, compiling
from jaxpp.schedules.rewrites.tasks import insert

MICROBATCHES = 6


def shapes(tree: Any) -> Any:
    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return jax.tree.map(shape, tree)


def step_on(mesh: jaxpp.MpmdMesh, **options: Any) -> Any:
    function = partial(transformer.train_step, schedule=S.Std1F1B(3))
    return jaxpp.mpmd_jit_with_loop(function, mesh, donate_argnums=0, **options)


def absent_mesh(meshes: int) -> jaxpp.MpmdMesh:
    return jaxpp.target("cpu", devices=meshes).mesh((meshes,), ("mpmd",))


def absent(**options: Any) -> Any:
    return step_on(absent_mesh(3), **options)


ARGUMENTS = shapes((transformer.state(3), transformer.batch(MICROBATCHES)))


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests compile equal stage programs, which are kept as long as they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiling.CACHE, str(tmp_path_factory.mktemp("kept")))
        yield


@pytest.fixture(scope="module")
def compiled() -> Any:
    return absent().lower(*ARGUMENTS).compile()


def test_a_compiler_that_jaxlib_does_not_understand(monkeypatch: pytest.MonkeyPatch) -> None:
    """As libtpu 0.0.52, of which jaxlib 0.10.2 can't read some programs."""
    unread = Mock(hlo_modules=Mock(side_effect=jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure")))
    monkeypatch.setattr(compiling, "compile_only", Mock(return_value=unread))
    with pytest.raises(PlanError) as raised:
        compiling.compile_now(b"", [Mock(platform="tpu")], {}, ())
    assert str(raised.value) == (
        f"jaxlib {version('jaxlib')} can't read what the installed compiler for tpu makes: "
        f"install the one for jax {version('jax')}, pip install 'jaxpp[tpu-plan]'"
    )


def test_it_says_what_the_compiler_says_where_the_devices_are_here(compiled: Any) -> None:
    """The memory of a planned step is that of the same step on devices that are here."""
    here = step_on(make_mesh(3)).lower(*ARGUMENTS).compile()
    assert compiled.memory_analysis() == here.memory_analysis()
    for found, expected in zip(compiled.cost_analysis(), here.cost_analysis(), strict=True):
        assert found == {name: value for name, value in expected.items() if value}
    assert compiled.summary() == here.summary()
    assert [each.spec for each in jax.tree.leaves(compiled.in_shardings)] == [
        each.spec for each in jax.tree.leaves(here.in_shardings)
    ]
    with pytest.raises(jaxpp.PlanError, match=r"^the devices of this step are here: `trace` measures it"):
        _ = here.plan


def test_memory_is_that_of_the_account_and_what_the_compiler_needs_beyond(compiled: Any) -> None:
    for mesh, found in zip(compiled.plan.meshes, compiled.memory_analysis(), strict=True):
        assert mesh.argument_bytes == found.argument_size_in_bytes
        assert 0 <= mesh.peak_bytes - found.generated_code_size_in_bytes - found.peak_memory_in_bytes < 10_000
        assert (mesh.devices, mesh.hosts, mesh.host_bytes) == (1, 1, 0)
    for program in compiled.plan.programs:
        assert abs(program.padding_bytes) < 1000, program.name  # a tuple of results has pointers


def test_it_cannot_run(compiled: Any) -> None:
    values = transformer.state(3), transformer.batch(MICROBATCHES)
    message = r"^the step is planned for cpu x 3, devices that are not here: it can't run; `lower\(\.\.\.\)\.compile"
    for call in (compiled, compiled.trace, absent()):
        with pytest.raises(jaxpp.PlanError, match=message):
            call(*values)


def test_products_and_messages(compiled: Any) -> None:
    plan = compiled.plan
    work = sum(mesh.products for mesh in plan.meshes)
    assert sum(plan.products.values()) == work == sum(each.calls * each.products for each in plan.programs)
    forwards = [each for each in plan.programs if each.kind == "forward"]
    assert sorted(stage for each in forwards for stage in each.stages) == [0, 1, 2]
    assert plan.model_flops == 3 * sum(each.calls * each.products for each in forwards)
    assert {(each.source, each.target) for each in plan.hops} >= {(0, 1), (1, 2), (2, 1), (1, 0)}
    for mesh, each in enumerate(plan.meshes):
        assert each.sent_bytes == sum(hop.bytes for hop in plan.hops if hop.source == mesh)
    assert all(hop.messages >= MICROBATCHES for hop in plan.hops)


def test_the_predicted_step(compiled: Any) -> None:
    """Its tasks alone take what the schedule takes in the simulator under its costs; the rest is around the loop."""
    plan = compiled.plan
    schedule = S.parse(plan.schedule)
    assert schedule.orders == S.make("1f1b", meshes=3, microbatches=MICROBATCHES).orders
    assert compiled.costs() == plan.costs()
    simulated = S.simulate(schedule, plan.costs()).makespan / 1e3
    around = sum(each.calls * each.seconds for each in plan.programs if each.kind in ("before", "after"))
    assert 0.95 * simulated < plan.step_seconds < 1.05 * (simulated + around)
    assert max(mesh.busy_seconds for mesh in plan.meshes) < plan.step_seconds
    assert 0 < plan.bubble < 1
    assert 0 < plan.utilisation < 1
    ranked = S.tune(plan.costs(), meshes=3, microbatches=MICROBATCHES, seconds=0.1)
    assert ranked.best.value <= 1e3 * simulated * 1.001


def test_replicas_take_as_long_as_one_device() -> None:
    """Without `in_shardings` both devices of a mesh do the same; with examples on each they do half of it."""

    def planned(devices: int, spec: P) -> tuple[dict[str, int], float]:
        mesh = jaxpp.target("cpu", devices=4).mesh((2, devices), ("mpmd", "data"))
        step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="1f1b"), mesh, in_shardings=(P(), spec))
        plan = step.lower(*shapes((weights(2, 256), batch(4, 64, 256)))).compile().plan
        return {each.name: each.products for each in plan.programs if each.products}, plan.step_seconds

    alone, replicas, halves = planned(1, P()), planned(2, P()), planned(2, P(None, "data"))
    assert replicas[0] == alone[0] == halves[0]
    assert replicas[1] == pytest.approx(alone[1], rel=0.01)
    assert halves[1] < 0.7 * alone[1]


@pytest.mark.parametrize(
    ("schedule", "operations", "kinds"),
    [
        ("bpipe", {}, {"evict", "load"}),
        (
            insert(S.make("1f1b", meshes=4, microbatches=4), S.Operation.parse("log: forward"), 0, after="forward"),
            {"log": lambda: None},
            {"log"},
        ),
    ],
)
def test_tasks_that_take_no_time(schedule: Any, operations: Any, kinds: set[str]) -> None:
    """What XLA does not compile, a move or a function of the user's, is predicted to take none."""
    mesh = jaxpp.target("cpu", devices=4).mesh((4,), ("mpmd",))
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=schedule), mesh, options=jaxpp.StepOptions(operations=operations)
    )
    plan = step.lower(*shapes((weights(4), batch(4)))).compile().plan
    assert plan.costs().kinds.keys() >= kinds
    assert S.simulate(S.parse(plan.schedule), plan.costs()).makespan > 0


def test_copies_go_both_ways_at_once() -> None:
    """Copies of tiny tasks take most of a step: the prediction is what the simulator says of the schedule."""
    mesh = jaxpp.target("cpu", devices=1).mesh((1,), ("mpmd",))
    schedule = S.offload(S.make("gpipe", meshes=1, chunks=3, microbatches=MICROBATCHES))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mesh)
    plan = step.lower(*shapes((weights(3), batch(MICROBATCHES)))).compile().plan
    simulated = S.simulate(S.parse(plan.schedule), plan.costs()).makespan / 1e3
    assert plan.step_seconds == pytest.approx(simulated, rel=0.05)


def test_units(compiled: Any) -> None:
    per_unit = {"s": 1.0, "ms": 1e3, "us": 1e6}
    schedule = S.parse(compiled.plan.schedule)
    seconds = S.simulate(schedule, compiled.plan.costs()).makespan / 1e3
    for unit, factor in per_unit.items():
        costs = compiled.costs(unit=unit)
        assert costs.unit == unit
        assert S.simulate(schedule, costs).makespan == pytest.approx(factor * seconds)
    with pytest.raises(S.ScheduleError, match="unit must be one of s, ms, us"):
        compiled.costs(unit="h")


def test_saved_loaded_shown(compiled: Any, tmp_path: Path) -> None:
    plan = compiled.plan
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert not {"Infinity", "NaN"} & set((tmp_path / "plan.json").read_text(encoding="utf-8").replace(",", " ").split())
    text = str(plan)
    assert text.splitlines()[0].startswith(
        "train_step on cpu x 3: 3 stages on 3 meshes, 3 devices, 6 microbatches (jax"
    )
    assert {"meshes:", "programs:", "messages:"} <= {*text.splitlines()}
    assert ": fits" in text
    plan.page(tmp_path / "plan.html")
    page = data_of((tmp_path / "plan.html").read_bytes())
    long = [each for each in plan.programs if each.calls * each.seconds >= 1e-3 * plan.step_seconds]
    assert len(long) < len(plan.programs)
    tables = {each["title"]: len(each["rows"]) for each in page["tables"]}
    grid = len(plan.schedule.splitlines())
    assert tables == {"meshes": 3, "programs": len(long), "messages": len(plan.hops), "Schedule": grid}
    (step,) = page["steps"]
    assert step["title"].startswith(f"1f1b: 3 meshes, {MICROBATCHES} microbatches; makespan")
    assert step["memory"]["title"] == "bytes of activations on each device"
    small = dataclasses.replace(
        plan, meshes=tuple(dataclasses.replace(each, peak_bytes=1 << 50) for each in plan.meshes)
    )
    assert "DOES NOT FIT" in str(small)


def test_a_page_without_a_timeline(compiled: Any, tmp_path: Path) -> None:
    """A module that was read has no schedule to draw."""
    dataclasses.replace(compiled.plan, schedule="").page(tmp_path / "plan.html")
    page = data_of((tmp_path / "plan.html").read_bytes())
    assert (page["steps"], len(page["tables"])) == ([], 3)


def test_a_file_that_holds_no_plan(compiled: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    compiled.plan.save(path)
    right = json.loads(path.read_text(encoding="utf-8"))
    for wrong in (
        [],
        {},
        right | {"jaxpp plan": 1},
        right | {"more": 1},
        right | {"meshes": [{}]},
        right | {"chip": "v9"},
        right | {"hops": 3},
    ):
        path.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(jaxpp.PlanError, match=r"plan\.json: no plan: "):
            Plan.load(path)
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(jaxpp.PlanError, match=r"plan\.json: no plan: "):
        Plan.load(path)


def test_a_memory_limit_counts_temporaries(compiled: Any) -> None:
    """The account alone would take this limit as it is; with temporaries less has to be kept."""
    most = max(compiled.plan.peak_bytes)
    account = max(absent().lower(*ARGUMENTS).program().peak_bytes)
    assert account < most
    limit = (account + most) // 2
    lowered = absent(memory_limit=limit).lower(*ARGUMENTS)
    assert not any(lowered.program().kept_less.values())
    found = lowered.compile().plan
    assert max(found.peak_bytes) <= limit
    assert any(lowered.program().kept_less.values())
    with pytest.raises(jaxpp.LimitError, match=r"mesh \d needs at least [\d,]+ bytes"):
        absent(memory_limit=1000).lower(*ARGUMENTS).compile()


def test_a_step_that_failed_has_the_program_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that of the stricter limit which was tried."""
    asked: list[str] = []
    rewrite = step_module.rewrite

    def spied(lowered: Any, schedule: Any, passes: Any, costs: Any) -> Any:
        asked.append(passes["memory_limit"])
        return rewrite(lowered, schedule, passes, costs)

    monkeypatch.setattr(step_module, "rewrite", spied)
    monkeypatch.setattr(Plan, "peak_bytes", (1 << 40, 0))
    step = partial(sgd_step, schedule=S.Std1F1B(2))
    limited = jaxpp.mpmd_jit_with_loop(step, absent_mesh(2), memory_limit=(1 << 40) - 1)
    lowered = limited.lower(weights(2), batch(4))
    before = lowered.program()
    assert max(before.peak_bytes) < (1 << 40) - 1
    with pytest.raises(
        jaxpp.LimitError, match=r"mesh \d needs at least 1,099,511,627,776 bytes on each device, .* of them for temp"
    ):
        lowered.compile()
    assert len(asked) > 1
    assert lowered.program() is before


def test_what_a_compilation_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    target = jaxpp.target("cpu", devices=2)
    bytecode = b"module {}"

    def key(**options: Any) -> str:
        return compiling._key(bytecode, target.devices[:1], target, options)

    first = key()
    assert key() == first
    assert key(xla_cpu_enable_fast_math=True) != first
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_something")
        assert key() != first
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compilers", {target: "others"}.get)
        assert key() != first
    made = compiling._compat.compile_options(target.devices[:1], {"xla_cpu_enable_fast_math": True})
    monkeypatch.setattr(compiling._compat, "compile_options", Mock(return_value=made))  # as if jax.config had set it
    assert key() != first


def test_the_versions_of_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "version", "{:.0}1.0".format)
    found = "jaxlib 1.0, jax-cuda12-pjrt 1.0, jax-cuda13-pjrt 1.0"
    assert compiling.compilers(Target("h200", CHIPS["h200"], ())) == found


def test_what_is_compiled_is_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.CACHE, str(tmp_path / "kept"))
    mesh = jaxpp.target("cpu", devices=4).mesh((2, 2), ("mpmd", "data"))
    made: list[bytes] = []
    now = compiling.compile_now

    def counted(bytecode: bytes, *rest: Any) -> compiling.Compiled:
        made.append(bytecode)
        return now(bytecode, *rest)

    monkeypatch.setattr(compiling, "compile_now", counted)

    def plan(**options: Any) -> Plan:
        step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=S.Std1F1B(2)), mesh, **options)
        return step.lower(*shapes((weights(2), batch(4)))).compile().plan

    first = plan()
    assert len(made) == len(first.programs) == len(list((tmp_path / "kept").iterdir()))
    assert plan() == first
    assert len(made) == len(first.programs)
    damaged = next((tmp_path / "kept").iterdir())
    damaged.write_text("{}", encoding="utf-8")
    assert plan() == first
    assert len(made) == len(first.programs) + 1
    plan(in_shardings=(None, P(None, "data")))
    assert len(made) > len(first.programs) + 1


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.CACHE, "")
    assert compiling.cache_folder() is None
    monkeypatch.delenv(compiling.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert compiling.cache_folder() == Path("/caches/jaxpp/plan")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiling.cache_folder() == Path.home() / ".cache/jaxpp/plan"


def test_an_error_of_the_compiler_names_the_function() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option") as caught:
        absent(compiler_options={"no_such_option": True}).lower(*ARGUMENTS).compile()
    assert any(note.startswith("jaxpp: while compiling @") for note in caught.value.__notes__)

"""What a schedule says of memory is what runs: residuals made again, residuals that go to the host and back."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end import compare, transformer
from unit.end_to_end.compare import (
    assert_same,
    batch,
    check,
    check_compiled,
    feed_state,
    make_mesh,
    plain_of,
    sgd_step,
    weights,
)
from unit.end_to_end.decoder import SLICES

import jaxpp.api as jaxpp
from jaxpp import _compat, schedules
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Program, Send
from jaxpp.runtime import Event, load, measured_costs
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import subdivide

NAMES = {"1f1b": 4, "gpipe": 4, "zb-h1": 4, "zb-v": 2, "dualpipe": 4}
CHANGES = {"recompute": schedules.recompute, "offload": schedules.offload}
EVICTING = {"1f1b": 4, "eager-1f1b": 4}


def offload_and_recompute(schedule: schedules.Schedule) -> schedules.Schedule:
    return schedules.offload(schedules.recompute(schedule))


def one_at_a_time(schedule: schedules.Schedule) -> schedules.Schedule:
    return schedules.offload(schedule, ahead=0)


def evict_and_offload(schedule: schedules.Schedule) -> schedules.Schedule:
    return schedules.offload(evict(schedule))


def recompute_and_evict(schedule: schedules.Schedule) -> schedules.Schedule:
    return evict(schedules.recompute(schedule))


def schedule_of(name: str, microbatches: int = 8) -> schedules.Schedule:
    return schedules.make(name, meshes=NAMES[name], microbatches=microbatches)


def lower(step: Any, arguments: Any, meshes: int) -> Any:
    return compare.lowered(step, arguments, make_mesh(meshes))


def peaks(lowered: Any) -> list[int]:
    return peak_activations(load(lowered.program().module))


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_peaks_are_those_of_the_buffers_that_the_runtime_has(name: str, change: str | None) -> None:
    """To the byte, but for the temporaries of tasks: sums grow in the buffers that they had."""
    schedule = CHANGES[change](schedule_of(name)) if change else schedule_of(name)
    arguments = (weights(schedule.stages), batch(8))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), make_mesh(schedule.meshes), donate_argnums=0)
    lowered = step.lower(*arguments)
    program = load(lowered.program().module)
    assert list(lowered.program().peak_bytes) == [walked(program, mesh) for mesh in range(program.meshes)]


def walked(program: Program, mesh: int) -> int:
    """Returns the most bytes of a mesh's buffers, each of which is followed on its own, from register to register."""
    sizes = [program.shard_bytes(mesh, spec)[0] for spec in program.registers[mesh]]
    buffers = {
        register: register for each in program.arguments.values() for at, register in each.registers if at == mesh
    }
    live = {register: sizes[register] for register in buffers}
    peak = sum(live.values())
    for each in program.sequences[mesh]:
        made, taken = [], set[int]()
        if isinstance(each, Call):
            pairs = list(zip(each.results, program.functions[each.function].donors, strict=True))
            made = [register for register, donor in pairs if donor is None]
            reused = {register: each.operands[donor] for register, donor in pairs if donor is not None}
            buffers |= {register: buffers[operand] for register, operand in reused.items()}
            taken = set(reused.values())
        elif not isinstance(each, Send):
            made = [each.result]
        buffers |= {register: register for register in made}
        live |= {register: sizes[register] for register in made}
        peak = max(peak, sum(live.values()))
        for register in set(each.frees) - taken if isinstance(each, Call | Send) else ():
            live.pop(buffers[register], None)
    return peak


# Models of slices, and of a graph of stages, have tests of their own.
@pytest.mark.parametrize("name", sorted({*schedules.names()} - {*SLICES, "slimpipe", "vocab-1f1b", "vocab-v-half"}))
def test_peaks_of_the_whole_library(name: str) -> None:
    """As it is, and with what moves or makes again what it keeps: most with one way, some with two at once."""
    plain = schedules.make(name, meshes=4, microbatches=8)
    moved = any(task.kind in ("offload", "evict") for task in plain)
    changes = [*CHANGES.values(), evict]
    if moved:
        changes = []
    elif name in NAMES:
        changes = [*changes, offload_and_recompute, recompute_and_evict, evict_and_offload]
    else:
        changes = [(schedules.recompute, one_at_a_time, evict)[schedules.names().index(name) % 3]]
    for schedule in (plain, *(change(plain) for change in changes)):
        arguments = (weights(schedule.stages), batch(8))
        found = peaks(lower(partial(sgd_step, schedule=schedule), arguments, 4))
        assert found == activations(schedule)
        simulated = schedules.simulate(schedule).peak_activations()
        assert found == pytest.approx([each * schedule.stages / schedule.meshes for each in simulated])


@pytest.mark.parametrize("name", ["gpipe", "zb-h1"])
def test_measured_activations_are_as_large_where_all_are_moved_or_made_again(name: str) -> None:
    """What a backward reads is the same, whether the forward made it or another task brought it."""
    plain = schedule_of(name, 4)

    def measured(schedule: schedules.Schedule) -> Any:
        step = partial(transformer.train_step, schedule=schedule)
        lowered = lower(step, arguments, 4)
        events = [Event(stage, "forward", stage, 0, 0.0, 1.0, 1.0) for stage in range(4)]
        return measured_costs(load(lowered.program().module), events).activation_bytes

    arguments = (transformer.state(4), transformer.batch(4))
    expected = measured(plain)
    assert min(expected) > 0
    for changed in (*(change(plain) for change in CHANGES.values()), evicting_all_of_the_first(plain)):
        assert measured(changed) == expected


def evicting_all_of_the_first(schedule: schedules.Schedule) -> schedules.Schedule:
    """The activations of stage 0 wait on the last mesh."""
    first, *middle, last = schedule.cells
    read = ("backward", "input_grad")
    loads = [(schedules.Task("load", 0, cell[0].microbatch),) if cell[0].kind in read else () for cell in first]
    rows = [[each for pair in zip(loads, first, strict=True) for each in pair if each], *middle]
    evicts = [(schedules.Task("evict", 0, microbatch),) for microbatch in range(schedule.microbatches)]
    return schedules.Schedule.of("evicting", schedule.placement, [*rows, [*evicts, *last]])


@pytest.mark.parametrize(
    ("name", "change"), [("1f1b", "recompute"), ("zb-v", "offload"), ("dualpipe", "recompute"), ("dualpipe", "offload")]
)
def test_the_same_numbers(name: str, change: str) -> None:
    """At the peaks of the schedule."""
    schedule = CHANGES[change](schedule_of(name))
    arguments = (transformer.state(schedule.stages), transformer.batch(8))
    lowered = lower(partial(transformer.train_step, schedule=schedule), arguments, schedule.meshes)
    assert peaks(lowered) == activations(schedule)
    check_compiled(lowered.compile(), transformer.PLAIN, arguments, steps=2, feed=feed_state)


@pytest.mark.parametrize("name", ["1f1b", "dualpipe"])
def test_a_part_of_a_stage_at_a_time(name: str) -> None:
    """What comes back from the host is half of a stage where its stages are divided."""
    whole = schedules.make(name, meshes=2, microbatches=4)
    divided = schedules.offload(subdivide(whole, 2), ahead=0)
    arguments = (weights(4), batch(4))
    lowered = lower(partial(sgd_step, schedule=divided), arguments, 2)
    step = partial(sgd_step, schedule=schedules.offload(whole, ahead=0))
    at_once = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), cuts=[2, 2]).lower(*arguments)
    assert max(lowered.program().peak_bytes) < max(at_once.program().peak_bytes)
    assert peaks(lowered) == activations(divided)
    check_compiled(lowered.compile(), jax.jit(sgd_step), arguments)


@pytest.mark.parametrize("name", EVICTING)
def test_residuals_that_wait_on_another_mesh(name: str) -> None:
    """The same numbers, at the peaks of the schedule by its order and by its time."""
    meshes = EVICTING[name]
    plain = schedules.make(name, meshes=meshes, microbatches=8)
    schedule = evict(plain)
    step = partial(transformer.train_step, schedule=schedule)
    arguments = (transformer.state(meshes), transformer.batch(8))
    lowered = lower(step, arguments, meshes)
    found = peaks(lowered)
    assert found == activations(schedule) == schedules.simulate(schedule).peak_activations()
    assert max(found) < max(activations(plain))
    check_compiled(lowered.compile(), transformer.PLAIN, arguments, steps=2, feed=feed_state)


@pytest.mark.parametrize("keep", [None, 0.3])
@pytest.mark.parametrize("recomputed", [(), (0, 2)])
def test_what_a_recompute_reads_waits_on_another_mesh(recomputed: tuple[int, ...], keep: float | None) -> None:
    """Forward, evict, load, recompute, backward; other microbatches go to the host meanwhile, recomputed or not."""
    plain = schedules.make("1f1b", meshes=6, microbatches=6)
    schedule = schedules.offload(schedules.recompute(evict(plain), *recomputed))
    both = {kind: {task.stage for task in schedule if task.kind == kind} for kind in ("evict", "offload")}
    assert {0, 1} <= both["evict"] & both["offload"]
    step = partial(sgd_step, schedule=schedule)
    arguments = (weights(6), batch(6))
    found = peaks(lower(step, arguments, 6))
    assert found == activations(schedule) == schedules.simulate(schedule).peak_activations()
    made = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(6), recompute=keep)
    assert_same(made(*arguments), jax.jit(step)(*arguments))


def test_residuals_of_several_devices_wait_on_another_mesh() -> None:
    schedule = schedules.make("bpipe", meshes=4, microbatches=4)
    step = partial(sgd_step, schedule=schedule)
    shardings = (P(), P(None, "data"))
    found = check(step, (weights(4), batch(4)), make_mesh(4, data=2), in_shardings=shardings)
    kept = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(4)), mpmd_mesh=make_mesh(4, data=2))
    assert_same(found, kept(weights(4), batch(4)))
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(4, data=2)).lower(weights(4), batch(4)).compile()
    traced, events = compiled.trace(weights(4), batch(4))
    assert_same(traced, kept(weights(4), batch(4)))
    moves = {(event.mesh, event.kind) for event in events if event.kind in ("evict", "load")}
    assert moves == {(3, "evict"), (0, "load")}


@pytest.mark.parametrize("change", CHANGES)
def test_stages_of_several_devices(change: str) -> None:
    schedule = CHANGES[change](schedules.make("1f1b", meshes=2, microbatches=4))
    step = partial(transformer.train_step, schedule=schedule)
    shardings = (P(), P(None, "data"))
    check(step, (transformer.state(2), transformer.batch(4)), make_mesh(2, data=2), in_shardings=shardings)


@pytest.mark.parametrize("change", CHANGES)
def test_some_microbatches_of_some_stages(change: str) -> None:
    """The others keep their residuals where they are."""
    plain = schedules.make("1f1b", meshes=3, microbatches=4)
    whole = CHANGES[change](plain, 0)
    dropped = [task for task in whole if task.kind in ("recompute", "offload", "reload") and task.microbatch % 2]
    rows = [[cell for cell in row if cell[0] not in dropped] for row in whole.cells]
    schedule = schedules.Schedule.of("partly", whole.placement, rows)
    arguments = (weights(3), batch(4))
    step = partial(sgd_step, schedule=schedule)
    found = check(step, arguments, make_mesh(3))
    kept = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=plain), mpmd_mesh=make_mesh(3))(*arguments)
    assert_same(found, kept)
    program = load(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3)).lower(*arguments).program().module)
    kinds = [(each.kind, each.microbatch) for each in program.sequences[0] if isinstance(each, Call)]
    kind = "recompute" if change == "recompute" else "offload"
    assert [microbatch for each, microbatch in kinds if each == kind] == [0, 2]
    assert [microbatch for each, microbatch in kinds if each == "forward"] == [0, 1, 2, 3]


def test_dropout_is_the_same_when_it_is_made_again() -> None:
    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(3), stage), 0.8, x.shape)
            x = jaxpp.mark_stage_end(jnp.where(keep, jnp.tanh(x @ w), 0.0))
        return jnp.mean((x - microbatch["y"]) ** 2)

    plain = schedules.make("1f1b", meshes=3, microbatches=4)
    args = (weights(3), batch(4))
    found = check(partial(sgd_step, schedule=schedules.recompute(plain), loss=loss), args, make_mesh(3))
    kept = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=plain, loss=loss), mpmd_mesh=make_mesh(3))(*args)
    assert_same(found, kept)


def test_residuals_are_in_the_host_memory_meanwhile() -> None:
    schedule = schedules.offload(schedules.make("1f1b", meshes=2, microbatches=4))
    step = partial(sgd_step, schedule=schedule)
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(weights(2), batch(4)).compile()
    found, events = compiled.trace(weights(2), batch(4))
    assert_same(found, jax.jit(step)(weights(2), batch(4)))
    assert {"offload", "reload"} <= {event.kind for event in events}


def test_the_analyses_of_an_offloading_step() -> None:
    """What is in the host's memory takes none of the device's, and copies are no programs."""
    plain = schedules.make("gpipe", meshes=2, microbatches=8)
    kept, offloaded = (
        jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mpmd_mesh=make_mesh(2))
        .lower(weights(2), batch(8))
        .compile()
        for schedule in (plain, schedules.offload(plain))
    )
    (most, *_), (least, *_) = (each.memory_analysis() for each in (kept, offloaded))
    assert most is not None
    assert least is not None
    assert least.peak_memory_in_bytes < most.peak_memory_in_bytes
    assert offloaded.cost_analysis() == kept.cost_analysis()
    assert offloaded.summary().splitlines()[3].split()[:4] == kept.summary().splitlines()[3].split()[:4]


def test_a_host_whose_memory_runs_out_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the task that wanted it; the state is still there, and the next step works."""
    copy, full = _compat.copy_function(), [False]

    def limited(arrays: Any, devices: Any, shardings: Any, semantics: Any) -> Any:
        if full[0] and any(sharding.memory_kind == "pinned_host" for sharding in shardings):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no pinned memory is left")
        return copy(arrays, devices, shardings, semantics)

    monkeypatch.setattr(_compat, "copy_function", lambda: limited)
    step = partial(sgd_step, schedule=schedules.offload(schedules.make("1f1b", meshes=2, microbatches=4)))
    compiled = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), donate_argnums=0).lower(weights(2), batch(4)).compile()
    state = jax.tree.map(jnp.copy, weights(2))
    full[0] = True
    with pytest.raises(jax.errors.JaxRuntimeError, match="no pinned memory is left") as caught:
        compiled(state, batch(4))
    assert caught.value.__notes__ == ["jaxpp: in offload of stage 0, microbatch 0 on mesh 0"]
    full[0] = False
    assert_same(compiled(state, batch(4)), plain_of(step)(weights(2), batch(4)))


def test_a_device_without_such_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedules.offload(schedules.make("1f1b", meshes=2, microbatches=4))
    lowered = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mpmd_mesh=make_mesh(2)).lower(
        weights(2), batch(4)
    )
    monkeypatch.setattr("jaxpp.hlo_passes.stages.add_tasks.HOST", "attic")
    with pytest.raises(ValueError, match=r"keeps values of mesh 0 in 'attic'; .* has only .*pinned_host.*: take"):
        lowered.compile()


def test_it_is_said_with_the_line_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of residuals, and of a state that lives there."""
    plain = schedules.make("1f1b", meshes=2, microbatches=4)
    in_host = NamedSharding(make_mesh(2).jax_mesh, P(), memory_kind="pinned_host")
    monkeypatch.setattr("jaxpp.program._without_host_memory", WithoutHost)
    for schedule, sharding in ((schedules.offload(plain), None), (plain, in_host)):
        step = partial(sgd_step, schedule=schedule)
        lowered = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), in_shardings=(sharding, None)).lower(
            weights(2), batch(4)
        )
        with pytest.raises(
            ProgramError,
            match=r"compare\.py:\d+:\d+: error: the program keeps values of mesh 0 in 'pinned_host'; npu:0 has only "
            "device\n"
            "  take a schedule without offloads, and shardings without that memory_kind$",
        ):
            lowered.program()
    jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=plain), make_mesh(2)).lower(weights(2), batch(4)).program()


class WithoutHost:
    """A device of the mesh, whose only memory is its own."""

    def __init__(self, _: jaxpp.MpmdMesh) -> None:
        pass

    def __str__(self) -> str:
        return "npu:0"

    def addressable_memories(self) -> list[Any]:
        return [SimpleNamespace(kind="device")]


def test_a_limit_for_devices_without_such_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offloaded, although that alone would be enough."""
    plan = schedules.make("gpipe", meshes=3, microbatches=16)
    step = partial(sgd_step, schedule=schedules.Schedule.of("mine", plan.placement, plan.cells))
    limited = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3), memory_limit=[10**6, 2000, 10**6])
    assert limited.lower(weights(3), batch(16)).program().kept_less["offload"] == "1"
    monkeypatch.setattr("jaxpp.program.HOST", "attic")
    with pytest.raises(jaxpp.LimitError, match=r"mesh 1 needs at least [0-9,]+ bytes on each device, its memory limit"):
        limited.lower(weights(3), batch(16)).program()

"""`jaxpp.partition`: what the layers of a step cost, where it is cut, and that the cuts are right."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from unit.end_to_end.compare import batch, check, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import partition, target
from jaxpp import schedules as S
from jaxpp.jit import MpmdFunction
from jaxpp.planning import compiling
from jaxpp.runtime import Call, Event
from jaxpp.runtime.execution import progress
from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.rewrites.tasks import insert
from jaxpp.step import CompiledStep
from jaxpp.tuning.layers import Layers

MESHES = 2


def loss(params: Any, microbatch: Any) -> jax.Array:
    x = microbatch["x"]
    for up, down in params:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ up) @ down)
    return jnp.mean((x - microbatch["y"]) ** 2)


def layer(width: int, key: int) -> tuple[jax.Array, jax.Array]:
    up, down = jax.random.split(jax.random.key(key))
    return jax.random.normal(up, (8, width)) / 3, jax.random.normal(down, (width, 8)) / width**0.5


def heavy_last(layers: int = 5) -> Any:
    """The last layer has eight times as many FLOPs as each of the others."""
    return [layer(512, key) for key in range(layers)] + [layer(4096, 9)]


STEP = partial(sgd_step, schedule=jaxpp.Interleaved1F1B(num_stages=6, mpmd_dim=2), loss=loss)


def planned() -> tuple[MpmdFunction, Any]:
    """The step for devices that are not here, and the shapes of its arguments."""
    devices = np.array(target("cpu", devices=MESHES).devices).reshape(MESHES, 1)
    step = jaxpp.mpmd_jit_with_loop(STEP, jaxpp.MpmdMesh(Mesh(devices, ("mpmd", "data")), "mpmd"), donate_argnums=0)
    return step, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (heavy_last(), batch(4, 64)))


def test_a_heavy_layer_by_what_is_measured() -> None:
    params, inputs = heavy_last(), batch(4, 64)
    step = jaxpp.mpmd_jit_with_loop(STEP, make_mesh(MESHES), donate_argnums=0)
    found = partition(step, params, inputs, seconds=0.05)
    assert sum(found.cuts) == 6
    assert found.costs.unit == "ms"
    assert found.value == pytest.approx(S.simulate(found.schedule, found.costs).makespan)
    assert not params[0][0].is_deleted()
    check(STEP, (params, inputs), make_mesh(MESHES), cuts=found)


def test_a_heavy_layer_by_what_is_planned() -> None:
    step, shapes = planned()
    one, other = (partition(step, *shapes, seconds=0.05) for _ in range(2))
    assert one.cuts == other.cuts == (5, 1)
    assert one.value == other.value == pytest.approx(one.lower_bound)


def test_the_search_shows_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    step, shapes = planned()
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    partition(step, *shapes, seconds=0.05)
    lines = [line for line in capsys.readouterr().err.splitlines() if "searching" in line]
    number = r"\d+(\.\d+)?(e[-+]\d+)?"
    shown = rf"jaxpp: searching for cuts, percent: \d+ of 100 after \d+ s, now {number} ms \(at least {number}\)"
    assert any(re.fullmatch(shown, line) for line in lines)
    assert re.fullmatch(r"jaxpp: searching for cuts, percent: all 100 after \d+ s", lines[-1])

    def twice(_: Layers, __: str, *, progress: Any, **___: Any) -> None:
        for share in (1.0, 0.5):
            progress(share, 5.0, 4.0)

    monkeypatch.setattr(Layers, "partition", twice)
    partition(step, *shapes, seconds=0.05)
    second = "jaxpp: searching for cuts, percent: 50 of 100 after 0 s, now 5 ms (at least 4), search 2\n"
    assert second in capsys.readouterr().err


def test_equal_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    original = compiling.compile_all

    def counting(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        compiled.append(len(found))
        return found

    monkeypatch.setattr("jaxpp.planning.backend.compile_all", counting)
    step, (params, inputs) = planned()
    partition(step, params, inputs, seconds=0.02)
    partition(step, [*params[:1] * 11, params[-1]], inputs, seconds=0.02)
    assert compiled[1] - compiled[0] <= 2, "six layers more, but sums of other sizes around the loop"


def test_a_limit_of_memory_counts_parameters() -> None:
    step, shapes = planned()
    free = partition(step, *shapes, seconds=0.05)
    tight = partition(step, *shapes, seconds=0.05, memory_limit=4 * 10**6)
    assert tight.value > free.value
    with pytest.raises(S.ScheduleError, match="partition: no cuts fit the memory, even if every stage recomputes"):
        partition(step, *shapes, seconds=0.05, memory_limit=[10**6, 10**6])


def test_meshes_of_different_size() -> None:
    """The larger mesh is taken to be faster in proportion; layers are measured as on the smallest."""
    devices = np.array(jax.devices())
    meshes = [Mesh(devices[:1].reshape(1, 1), ("mpmd", "data")), Mesh(devices[1:3].reshape(1, 2), ("mpmd", "data"))]
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), jaxpp.MpmdMesh.of(meshes))
    found = partition(step, weights(4), batch(4), seconds=0.02)
    assert found.costs.speed == (1, 2)
    assert sum(found.cuts) == 4


@pytest.mark.parametrize("sharded", [False, True])
def test_bytes_on_meshes_of_different_size(sharded: bool) -> None:
    """Each device has all of what is replicated, and a part of what is sharded, however large its mesh is."""

    def over_data(params: Any, microbatch: Any) -> jax.Array:
        specs = PartitionSpec(None, "data"), PartitionSpec("data", None)
        return loss([tuple(map(jax.lax.with_sharding_constraint, layer, specs)) for layer in params], microbatch)

    devices, sizes = np.array(target("cpu", devices=7).devices), (4, 2, 1)
    meshes = [Mesh(row.reshape(1, -1), ("mpmd", "data")) for row in np.split(devices, np.cumsum(sizes)[:-1])]
    mpmd_mesh, (params, inputs) = jaxpp.MpmdMesh.of(meshes), ([layer(4096, key) for key in range(6)], batch(4, 64))
    train = partial(STEP, schedule=jaxpp.Std1F1B(6), loss=over_data if sharded else loss)
    step = jaxpp.mpmd_jit_with_loop(train, mpmd_mesh, donate_argnums=0)
    layers = step.measure_layers(params, inputs)
    parts = np.array([1 / size for size in sizes]) if sharded else np.ones(3)
    assert layers.shares == pytest.approx(parts, rel=0.02)
    each = 4 * 4096 * (8 + 8)  # the bytes of the weights of a layer; its gradients and sums of these are as large
    np.testing.assert_allclose(layers.resident, np.outer(np.full(6, 4 * each), parts), rtol=0.2)
    limit = 3 * 10**6 if sharded else 7 * 10**6
    cuts = partition(step, params, inputs, seconds=0.1, memory_limit=limit)
    compiled = jaxpp.mpmd_jit_with_loop(train, mpmd_mesh, donate_argnums=0, cuts=cuts).lower(params, inputs)
    assert max(compiled.program().peak_bytes) <= limit * 1.01


def scanned(params: Any, microbatch: Any) -> jax.Array:
    def body(x: Any, layer: Any) -> Any:
        up, down = layer
        return jaxpp.mark_stage_end(jnp.tanh(x @ up) @ down), None

    return jnp.mean((jax.lax.scan(body, microbatch["x"], params)[0] - microbatch["y"]) ** 2)


@pytest.mark.parametrize(
    ("sizes", "shares"), [((2, 1), (1.1, 0.95, 0.85)), ((1, 2, 4), (1.1, 0.95)), ((1, 1), (0.95, 0.8))]
)
def test_what_is_found_within_a_limit_fits(sizes: tuple[int, ...], shares: tuple[float, ...]) -> None:
    """Also where each mesh has a whole stack, as meshes differ in size; shares are of what 1F1B on equal cuts needs."""
    devices = np.array(target("cpu", devices=7).devices)
    meshes = [Mesh(row.reshape(1, -1), ("mpmd", "data")) for row in np.split(devices[: sum(sizes)], np.cumsum(sizes))]
    layers = 9 if len(sizes) == 3 else 8
    data, params = batch(8, 16), (jnp.ones((layers, 8, 2048)), jnp.ones((layers, 2048, 8)))

    def peak(cuts: Any, schedule: Any = "1f1b") -> int:
        train = partial(STEP, schedule=schedule, loss=scanned)
        step = jaxpp.mpmd_jit_with_loop(train, mpmd_mesh, donate_argnums=0, cuts=cuts)
        return max(step.lower(params, data).program().peak_bytes)

    mpmd_mesh = jaxpp.MpmdMesh.of(meshes[: len(sizes)])
    whole = peak([layers // len(sizes)] * len(sizes))
    train = partial(STEP, schedule="1f1b", loss=scanned)
    measured = jaxpp.mpmd_jit_with_loop(train, mpmd_mesh, donate_argnums=0).measure_layers(params, data)
    for share in shares:
        limit = int(share * whole)
        found = measured.partition(str(limit), seconds=0.1)
        assert peak(found, found.schedule) <= limit


def test_a_whole_stack_is_no_larger_for_more_layers() -> None:
    """Meshes that differ in size have whole stacks: the larger one has room for a layer of the smaller one's then."""
    devices = np.array(target("cpu", devices=3).devices)
    meshes = [Mesh(row.reshape(1, -1), ("mpmd", "data")) for row in np.split(devices, [2])]
    options: Any = {"donate_argnums": 0, "in_shardings": (PartitionSpec(), PartitionSpec(None, "data"))}
    step = jaxpp.mpmd_jit_with_loop(partial(STEP, schedule="1f1b", loss=scanned), jaxpp.MpmdMesh.of(meshes), **options)
    data, params = batch(6, 64), (jnp.ones((6, 8, 128)), jnp.ones((6, 128, 8)))
    measured, order = step.measure_layers(params, data), S.make("1f1b", meshes=2, microbatches=6)
    limit = int(0.9 * max(measured.peaks((3, 3), order)[1]))
    found = measured.partition(str(limit), seconds=0.1)
    assert found.cuts == (4, 2)
    assert max(measured.peaks(found.cuts, found.schedule)[1]) <= limit


def test_a_program_that_needs_more_than_is_reckoned() -> None:
    """Two halves of a backward hold more than a whole one, which is taken then; where nothing helps it is said."""
    step, _ = planned()
    params, data = heavy_last(7), batch(8, 16)
    measured, limit = step.measure_layers(params, data), 1034147
    found = measured.partition(str(limit), seconds=0.1)
    assert max(measured.peaks(found.cuts, found.schedule)[1]) <= limit
    never = replace(measured, peaks=lambda *_: ([0, 0], [10**9, 10**9 + 5]))
    text = "the best that was found needs 1,000,000,005 bytes on mesh 1, its limit is 999,999,999"
    with pytest.raises(S.ScheduleError, match=f"^partition: no cuts fit the memory: {text}$"):
        never.partition(str(10**9 - 1), seconds=0.05)


def events_of(step: CompiledStep, seconds: Callable[[int, int], float]) -> list[Event]:
    """A traced step whose tasks take the given time of their mesh and microbatch."""
    return [
        Event(mesh, each.kind, each.stage, each.microbatch, 0.0, 1.0, seconds(mesh, each.microbatch or 0))
        for mesh, sequence in enumerate(step.executable.program.sequences)
        for each in sequence
        if isinstance(each, Call) and each.tasks
    ]


def test_a_mesh_at_half_speed_gets_fewer_layers() -> None:
    """Its layers are not taken to be the heavier ones: elsewhere they would take half."""
    function = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="auto"), make_mesh(2))
    layered = function.to_tune((weights(6), batch(4)), 0.02, None)[0].ways.layered()
    events = events_of(layered.compiled, lambda mesh, _: mesh + 1.0)
    found = layered.layers(events)
    assert (found.speeds, found.costs.speed) == ([1, 0.5], (1, 0.5))
    assert found.costs.forward == (1000,) * 6
    assert found.partition("", seconds=0.02).cuts == (4, 2)
    assert layered.compiled.stragglers(events) == {1: 0.5}
    assert layered.compiled.told_slow(1, 0.5) == "mesh 1 computes at 0.50 of the speed of the others"
    equal = [replace(each, seconds=1.0) for each in events]
    assert layered.compiled.stragglers(equal) == {}
    known = layered.layers(equal, slow={1: 0.5})
    assert (known.costs, known.speeds) == (found.costs, found.speeds), "the step in which layers are measured escaped"


def test_a_mesh_that_is_stopped_in_bursts_is_slow() -> None:
    """Its medians say nothing: one of four microbatches takes as long as nine others."""
    function = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="auto"), make_mesh(2))
    layered = function.to_tune((weights(6), batch(4)), 0.02, None)[0].ways.layered()
    found = layered.layers(events_of(layered.compiled, lambda mesh, number: 9.0 if (mesh, number) == (1, 2) else 1.0))
    assert found.costs.forward == (1000,) * 6
    assert found.speeds[1] == found.costs.speed[1] < 0.5  # pyright: ignore[reportIndexIssue]  # a row, as meshes differ
    assert found.partition("", seconds=0.02).cuts[1] < 3


def test_a_mesh_without_a_function_in_common_is_compared_with_itself() -> None:
    """As the first and the last of two stages."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), make_mesh(2))
    compiled = step.lower(weights(2), batch(4)).compile()
    before, slow, slower = (
        events_of(compiled, lambda mesh, _, factor=factor: factor[mesh] * (1 + mesh))
        for factor in ((1, 1), (1, 2), (2, 4))
    )
    assert compiled.stragglers(slow) == {}
    assert compiled.stragglers(slow, before=before) == {1: 0.5}
    assert compiled.stragglers(slower, before=before) == {1: 0.5}, "the machine is busier, and one mesh more so"
    assert compiled.stragglers(slower, before=slow) == {}
    assert compiled.stragglers(before, before=slow) == {}, "one that is fast again makes no other one slow"


def test_layers_that_are_a_graph_run_side_by_side() -> None:
    """A tower for each input, and a layer that reads both, which also read one constant and one draw of numbers."""

    def towers(params: Any, microbatch: Any) -> jax.Array:
        keep = jax.random.bernoulli(jax.random.key(3), 0.9, microbatch["x"].shape)
        one, other = (
            jaxpp.mark_stage_end(jnp.tanh(jnp.where(keep, microbatch[name], 0.5) @ weight))
            for name, weight in zip("xy", params[:2], strict=True)
        )
        return jnp.mean(jaxpp.mark_stage_end((one * other) @ params[2]) ** 2)

    train = partial(sgd_step, schedule="1f1b", loss=towers)
    layers = jaxpp.mpmd_jit_with_loop(train, make_mesh(3)).measure_layers(weights(3), batch(4))
    assert layers.reads == ((), (), (0, 1))
    costs = S.Costs(forward=[1.0] * 3, input_grad=[1.0] * 3, weight_grad=[1.0] * 3, activation_bytes=[8.0] * 3)

    def peaks(cuts: Sequence[int], order: S.Schedule) -> Any:
        kept = S.simulate(order, costs.cut(cuts)).peak_bytes()
        return ([100 * size + each for size, each in zip(cuts, kept, strict=True)],) * 2

    layers = replace(layers, costs=costs, resident=[[100.0] * 3] * 3, peaks=peaks)
    found, chain = (each.partition("200", seconds=0.1) for each in (layers, replace(layers, reads=((), (0,), (1,)))))
    assert (found.cuts, found.schedule.placement.after) == ((1, 1, 1), ((), (), (0, 1)))
    assert found.lower_bound <= found.value < chain.value
    assert layers.partition("110", seconds=0.1).value > found.value, "less room for activations"
    assert layers.cut([2, 1]).is_chain
    check(partial(train, schedule=None), (weights(3), batch(4)), make_mesh(3), cuts=found)


def test_tasks_of_the_users_own_are_not_measured() -> None:
    plan = insert(one_f_one_b(2, 4), S.Operation.parse("tick: forward"), after="forward")
    options = jaxpp.StepOptions(operations={"tick": lambda: None})
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=plan), make_mesh(2), options=options)
    assert sum(partition(step, weights(2), batch(4), seconds=0.02).cuts) == 2


def test_what_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"^partition: expected a step of mpmd_jit_with_loop, .* found functools\.partial"
    ):
        partition(STEP, weights(2), batch(4))  # pyright: ignore[reportArgumentType]
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), make_mesh(4))
    with pytest.raises(
        S.ScheduleError, match=r"^partition: 2 marked layers are fewer than 4 meshes: mark every layer$"
    ):
        partition(step, weights(2), batch(4))

    def losses(params: Any, data: Any) -> jax.Array:
        schedule = jaxpp.Std1F1B(2)
        return jaxpp.treduce(partial(loss, params), data, schedule=schedule, operation=jaxpp.Concat())

    message = r"^partition: .* this step takes no gradients: give the step of the training; its cuts hold here as well$"
    with pytest.raises(ValueError, match=message):
        partition(jaxpp.mpmd_jit_with_loop(losses, make_mesh(2)), heavy_last(1), batch(4))
    for wrong in ({"seconds": "1"}, {"seed": 0.5}, {"split_backward": 1}):
        (name,) = wrong
        with pytest.raises(S.ScheduleError, match=f"^{name} must be .*, found"):
            partition(step, weights(2), batch(4), **wrong)  # pyright: ignore[reportArgumentType]  # wrong on purpose
    with pytest.raises(ValueError, match="memory_limit has 2 numbers for 4 meshes"):
        partition(step, weights(4), batch(4), memory_limit=[1, 2])
    by_yield = jaxpp.mpmd_jit_by_yield(loss, make_mesh(2))
    with pytest.raises(TypeError, match=r"^partition: the stages of mpmd_jit_by_yield are its marks, expected"):
        partition(by_yield, heavy_last(), {"x": np.ones((3, 8)), "y": np.ones((3, 8))})

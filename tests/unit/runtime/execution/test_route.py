"""Route: what each device sends to which other, between meshes that cut a value differently."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp.ir.program import Hop, Program, Receive, Send
from jaxpp.ir.tensors import SubAxis, TensorSpec
from jaxpp.runtime.execution.route import Route, route_of

Sizes = dict[str, int]
Axes = tuple[tuple[Any, ...], ...]


def program(shape: Sequence[int], source: tuple[Axes, Sizes], target: tuple[Axes, Sizes]) -> Program:
    """Mesh 0 sends register 0 to mesh 1."""
    specs = [TensorSpec(tuple(shape), np.dtype("f4"), axes) for axes, _ in (source, target)]
    sizes = source[1], target[1]
    return Program(
        meshes=2,
        partitions=tuple(math.prod(each.values()) for each in sizes),
        axis_sizes=sizes,
        functions={},
        sequences=((Send(5, 0, 1, ()),), (Receive(5, 0, 0),)),
        registers=tuple((spec,) for spec in specs),
        arguments={},
        results=(),
    )


def shards(value: np.ndarray[Any, Any], axes: Axes, sizes: Sizes) -> list[np.ndarray[Any, Any]]:
    """What each device holds, by JAX."""
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(tuple(sizes.values()))
    sharding = jax.NamedSharding(jax.sharding.Mesh(devices, tuple(sizes)), jax.P(*(names or None for names in axes)))
    indices = sharding.devices_indices_map(value.shape)
    return [value[indices[device]] for device in devices.flat]


def type_at(position: int, shape: Sequence[int]) -> Any:
    """As float32 on the device of that number."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[position])
    return jax.ShapeDtypeStruct(tuple(shape), np.float32, sharding=sharding)


def on_device(values: Sequence[Any], positions: Sequence[int]) -> list[jax.Array]:
    return [
        jax.device_put(np.asarray(each, np.float32), jax.devices()[where])
        for each, where in zip(values, positions, strict=True)
    ]


def made(route: Route, shards: Sequence[np.ndarray[Any, Any]]) -> list[jax.Array]:
    """The pieces of these shards, each on the device that receives it."""
    parts = route.cut(range(len(route.pieces)), range(len(shards)), type_at)(on_device(shards, range(len(shards))))
    assert [part.shape for part in parts] == [piece.shape for piece in route.pieces]
    return on_device(parts, [piece.target for piece in route.pieces])


@st.composite
def layouts(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Axes, Sizes]:
    sizes = {"a": draw(st.sampled_from([1, 2, 3])), "b": draw(st.sampled_from([1, 2]))}
    unused = list(draw(st.permutations(list(sizes))))
    axes: list[tuple[str, ...]] = []
    for extent in shape:
        names: list[str] = []
        while unused and draw(st.booleans()) and extent % math.prod(sizes[n] for n in [*names, unused[-1]]) == 0:
            names.append(unused.pop())
        axes.append(tuple(names))
    return tuple(axes), sizes


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_every_device_gets_its_shard(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 6, 12]), max_size=3))
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    value = np.random.default_rng(0).normal(size=shape).astype("f4")
    here, there = shards(value, *source), shards(value, *target)
    route = route_of(program(shape, source, target), 5)
    parts = made(route, here)
    found = route.join(range(len(parts)), range(len(there)), type_at)(parts)
    for position, (one, right) in enumerate(zip(found, there, strict=True)):
        np.testing.assert_array_equal(one, right)
        sizes = [math.prod(piece.shape) for piece in route.pieces if piece.target == position]
        assert sum(sizes) == right.size


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_every_process_receives_what_it_lacks_once(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 6, 12]), max_size=2))
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    value = np.random.default_rng(0).normal(size=shape).astype("f4")
    here, there = shards(value, *source), shards(value, *target)
    processes = st.sampled_from([0, 1, 2])
    owners = [data.draw(st.lists(processes, min_size=len(each), max_size=len(each))) for each in (here, there)]
    route = route_of(program(shape, source, target), 5, owners)
    parts = made(route, here)
    for process in {*owners[1]}:
        positions = [position for position, owner in enumerate(owners[1]) if owner == process]
        pieces = [number for number, piece in enumerate(route.pieces) if piece.target in positions]
        found = route.join(pieces, positions, type_at)([parts[number] for number in pieces])
        for position, one in zip(positions, found, strict=True):
            np.testing.assert_array_equal(one, there[position])
            assert one.devices() == {jax.devices()[position]}
        wanted = {number for position in positions for number in there[position].flat}
        held = {number for each, owner in enumerate(owners[0]) if owner == process for number in here[each].flat}
        if not route.is_direct:
            sent = [piece for piece in map(route.pieces.__getitem__, pieces) if owners[0][piece.source] != process]
            assert sum(math.prod(piece.shape) for piece in sent) == len(wanted - held)


def test_equal_layouts_go_from_position_to_position() -> None:
    layout = (("a",), ()), {"a": 2, "b": 2}
    route = route_of(program((4, 4), layout, layout), 5)
    assert route.is_direct
    assert [(piece.source, piece.target, piece.cut) for piece in route.pieces] == [(k, k, None) for k in range(4)]


def test_replicas_share_the_work() -> None:
    route = route_of(program((4,), (((),), {"a": 2}), ((("a",),), {"a": 4})), 5)
    assert not route.is_direct
    assert [(piece.source, piece.target, piece.cut) for piece in route.pieces] == [
        (0, 0, ((0, 1),)),
        (1, 1, ((1, 2),)),
        (0, 2, ((2, 3),)),
        (1, 3, ((3, 4),)),
    ]


def test_a_process_receives_a_replicated_value_once() -> None:
    one: tuple[Axes, Sizes] = ((),), {"a": 1}
    four: tuple[Axes, Sizes] = ((),), {"a": 4}
    whole = program((4,), one, four)
    assert [piece[:2] for piece in route_of(whole, 5).pieces] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert route_of(whole, 5, [[0], [1, 1, 1, 1]]).pieces == [(0, 0, None, (4,))]
    assert [piece[:2] for piece in route_of(whole, 5, [[0], [1, 2, 1, 2]]).pieces] == [(0, 0), (0, 1)]
    halves = route_of(program((4,), one, ((("a",),), {"a": 2, "b": 2})), 5, [[0], [1, 1, 1, 1]])
    assert [piece[:3] for piece in halves.pieces] == [(0, 0, ((0, 2),)), (0, 2, ((2, 4),))]


def test_who_sends_a_replicated_value() -> None:
    """One in the process that wants it, if it holds it; otherwise all in turn."""
    two: tuple[Axes, Sizes] = ((),), {"a": 2}
    four: tuple[Axes, Sizes] = ((),), {"a": 4}
    value = program((4,), two, four)
    assert [piece[:2] for piece in route_of(value, 5, [[0, 1], [1, 1, 0, 0]]).pieces] == [(1, 0), (0, 2)]
    assert [piece[:2] for piece in route_of(value, 5, [[0, 0], [1, 1, 2, 2]]).pieces] == [(0, 0), (1, 2)]


def test_equal_layouts_go_from_position_to_position_between_processes_too() -> None:
    layout: tuple[Axes, Sizes] = ((),), {"a": 2}
    route = route_of(program((4,), layout, layout), 5, [[0, 0], [1, 1]])
    assert [piece[:3] for piece in route.pieces] == [(0, 0, None), (1, 1, None)]


def test_parts_of_an_axis() -> None:
    source: tuple[Axes, Sizes] = ((SubAxis("a", 1, 2),),), {"a": 4}
    route = route_of(program((4,), source, ((("a",),), {"a": 4})), 5)
    assert [(piece.source, piece.cut) for piece in route.pieces] == [
        (0, ((0, 1),)),
        (1, ((1, 2),)),
        (2, ((0, 1),)),
        (3, ((1, 2),)),
    ]


def test_pieces_of_one_process_only() -> None:
    """A process makes the pieces of its own shards, and puts its own shards together."""
    route = Route([((0, 2),), ((2, 4),)], [((0, 4),), ((0, 4),)])
    shards = on_device([np.array([2.0, 3.0])], [1])
    assert [part is shards[0] for part in route.cut([1, 3], [1], type_at)(shards)] == [True, True]
    joined = route.join([2, 3], [1], type_at)(on_device([np.array([0.0, 1.0]), np.array([2.0, 3.0])], [1, 1]))
    np.testing.assert_array_equal(joined[0], [0, 1, 2, 3])


def test_a_program_names_its_hops() -> None:
    layout: tuple[Axes, Sizes] = ((),), {}
    assert program((4,), layout, layout).hops == {5: Hop(0, 0, 1, 0)}

"""Route: what each device sends to which other, between meshes that cut a value differently."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp.runtime.program import Hop, Program, Receive, Send
from jaxpp.runtime.route import Route, route_of
from jaxpp.runtime.values import SubAxis, TensorSpec

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
    everything = range(len(route.pieces))
    parts = route.cut(everything, range(len(here)), type_at)(on_device(here, range(len(here))))
    assert [part.shape for part in parts] == [piece.shape for piece in route.pieces]
    parts = on_device(parts, [piece.target for piece in route.pieces])
    found = route.join(everything, range(len(there)), type_at)(parts)
    for position, (one, right) in enumerate(zip(found, there, strict=True)):
        np.testing.assert_array_equal(one, right)
        sizes = [math.prod(piece.shape) for piece in route.pieces if piece.target == position]
        assert sum(sizes) == right.size


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

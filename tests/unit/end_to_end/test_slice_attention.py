"""`slice_attention`, and the schedule that lets late slices have a part of theirs done on other meshes."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end import compare, decoder
from unit.end_to_end.compare import check, feed_state, make_mesh

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.program import Call
from jaxpp.models import scan_slices, slice_attention
from jaxpp.runtime import load
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict

unchecked: Any = slice_attention  # by types, as of users who have no checker


def whole(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """All positions at once, every head with keys of its own."""
    keys, values = (jnp.repeat(each, query.shape[2] // each.shape[2], axis=2) for each in (keys, values))
    scores = jnp.einsum("bthw,bshw->bhts", query, keys) / query.shape[3] ** 0.5
    scores = jnp.where(jnp.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhts,bshw->bthw", jax.nn.softmax(scores), values)


def sliced(query: jax.Array, keys: jax.Array, values: jax.Array, slices: int, exchange: bool) -> jax.Array:
    """The same, slice by slice; what is not written yet is no number."""

    def one(cache: Any, parts: Any, start: jax.Array) -> Any:
        rows = zip(cache, parts[1:], strict=True)
        keys, values = (jax.lax.dynamic_update_slice_in_dim(old, new, start, 1) for old, new in rows)
        return (keys, values), slice_attention(parts[0], keys, values, start, exchange=exchange)

    empty = jnp.full_like(keys, 1e9), jnp.full_like(values, 1e9)
    _, made = scan_slices(one, empty, (query, keys, values), slices)
    return jnp.concatenate(list(made), 1)


@pytest.mark.parametrize(("slices", "exchange"), [(2, False), (3, True)])
def test_the_numbers_are_those_of_the_whole_sequence(slices: int, exchange: bool) -> None:
    random = np.random.default_rng(0)
    heads = (4, 8), (2, 8), (2, 6)  # two heads share keys, and values have a width of their own
    arguments = [random.normal(size=(2, 12, *each)).astype(np.float32) for each in heads]
    weight = random.normal(size=(2, 12, 4, 6))

    def gradients(attend: Callable[..., jax.Array]) -> Any:
        return jax.jit(jax.value_and_grad(lambda *each: (attend(*each) * weight).sum(), (0, 1, 2)))(*arguments)

    found, expected = gradients(partial(sliced, slices=slices, exchange=exchange)), gradients(whole)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("end", "exchange"), [(7, True), (8, False)])
def test_a_slice_that_starts_anywhere(end: int, exchange: bool) -> None:
    """Also one whose positions do not divide the length."""
    rows = jax.random.normal(jax.random.key(0), (1, 12, 1, 4))
    found = jax.jit(partial(slice_attention, exchange=exchange))(rows[:, 3:end], rows, rows, 3)
    np.testing.assert_allclose(found, whole(rows, rows, rows)[:, 3:end], rtol=1e-5)


def test_no_sequences_and_no_heads() -> None:
    gradient = jax.grad(lambda *each: unchecked(*each, 0).sum(), (0, 1, 2))
    for query, keys in ((ROWS[:0], ROWS[:0]), (ROWS[:, :, :0], ROWS)):
        found = jax.eval_shape(gradient, query, keys, keys)
        assert [each.shape for each in found] == [query.shape, keys.shape, keys.shape]


def test_float64_is_accumulated_in_float64() -> None:
    with jax.enable_x64(True):
        rows = np.random.default_rng(0).normal(size=(1, 4, 1, 4))

        def gradient(attend: Callable[..., jax.Array]) -> Any:
            return jax.jit(jax.value_and_grad(lambda each: attend(each, rows, rows).sum()))(rows)

        found, expected = gradient(lambda *each: unchecked(*each, 0)), gradient(whole)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def made(name: str, slices: int) -> tuple[Any, Any]:
    """The schedule, and the step of a decoder whose blocks have `slice_attention`."""
    schedule = schedules.make(name, meshes=2, microbatches=2, slices=slices)
    block = partial(decoder.attending, exchange=name == "slimpipe")
    loss = partial(decoder.loss, one=partial(decoder.of_slice, block=block))
    return schedule, partial(decoder.train_step, schedule=schedule, slices=slices, loss=loss)


def test_late_slices_lend_a_part_of_their_attention() -> None:
    """Equal to plain `jax.jit` of whole sequences; a program per stage, and the activations of the schedule."""
    schedule, step = made("slimpipe", 4)
    arguments = decoder.parameters(2), decoder.batch(2)
    reference = jax.jit(partial(step, schedule=None, slices=1))
    shardings: Any = {"in_shardings": (P(), P(None, "data"))}
    check(step, arguments, make_mesh(2, data=2), steps=2, feed=feed_state, reference=reference, **shardings)

    program = load(compare.lowered(step, arguments, make_mesh(2, data=2), **shardings).program().module)
    assert peak_activations(program) == activations(schedule)
    calls = [(mesh, call) for mesh, line in enumerate(program.sequences) for call in line if isinstance(call, Call)]
    functions = {(call.kind, call.stage, call.function) for _, call in calls if call.tasks}
    assert len(functions) == 2 * schedule.stages + 1, "and what follows the last slice"
    lent = {task.slice for mesh, call in calls for task in call.tasks if schedule.placement[task.stage] != mesh}
    assert lent == {2, 3}


def test_peaks_of_what_is_lent() -> None:
    """Of slices whose forward ran on one mesh and whose backward runs on another, too; and where some wait on peers."""
    plain = schedules.make("slimpipe", meshes=3, microbatches=2, slices=3)
    _, step = made("slimpipe", 3)
    for schedule in (plain, evict(plain)):
        given = partial(step, schedule=schedule)
        program = load(compare.lowered(given, (decoder.parameters(3), decoder.batch(2)), make_mesh(3)).program().module)
        found = peak_activations(program)
        assert found == activations(schedule)
        assert max(found) < 23 or schedule is plain


def test_a_model_that_lends_and_a_schedule_that_does_not() -> None:
    _, step = made("slimpipe", 2)
    schedule = schedules.make("seq1f1b", meshes=2, microbatches=2, slices=2)
    found = refused(partial(step, schedule=schedule))
    assert found == (
        "slice 0 has 8 stage marks in its forward, the schedule seq1f1b has 2 stages\n"
        "  slice_attention(..., exchange=True) ends 3 stages of each layer, which is for slimpipe: take that schedule, "
        "or leave out exchange for seq1f1b"
    )


def test_a_schedule_that_lends_and_a_model_that_does_not() -> None:
    schedule, _ = made("slimpipe", 2)
    step = partial(compare.sgd_step, loss=partial(decoder.loss, slices=schedule.slices), schedule=schedule)
    assert refused(step) == (
        f"slice 0 has 2 stage marks in its forward, the schedule slimpipe has {schedule.stages} stages\n"
        "  slimpipe is for layers with slice_attention(..., exchange=True), which ends 3 stages of each: call that in "
        "every layer, or take seq1f1b"
    )


def test_lending_layers_of_a_mesh_that_has_fewer() -> None:
    _, step = made("slimpipe", 2)
    found = refused(partial(step, schedule=schedules.make("slimpipe", meshes=1, microbatches=2, slices=2)))
    assert found.endswith("and say to slimpipe how many layers a mesh has: layers=..."), found


def refused(step: Callable[..., Any]) -> str:
    """What is said of a step of two layers, without the place."""
    with pytest.raises(jaxpp.PassError) as caught:
        compare.lowered(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2)).program()
    return str(caught.value).split(": error: ")[1]


ROWS = jnp.zeros((2, 12, 2, 8))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((ROWS[0], ROWS, ROWS, 0), "query is [batch, positions, heads, width], found [12, 2, 8]"),
        ((ROWS.astype(int), ROWS, ROWS, 0), "query is floating-point, found int32"),
        (([], ROWS, ROWS, 0), "query is floating-point, found list"),
        ((ROWS, ROWS, ROWS, 0.5), "start is an integer, found float32[]"),
        ((ROWS, ROWS, ROWS, "a"), "start is an integer, found 'a'"),
        ((ROWS, ROWS, ROWS, None), "start is an integer, found None"),
        ((ROWS, ROWS, ROWS, 0, 1), "exchange is true or false, found 1"),
        (
            (ROWS[:, :0], ROWS, ROWS, 0),
            "expected at least one position, key head and width, found query [2, 0, 2, 8], keys [2, 12, 2, 8]",
        ),
        (
            (ROWS, ROWS[:, :, :0], ROWS[:, :, :0], 0),
            "expected at least one position, key head and width, found query [2, 12, 2, 8], keys [2, 12, 0, 8]",
        ),
        (
            (ROWS[:, :5], ROWS, ROWS, 0, True),
            "the 5 positions of a slice don't divide the 12 of the keys: slices that lend are of equal lengths",
        ),
        (
            (ROWS, ROWS[:, :, :, :4], ROWS, 0),
            "expected keys of as many sequences and the width of the query, values of as many keys, heads a multiple "
            "of the key heads, found query [2, 12, 2, 8], keys [2, 12, 2, 4], values [2, 12, 2, 8]",
        ),
    ],
)
def test_what_can_not_attend(arguments: Any, expected: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        unchecked(*arguments[:4], **({"exchange": arguments[4]} if len(arguments) > 4 else {}))
    assert str(error.value).startswith(__file__)
    assert str(error.value).partition("slice_attention: ")[2] == expected


def test_one_slice_of_odd_length() -> None:
    """It has one block, and lends none of it."""
    rows = jax.random.normal(jax.random.key(0), (1, 5, 2, 4))
    found = unchecked(rows, rows, rows, 0, exchange=True)
    np.testing.assert_allclose(found, whole(rows, rows, rows), rtol=1e-5, atol=1e-6)

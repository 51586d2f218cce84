"""Schedules whose tasks are of slices of the sequence, on a decoder that hands keys and values from slice to slice."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end import compare, decoder
from unit.end_to_end.compare import batch as microbatches
from unit.end_to_end.compare import check, feed_state, make_mesh, plain_of, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call
from jaxpp.models import check_slices, scan_slices
from jaxpp.runtime import load, measured_costs, slice_shares
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import insert

SHARDED = (P(), P(None, "data"))
WHOLE = jax.jit(partial(decoder.train_step, slices=1))
unchecked: Any = scan_slices  # by types, as of users who have no checker


def made(name: str, meshes: int, microbatches: int = 2, slices: int = 3) -> schedules.Schedule:
    return schedules.make(name, meshes=meshes, microbatches=microbatches, slices=slices)


def step_of(schedule: schedules.Schedule, **options: Any) -> "partial[Any]":
    return partial(decoder.train_step, schedule=schedule, slices=schedule.slices, **options)


def lowered(schedule: schedules.Schedule, params: Any = None, data: int = 1, **options: Any) -> Any:
    arguments = params or decoder.parameters(schedule.stages), decoder.batch(schedule.microbatches)
    mesh, shardings = make_mesh(schedule.meshes, data=data), {"in_shardings": SHARDED} if data > 1 else {}
    return compare.lowered(step_of(schedule, **options), arguments, mesh, **shardings)


@pytest.mark.parametrize("name", decoder.SLICES)
def test_the_numbers_are_those_of_whole_sequences(name: str) -> None:
    """Loss and gradients, under plain `jax.jit` of one slice."""
    schedule = made(name, 2)
    arguments = decoder.parameters(schedule.stages), decoder.batch(2)
    check(step_of(schedule), arguments, make_mesh(2), steps=2, feed=feed_state, reference=WHOLE)


def complex_loss(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
    """The same loss; the slices hand on one complex cache, of keys and values."""

    def block(weights: Any, x: jax.Array, cache: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, (keys, values) = decoder.block(weights, x, (cache.real, cache.imag), start)
        return x, lax.complex(keys, values)

    empty = [jnp.zeros((len(text), decoder.LENGTH, decoder.WIDTH), jnp.complex64) for _ in params["blocks"]]
    one = partial(decoder.of_slice, params, block=block)
    return scan_slices(one, empty, (text[:, :-1], text[:, 1:]), slices)[1].mean()


@pytest.mark.parametrize("name", decoder.SLICES)
def test_slices_hand_on_complex_numbers(name: str) -> None:
    schedule = made(name, 2)
    arguments = decoder.parameters(schedule.stages), decoder.batch(2)
    check(step_of(schedule, loss=complex_loss), arguments, make_mesh(2), reference=WHOLE)
    assert_one_program_per_stage(schedule, lowered(schedule, loss=complex_loss))


def test_losses_are_equal_bit_for_bit() -> None:
    """And what else plain `jax.jit` makes of the same function is the same."""
    arguments = decoder.parameters(2), decoder.batch(2)
    schedule = made("seq1f1b", 2)
    _, found = check(step_of(schedule), arguments, make_mesh(2))
    _, expected = plain_of(step_of(schedule))(*arguments)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("name", "slices", "data"), [("seq1f1b", 4, 1), *((name, 3, 2) for name in decoder.SLICES)])
def test_the_slices_of_a_stage_are_one_program(name: str, slices: int, data: int) -> None:
    """Also where Shardy, which merges equal operations, saw them."""
    schedule = made(name, 2, slices=slices)
    assert_one_program_per_stage(schedule, lowered(schedule, data=data))


def assert_one_program_per_stage(schedule: schedules.Schedule, step: Any) -> None:
    program = load(step.program().module)
    calls = [call for line in program.sequences for call in line if isinstance(call, Call) and call.tasks]
    functions = {(call.kind, call.stage, call.function) for call in calls}
    last = schedule.stages - 1
    ending = ("forward", last, f"forward_{last}_end")  # the mean over the slices
    assert ending in functions
    expected = [(kind, stage) for kind in {task.kind for task in schedule} for stage in range(schedule.stages)]
    assert sorted(each[:2] for each in functions - {ending}) == sorted(expected)


@pytest.mark.parametrize("name", decoder.SLICES)
def test_peaks_are_those_of_the_schedule(name: str) -> None:
    p, m, n = 2 if name == "seq1f1b-i" else 4, 2, 3
    schedule = made(name, p, m, n)
    peaks = peak_activations(load(lowered(schedule).program().module))
    assert peaks == activations(schedule)
    if name == "seq1f1b":
        assert [peak / n for peak in peaks] == [min(m * n, p - i - 1 + n) / n for i in range(p)]


def attends(weights: Any, x: jax.Array, cache: Any, start: jax.Array, *, seen: Callable[..., Any]) -> Any:
    keys, values = decoder.block(weights, x, cache, start)[1]
    scores = x @ weights["query"] @ keys.mT
    mask = seen(jnp.arange(keys.shape[1]), start + jnp.arange(x.shape[1])[:, None])
    return x + jax.nn.softmax(jnp.where(mask, scores, -1e30)) @ values, (keys, values)


def test_slices_that_look_ahead() -> None:
    """They read zeros that later slices fill: it is another loss than of the whole sequence; `check_slices` says so."""
    params, text = jax.tree.map(jnp.asarray, (decoder.parameters(2), decoder.batch(1)[0]))
    masks: dict[str, Callable[..., Any]] = {
        "": lambda key, position: key <= position,
        "slice 0 looks ahead": lambda key, position: key >= 0,
        "slice 1 looks ahead": lambda key, position: (key <= position) | ((position > 4) & (key == 11)),
    }
    for says, seen in masks.items():
        one = partial(decoder.of_slice, block=partial(attends, seen=seen))
        losses = [decoder.loss(params, text, slices=slices, one=one) for slices in (1, 3)]
        assert bool(abs(losses[0] / losses[1] - 1) < 1e-5) == (not says)
        if not says:
            check_slices(decoder.loss, params, text, slices=3, one=one)
            continue
        text_of = (
            f": scan_slices: {says}: what it returns changes with rows that no slice has written yet; mask keys and"
        )
        with pytest.raises(ValueError, match=rf"decoder\.py:\d+{text_of}"):
            check_slices(decoder.loss, params, text, slices=3, one=one)
        with pytest.raises(ValueError, match=says):
            check_slices(in_cuts, params, text, one=one)


def in_cuts(params: Any, text: jax.Array, one: Any) -> jax.Array:
    caches, xs = decoder.empty(params, len(text)), (text[:, :-1], text[:, 1:])
    return scan_slices(partial(one, params), caches, xs, cuts=[4, 6, 2])[1].mean()


def test_what_slices_may_read_besides() -> None:
    """What a prefix has, a count, blocks of `slice_attention`, and what the first slice writes before it reads."""
    params, text = decoder.parameters(2), decoder.batch(1)[0]
    block = partial(decoder.attending, exchange=False)
    check_slices(decoder.loss, params, text, slices=4, one=partial(decoder.of_slice, block=block))

    def on_slice(carry: Any, tokens: jax.Array, start: jax.Array) -> Any:
        count, prefix = carry
        return (count + tokens.shape[1], prefix), prefix.sum() * tokens.sum() + count

    def loss(prefix: jax.Array) -> Any:
        return scan_slices(on_slice, (0, prefix), jnp.ones((1, 12)), slices=3)[1]

    check_slices(loss, jnp.arange(12.0) + 1)
    with pytest.raises(ValueError, match="slice 0 looks ahead"):
        check_slices(loss, jnp.zeros(12))


def one_mean(x: jax.Array, leak: int | None = None, says: Any = None) -> jax.Array:
    """The mean of an attention over 256 positions, of which one may attend to the key behind it."""

    def on_slice(keys: jax.Array, part: jax.Array, start: jax.Array) -> Any:
        keys = jax.lax.dynamic_update_slice(keys, part, (start, 0))
        position, key = start + jnp.arange(len(part))[:, None], jnp.arange(len(keys))
        mask = (key <= position) | ((position == leak) & (key == position + 1))
        found = jax.nn.softmax(jnp.where(mask, part @ keys.T, -jnp.inf)) @ keys
        return keys, ((found**2).mean(), says)

    return scan_slices(on_slice, jnp.zeros_like(x), x, slices=2, axis=0)[1][0].mean()


def test_one_key_that_is_not_masked_is_enough() -> None:
    x = jax.random.normal(jax.random.key(1), (256, 5))
    check_slices(one_mean, x)
    with pytest.raises(ValueError, match=r"slice 0 looks ahead: what it returns\[0\] changes"):
        check_slices(one_mean, x, leak=127)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("says", [-jnp.inf, jnp.zeros(0), jax.random.key(0), jnp.nan, True])
def test_slices_may_return_anything(says: Any) -> None:
    check_slices(one_mean, jnp.ones((12, 5)), says=jnp.asarray(says))


def shifted(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A causal convolution, whose state is longer than a slice."""
    both = jnp.concatenate([state, x], 1)
    return both[:, -4:], (both[:, 1:] * both[:, :-1]).sum()


UPDATES: dict[str, tuple[Callable[..., Any], Any]] = {
    "sum of the size of a sequence": (lambda c, x: (c + x.sum(), x.sum() * (1 + c.sum())), jnp.zeros(12)),
    "maximum": (lambda c, x: (jnp.maximum(c, abs(x).max()), x.sum() * c.sum()), jnp.zeros(12)),
    "counts": (lambda c, x: (c + (jnp.arange(12) == x.min()), (c * x.sum()).sum()), jnp.zeros(12)),
    "state": (shifted, jnp.zeros((2, 4))),
    "key": (lambda c, x: (jax.random.split(c)[0], x * jax.random.normal(c)), jax.random.key(0)),
}


@pytest.mark.parametrize("name", UPDATES)
def test_states_are_no_keys_that_wait_to_be_written(name: str) -> None:
    update, init = UPDATES[name]
    xs = jnp.arange(24.0).reshape(2, 12) // 4
    check_slices(lambda: scan_slices(lambda c, x, _: update(c, x), init, xs, slices=6))


@pytest.mark.parametrize("size", [12, 17, 8])
def test_a_look_ahead_in_keys_of_any_length(size: int) -> None:
    """Of the sequence, of a prefix and the sequence, of a window; what it changes may be handed on, or be no number."""

    def loss(xs: jax.Array, seen: Any, as_result: bool) -> Any:
        def one(carry: Any, x: jax.Array, start: jax.Array) -> Any:
            total, keys = carry
            at = (start + max(size - 12, 0)) % size
            keys = lax.dynamic_update_slice_in_dim(keys, x**2 + 1, at, 1)
            attended = jnp.where(jnp.arange(size) < at + seen, jnp.sqrt(keys), 0).sum()
            return (total + attended, keys), attended if as_result else None

        prefix = jnp.ones((1, max(size - 12, 0)))
        keys = jnp.concatenate([prefix, jnp.zeros((1, size - prefix.size))], 1)
        (total, _), each = scan_slices(one, (0.0, keys), xs, slices=3)
        return each.sum() if as_result else total

    xs = jnp.arange(12.0)[None]
    for as_result, what in ((True, "returns"), (False, r"hands on\[0\]")):
        for fn in (loss, jax.grad(loss), jax.jit(jax.grad(loss), static_argnums=2)):
            check_slices(fn, xs, 4, as_result)
            with pytest.raises(ValueError, match=f"slice 0 looks ahead: what it {what} changes"):
                check_slices(fn, xs, 5, as_result)
    many = jax.vmap(partial(loss, as_result=True), (0, None))
    check_slices(many, xs[None], 4)
    with pytest.raises(ValueError, match="slice 0 looks ahead"):
        check_slices(many, xs[None], 5)


def test_a_step_is_checked_too() -> None:
    params, batch = decoder.parameters(2), decoder.batch(2)
    step = partial(decoder.train_step, schedule="seq1f1b{slices=3}", loss=partial(decoder.loss, slices=3))
    check_slices(step, params, batch)


def test_a_function_without_slices_is_not_checked() -> None:
    with pytest.raises(
        ValueError, match=r"^check_slices: the function calls no jaxpp\.models\.scan_slices, so nothing was checked"
    ):
        check_slices(lambda x: lax.scan(lambda c, y: (c, y), 0, x), jnp.zeros(12))
    with pytest.raises(
        TypeError, match=r"^check_slices: expected a function that calls jaxpp\.models\.scan_slices, found 5$"
    ):
        check_slices(5)  # pyright: ignore[reportArgumentType]


def test_a_scan_of_the_users_that_sums_up_the_loss() -> None:
    step = step_of(made("seq1f1b", 2), loss=decoder.plain_scan)
    check(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2), reference=WHOLE)


def test_losses_that_are_no_sum_over_the_slices() -> None:
    """The gradient of each slice needs the losses of all: a mean over tokens that only some count for, a perplexity.

    Once with a block that reads only the keys and values of earlier slices.
    """

    def reading(weights: Any, x: jax.Array, cache: Any, start: jax.Array) -> Any:
        keys, values = cache
        return x + jnp.tanh(x @ keys.mT) @ values + x @ weights["up"], decoder.block(weights, x, cache, start)[1]

    def loss(params: Any, text: jax.Array, *, slices: int, block: Any) -> jax.Array:
        def of_slice(caches: Any, text: Any, start: jax.Array) -> Any:
            counted = jnp.sum(text[1] > 3)
            caches, loss = decoder.of_slice(params, caches, text, start, last=False, block=block)
            return caches, jaxpp.mark_stage_end((loss * counted, counted))

        xs = text[:, :-1], text[:, 1:]
        losses, counted = scan_slices(of_slice, decoder.empty(params, len(text)), xs, slices)[1]
        return jnp.exp(losses.sum() / counted.sum())

    for name, block in (("seq1f1b", reading), ("seq1f1b-zb", decoder.block)):
        step = step_of(made(name, 2), loss=partial(loss, block=block))
        check(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2))


def test_rows_of_a_stack_that_the_stages_read() -> None:
    """Each mesh has those of its stage, though what follows the slices is a task of no stage."""

    def loss(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
        blocks = [jax.tree.map(lambda each, row=row: each[row], params["blocks"]) for row in range(2)]
        return decoder.loss(params | {"blocks": blocks}, text, slices=slices)

    params = decoder.parameters(2)
    params["blocks"] = jax.tree.map(lambda *each: np.stack(each), *params["blocks"])
    step = step_of(made("seq1f1b", 2), loss=loss)
    check(step, (params, decoder.batch(2)), make_mesh(2))


def test_layers_that_are_scanned_in_each_stage_with_examples_on_several_devices() -> None:
    def of_slice(params: Any, caches: Any, text: Any, start: jax.Array) -> tuple[Any, jax.Array]:
        def layer(x: jax.Array, each: Any) -> tuple[jax.Array, Any]:
            return decoder.block(each[0], x, each[1], start)

        x, new = params["tokens"][text[0]], list[Any]()
        for stacked, cache in zip(params["stages"], caches, strict=True):
            x, cache = jax.lax.scan(jax.checkpoint(layer), x, (stacked, cache))
            new.append(cache)
            if len(new) < len(caches):
                x = jaxpp.mark_stage_end(x)
        return new, jaxpp.mark_stage_end(jnp.mean((x @ params["head"] - text[1][..., None]) ** 2))

    def loss(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
        zeros = jnp.zeros((2, len(text), decoder.LENGTH, decoder.WIDTH))
        xs = text[:, :-1], text[:, 1:]
        return scan_slices(partial(of_slice, params), [(zeros, zeros)] * 2, xs, slices)[1].mean()

    params = decoder.parameters(4)
    blocks = params.pop("blocks")
    params["stages"] = [jax.tree.map(lambda *each: np.stack(each), *blocks[n : n + 2]) for n in (0, 2)]
    schedule = made("seq1f1b-zb", 2)
    check(step_of(schedule, loss=loss), (params, decoder.batch(2)), make_mesh(2, data=2), in_shardings=SHARDED)
    assert_one_program_per_stage(schedule, lowered(schedule, params, data=2, loss=loss))


def test_slices_that_start_with_what_a_conditional_makes() -> None:
    """Of the weights and of what is made before the loop: outside of it, with what the branches use."""

    def loss(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
        zeros, _ = decoder.empty(params, len(text))[0]
        keys = jax.lax.cond(params["head"][0, 0] > 0, lambda: zeros + params["head"][0, 1], lambda: zeros - 1)
        xs = text[:, :-1], text[:, 1:]
        return scan_slices(partial(decoder.of_slice, params), [(keys, zeros)] * 2, xs, slices)[1].mean()

    step = step_of(made("seq1f1b", 2), loss=loss)
    check(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2))


def test_residuals_of_a_slice_that_never_come_back() -> None:
    text = str(schedules.offload(made("seq1f1b", 2, 1)))
    schedule = schedules.parse(re.sub(r"\b0reload0\.1", ".", text))
    assert message(step_of(schedule), (decoder.parameters(2), decoder.batch(1))) == (
        "the schedule seq1f1b has offload(stage 0, mb 0, slice 1) and no reload of it\n"
        "  the backward reads what has left: bring it back before"
    )


def test_slices_that_start_with_something_of_their_microbatch() -> None:
    """What it hands on is made of the first token, with a gradient, before the first slice."""

    def of_slice(params: Any, carry: Any, text: Any, start: jax.Array) -> tuple[Any, jax.Array]:
        caches, state = carry
        caches, loss = decoder.of_slice(params | {"tokens": params["tokens"] + state}, caches, text, start)
        return (caches, state / 2), loss

    def loss(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
        state = jnp.tanh(params["tokens"][text[:, 0]]).mean(0)
        keys = jnp.zeros((len(text), decoder.LENGTH, decoder.WIDTH)) + text[:, :1, None]
        xs = text[:, :-1], text[:, 1:]
        return scan_slices(partial(of_slice, params), ([(keys, keys)] * 2, state), xs, slices)[1].mean()

    step = step_of(made("seq1f1b-zb", 2), loss=loss)
    check(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2, data=2), in_shardings=SHARDED)


@pytest.mark.parametrize("name", decoder.SLICES)
def test_slices_that_hand_on_what_has_no_gradient(name: str) -> None:
    """The embeddings so far, a part of the batch itself, and the positions."""

    def of_slice(params: Any, carry: Any, x: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        seen = lax.dynamic_update_slice(carry[0], x, (0, start, 0))
        places = lax.dynamic_update_slice(carry[1], start + jnp.arange(x.shape[1], dtype=x.dtype), (start,))
        for w in params:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w + seen.mean(1, keepdims=True)) * (1 + 0.1 * places.sum()))
        return (seen, places), jnp.sum(x**2)

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        init = jnp.zeros_like(xs), jnp.zeros(xs.shape[1])
        return scan_slices(partial(of_slice, params), init, xs, 3)[1].mean()

    schedule = made(name, 2)
    xs = np.random.default_rng(0).normal(size=(2, 2, 6, 8)).astype(np.float32)
    check(partial(sgd_step, loss=loss, schedule=schedule), (weights(schedule.stages), xs), make_mesh(2))


def test_a_schedule_without_slices_runs_them_all_in_one_task() -> None:
    step = partial(decoder.train_step, schedule=jaxpp.ZeroBubble(2), slices=3)
    check(step, (decoder.parameters(2), decoder.batch(2)), make_mesh(2))


@pytest.mark.parametrize("change", [schedules.recompute, schedules.offload])
def test_slices_that_keep_less(change: Callable[[schedules.Schedule], schedules.Schedule]) -> None:
    schedule = change(made("seq1f1b", 2))
    assert any(task.kind == change.__name__ for task in schedule)
    check(step_of(schedule), (decoder.parameters(2), decoder.batch(2)), make_mesh(2))


def test_slices_that_wait_on_a_peer() -> None:
    schedule = evict(made("seq1f1b", 4))
    assert activations(schedule) == [5, 5, 4, 4]
    check(step_of(schedule), (decoder.parameters(4), decoder.batch(2)), make_mesh(4), reference=WHOLE)
    assert peak_activations(load(lowered(schedule).program().module)) == [5, 5, 4, 4]


def test_a_function_that_looks_at_what_a_slice_is_made_again_of() -> None:
    """That counts no more than for the recompute itself."""
    looks = schedules.Operation.parse("looks: forward")
    schedule = insert(schedules.recompute(made("seq1f1b", 2)), looks, after="forward")
    options = jaxpp.StepOptions(operations={"looks": lambda residuals: None})
    pipelined = jaxpp.mpmd_jit_with_loop(step_of(schedule), mpmd_mesh=make_mesh(2), options=options)
    program = load(pipelined.lower(decoder.parameters(2), decoder.batch(2)).program().module)
    assert peak_activations(program) == activations(schedule) == [1, 1]


def test_slices_inside_of_a_checkpoint() -> None:
    """Each stage makes its part of a slice again in its backward, and all slices of a stage are one program."""
    loss = partial(decoder.loss, one=jax.checkpoint(decoder.of_slice))
    schedule = made("seq1f1b-zb", 2)
    check(step_of(schedule, loss=loss), (decoder.parameters(2), decoder.batch(2)), make_mesh(2), reference=WHOLE)
    again = lowered(schedule, loss=loss)
    assert_one_program_per_stage(schedule, again)
    assert all(np.less(again.program().peak_bytes, lowered(schedule).program().peak_bytes))


def test_checkpoints_that_are_around_too_much() -> None:
    """One right inside of another, around the function of a slice; one around all slices."""
    schedule = made("seq1f1b", 2)

    def nested(*arguments: Any) -> Any:
        return jax.checkpoint(decoder.of_slice)(*arguments)

    inside = partial(decoder.loss, one=jax.checkpoint(nested))
    assert message(step_of(schedule, loss=inside)).endswith(
        "must be made and used by one stage; a jax.checkpoint around the function of a slice may not stand inside of "
        "another"
    )

    def around(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
        return jax.checkpoint(partial(decoder.loss, slices=slices))(params, text)

    assert message(step_of(schedule, loss=around)).startswith("a stage mark stands behind the backward: in a second")


def test_gradients_alone_and_losses_alone() -> None:
    """JAX drops the last mark of the forward of the one, and there is no backward of the other."""
    forwards = "\n".join(f"mesh {s}: " + " ".join(f"{s}F{m}.{n}" for m in range(2) for n in range(3)) for s in (0, 1))
    schedule = schedules.parse(f"schedule: forwards\nplacement: 0 1\n{forwards}\n")

    def gradients(params: Any, texts: Any, *, schedule: Any) -> Any:
        return jaxpp.treduce(partial(jax.grad(partial(decoder.loss, slices=3)), params), texts, schedule=schedule)

    def losses(params: Any, texts: Any, *, schedule: Any) -> Any:
        one = partial(decoder.loss, params, slices=3)
        return jaxpp.treduce(one, texts, schedule=schedule, operation=jaxpp.Concat())

    arguments = decoder.parameters(2), decoder.batch(2)
    check(partial(gradients, schedule=made("seq1f1b", 2)), arguments, make_mesh(2))
    check(partial(losses, schedule=schedule), arguments, make_mesh(2), exact=True)


def test_slices_are_named_in_traces_and_costs() -> None:
    """What a task costs is what its slices take together."""
    schedule = made("seq1f1b", 2)
    compiled = lowered(schedule).compile()
    _, events = compiled.trace(decoder.parameters(2), decoder.batch(2))
    backwards = [event for event in events if event.mesh == 1 and event.kind == "backward"]
    tasks = [task for task in schedule.orders[1] if task.kind == "backward"]
    assert [str(event) for event in backwards] == [
        f"backward 1, {task.microbatch}" + (f", {task.slice}" if task.slice else "") for task in tasks
    ]
    costs = measured_costs(compiled.executable.program, [replace(event, seconds=1.0) for event in events], unit="s")
    assert costs.forward == (schedule.slices,) * 2
    calls = Counter(event.label for event in events)  # the last slice has the mean of the losses as another call
    assert set(calls.values()) >= {1, 2}
    longer = [replace(event, seconds=(1.0 + event.slice) / calls[event.label]) for event in events]
    assert slice_shares(longer) == (1 / 6, 2 / 6, 3 / 6)


def cut_loss(params: Any, text: jax.Array, *, slices: int, cuts: Any = (8, 4)) -> jax.Array:
    """The mean cross-entropy of the next tokens, of slices of these lengths."""

    def one(caches: Any, tokens: Any, start: jax.Array) -> Any:
        block = partial(decoder.attending, exchange=False)
        caches, loss = decoder.of_slice(params, caches, tokens, start, block=block)
        return caches, loss * tokens[0].shape[1]

    xs = text[:, :-1], text[:, 1:]
    _, losses = scan_slices(one, decoder.empty(params, len(text)), xs, cuts=cuts)
    return losses.sum() / decoder.LENGTH


def test_slices_of_several_lengths() -> None:
    """Equal to plain `jax.jit` of whole sequences; no slice keeps keys and values of others."""
    schedule = schedules.make("seq1f1b", meshes=2, microbatches=2, slices=2)
    step, arguments = step_of(schedule, loss=cut_loss), (decoder.parameters(2), decoder.batch(2))
    whole = jax.jit(partial(step, schedule=None, loss=partial(cut_loss, cuts=[decoder.LENGTH])))
    check(step, arguments, make_mesh(2), steps=2, feed=feed_state, reference=whole)
    text = compare.lowered(step, arguments, make_mesh(2)).program().as_text()
    for function in re.findall(r"func.func private @forward_0\w*\((.*)", text):
        assert "tensor<2x12x" not in function
    with pytest.raises(jaxpp.PassError, match="slices, scan_slices has cuts of 2") as error:
        compare.lowered(step_of(made("seq1f1b", 2), loss=cut_loss), arguments, make_mesh(2)).program()
    assert "give the lengths of 3 slices, or take a schedule of 2" in str(error.value)


def message(step: Callable[..., Any], arguments: Any = None, **options: Any) -> str:
    arguments = arguments or (decoder.parameters(2), decoder.batch(2))
    with pytest.raises((jaxpp.PassError, TypeError, ValueError)) as error:
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2), **options).lower(*arguments).program()
    return str(error.value).partition(": error: ")[2] or str(error.value).partition(": ")[2]


def test_models_that_do_not_fit_the_slices_of_their_schedule() -> None:
    schedule = made("seq1f1b", 2)
    step = step_of(schedule)
    assert message(partial(step, slices=2)) == (
        "the schedule seq1f1b has 3 slices, the loop over slices runs 2 times\n"
        "  cut the sequence into 3 slices, or take a schedule of as many as the loop has"
    )
    assert message(partial(sgd_step, schedule=schedule), (weights(2), microbatches(2))) == (
        "the schedule seq1f1b has 3 slices, this stage mark is in no loop over slices\n  scan over the slices of the "
        "sequence with the stage marks in the body: jaxpp.models.scan_slices; or take a schedule without slices"
    )
    unmarked = partial(decoder.loss, one=partial(decoder.of_slice, last=False))
    assert message(partial(step, loss=unmarked)) == (
        "slice 0 has 1 stage mark in its forward, the schedule seq1f1b has 2 stages\n  mark the end of every stage in "
        "each slice, the last one too, with the loss of the slice, and use that loss: jax.value_and_grad"
    )

    def some(params: Any, caches: Any, text: Any, start: jax.Array) -> Any:
        """Has a mark in the first slice alone."""
        one = partial(decoder.of_slice, params, caches, text)
        return jax.lax.cond(start == 0, one, partial(one, last=False), start)

    assert message(partial(step, loss=partial(decoder.loss, one=some))).startswith("a stage mark inside a conditional")


def test_slices_of_steps_with_delayed_gradients() -> None:
    """What follows the last slice of a microbatch has the name of its forward, in each step."""

    def step(state: Any, batch: Any, older: Any) -> Any:
        gradient = partial(jax.value_and_grad(partial(decoder.loss, slices=3)), older)
        losses, gradients = jaxpp.treduce(gradient, batch, schedule="seq1f1b{slices=3}")
        return (jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients),), losses

    loop = jaxpp.train_loop(step, 2, delay=1)
    check(loop, (loop.start((decoder.parameters(2),)), np.stack([decoder.batch(3)] * 2)), make_mesh(2))


def test_slices_of_stages_that_are_no_chain() -> None:
    text = "placement: 0 1 1\nafter: . . 0+1\nmesh 0: 0F0 0F0.1\nmesh 1: 1F0 1F0.1 2F0 2F0.1"
    schedule = schedules.parse(f"schedule: mine\n{text}\n")
    step = partial(decoder.train_step, schedule=schedule, slices=2)
    assert message(step, (decoder.parameters(3), decoder.batch(1))) == (
        "stage 1 reads what stage 0 makes, but the schedule does not say so\n"
        "  say that stage 1 comes after stage 0, or compute it in a stage that both come after"
    )


def test_a_memory_limit_chooses_nothing_for_slices() -> None:
    step = jaxpp.mpmd_jit_with_loop(step_of(made("seq1f1b", 2)), mpmd_mesh=make_mesh(2), memory_limit=4096)
    with pytest.raises(
        ProgramError, match=r"needs [0-9,]+ bytes on each device, its memory limit is 4,096\n  keep less"
    ):
        step.lower(decoder.parameters(2), decoder.batch(2)).program()


@pytest.mark.parametrize(
    ("scan", "expected"),
    [
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, 5),
            "scan_slices: 5 slices don't divide the 12 positions of xs: pad the sequence to a multiple of 5, or take "
            "other slices",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (jnp.concatenate([c, x], 1), x), xs[:, :4], xs, 3),
            "scan_slices: carry changes from float32[2,4] to float32[2,8]: keep keys and values in arrays of the whole "
            "sequence, write the rows of a slice with lax.dynamic_update_slice, and mask those behind it",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c + x.sum(), x), jnp.int32(0), xs, 3),
            "scan_slices: carry changes from int32[] to float32[]: start with float32, or hand on int32",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: ((c, x), x), 0.0, xs, 3),
            "scan_slices: what a slice takes is PyTreeDef(*), what it hands on is PyTreeDef((*, *)): hand on as many "
            "arrays as it takes, in the same structure",
        ),
        (lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, 0), "slices must be at least 1, found 0"),
        (
            lambda xs: unchecked(lambda c, x, i: (c, x), 0.0, xs, 2.0),
            "slices must be a whole number, found 2.0",
        ),
        (lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, True), "must be a whole number, found True"),
        (
            lambda xs: unchecked(lambda c, x, i: (c, x), 0.0, xs, 2, axis="1"),
            "scan_slices: axis must be a whole number, found '1'",
        ),
        (
            lambda xs: unchecked(lambda c, x, i: c + x.sum(), 0.0, xs, 2),
            "scan_slices: fn returns what it hands on, and what is stacked: a pair, found float32[]",
        ),
        (
            lambda xs: unchecked(lambda c, x, i: (c, x, x), 0.0, xs, 2),
            "scan_slices: fn returns what it hands on, and what is stacked: a pair, found tuple of 3",
        ),
        (lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, {}, 2), "scan_slices: xs holds no array"),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, 2, axis=2),
            "scan_slices: xs has shape (2, 12), so no sequence axis 2",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, {"a": xs, "b": xs[:, 1:]}, 2),
            "scan_slices: xs['b'] has 11 positions along axis 1, but xs['a'] has 12",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, 2, cuts=[8, 4]),
            "scan_slices: expected slices, how many, or cuts, their lengths; found both",
        ),
        (lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs), "or cuts, their lengths; found neither"),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, cuts=[8, 5, -1]),
            "scan_slices: expected cuts of at least 1 position, 12 together, found [8, 5, -1], 12 together",
        ),
        (
            lambda xs: unchecked(lambda c, x, i: (c, x), 0.0, xs, cuts=[8, 4.0]),
            "scan_slices: cuts are whole numbers, the lengths of the slices, found 4.0",
        ),
        (
            lambda xs: unchecked(lambda c, x, i: (c, x), 0.0, xs, cuts=4),
            "scan_slices: cuts are the lengths of the slices, a list, found 4",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, {"a": 1.0, "b": x}), 0.0, xs, cuts=[8, 4]),
            "scan_slices: what is stacked['b'] is float32[2,8] of slice 0 and float32[2,4] of slice 1",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, (1,) * x.shape[1]), 0.0, xs, cuts=[10, 2]),
            "of slice 0 and PyTreeDef((*, *)) of slice 1",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, xs, cuts=[8, 4]),
            "scan_slices: what is stacked is float32[2,8] of slice 0 and float32[2,4] of slice 1: return the same "
            "shapes for slices of any length, such as a sum",
        ),
        (
            lambda xs: scan_slices(lambda c, x, i: (c, x), 0.0, [xs, "text"], 2),
            "scan_slices: xs[1] is of type str, not an array",
        ),
    ],
)
def test_scans_that_are_none(scan: Callable[[Any], Any], expected: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        scan(jnp.zeros((2, 12)))
    assert expected in str(error.value)
    assert str(error.value).startswith(__file__)


def test_slices_of_any_axis() -> None:
    """Each with the position where it starts; what comes back is stacked."""
    xs = jnp.arange(24.0).reshape(2, 2, 6)
    total, (starts, parts) = unchecked(lambda c, x, i: (c + x.sum(), (i, x)), jnp.float32(0), xs, np.int64(3), axis=-1)
    assert total == xs.sum()
    bfloats = jnp.ones((2, 6), jnp.bfloat16)
    total, _ = scan_slices(lambda c, x, i: (c + x.sum(), None), 0.0, bfloats, 3)  # a number takes their type
    assert (total, total.dtype) == (12, jnp.bfloat16)
    assert starts.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(jnp.concatenate(list(parts), -1), xs)


@jax.tree_util.register_pytree_node_class
class Unequal:
    """A pytree without `==`."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def tree_flatten(self) -> tuple[Any, None]:
        return (self.loss,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> "Unequal":
        return cls(*leaves)


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint])
def test_marks_in_functions_that_jax_traces_once(transform: Callable[..., Any]) -> None:
    """Each slice has marks of its own, whatever JAX's caches hold of slices that are as long."""
    marked = transform(jaxpp.mark_stage_end)

    def scanned(xs: jax.Array, **options: Any) -> Any:
        return scan_slices(lambda c, x, i: (c, Unequal(marked(x).sum())), 0.0, xs, **options)[1].loss

    xs = jnp.ones((2, 12))
    for options, parts in (({"slices": 3}, [None]), ({"cuts": iter((6, 3, 3))}, [0, 1, 2])):
        traced = jax.make_jaxpr(partial(scanned, **options))(xs)
        assert re.findall(r"part=(\w+)", str(traced)) == [*map(str, parts)]
    assert scanned(xs, cuts=[6, 3, 3]).tolist() == [12, 6, 6]

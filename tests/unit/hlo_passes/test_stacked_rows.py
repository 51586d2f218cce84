"""What loops inside of one another stack for their backwards, beside the fewest bytes of all that they could."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

import jaxpp
from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.stages import stacked_rows
from jaxpp.hlo_passes.stages.cut import Division, Halves
from jaxpp.hlo_passes.stages.place_residuals import PlaceResiduals
from jaxpp.ir.functions import operands_with_captures
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import is_elementwise
from jaxpp.ir.tasks import StageTask, read_tasks
from jaxpp.ir.values import byte_size
from jaxpp.lowering import lower

Stage = Callable[[jax.Array, jax.Array], jax.Array]


def multiplied(y: jax.Array, rows: jax.Array, factor: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The inner loop: its backward wants the factor of each row."""
    return jax.lax.scan(lambda y, row: (y * jax.lax.stop_gradient(factor(row)), None), y, rows)[0]


def layers(times: int, layer: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, times, lambda _, x: layer(x), x)


def of_several_values(x: jax.Array, w: jax.Array) -> jax.Array:
    """Two rows of the inner loop are fewer bytes than the three of the outer one that make them, and x makes these."""

    def layer(x: jax.Array) -> jax.Array:
        a, b, c = x * w[0], x - w[0], jnp.maximum(x, w[0])
        return w[0] + x * multiplied(x, w, lambda row: (a * row + b) * c)

    return layers(3, layer, x)


def two_that_share(x: jax.Array, w: jax.Array) -> jax.Array:
    """Two rows of an inner loop are no more bytes than the two of the outer one, but four of two loops are."""

    def layer(x: jax.Array) -> jax.Array:
        a, b = jnp.sin(x), jnp.cos(x)
        y = multiplied(x, w, lambda row: a * row + b)
        return w[0] + multiplied(y, w, lambda row: a + b * row)

    return layers(3, layer, x)


def three_deep(x: jax.Array, w: jax.Array) -> jax.Array:
    """The innermost loop reads values of both that it is in."""

    def layer(x: jax.Array) -> jax.Array:
        a = x * w[0]

        def middle(y: jax.Array) -> jax.Array:
            return y * multiplied(y, w, lambda row: (a * row + y) * (y - w[1]))

        return w[0] * x * layers(3, middle, x)

    return layers(2, layer, x)


STAGES: list[Stage] = [of_several_values, two_that_share, three_deep]


def before(stage: Stage) -> str:
    """The module that `place-residuals` gets, with such a stage as the first of two."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jaxpp.mark_stage_end(jnp.mean(jaxpp.mark_stage_end(stage(x, weights)) ** 2))

    def step(weights: jax.Array, batch: jax.Array) -> Any:
        gradient = partial(jax.grad(loss), weights)
        return jaxpp.treduce(gradient, batch, schedule=jaxpp.schedules.Std1F1B(2), operation=jaxpp.Add)

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")
    module = lower(step, (jnp.ones((2, 4)), jnp.ones((2, 4))), mpmd_mesh=mesh).module
    passes = mpmd()
    run_passes(module, passes[: passes.index(PlaceResiduals())])
    return str(module)


def kept_bytes(text: str, context: ir.Context) -> int:
    """The bytes that the backward of stage 0 reads of its forward, once `place-residuals` ran."""
    module = ir.Module.parse(text, context)
    run_passes(module, [PlaceResiduals()])
    ops, tasks = read_tasks(MicrobatchLoop.of(module).body)
    task_of: dict[ir.Value, StageTask | None] = {
        result: task for op, task in zip(ops, tasks, strict=True) for result in op.results
    }
    read = {
        value
        for op, task in zip(ops, tasks, strict=True)
        if task == StageTask.backward(0)
        for value in operands_with_captures(op)
    }
    return sum(byte_size(value.type) for value in read if task_of.get(value) == StageTask.forward(0))


def choices(halves: Halves, wanted: Iterable[ir.Value]) -> list[int]:
    """The operations that may be done again for what is wanted."""
    found: list[int] = []
    work = list(wanted)
    for value in work:
        op = halves.body.producers.get(value)
        if op is not None and op not in found and halves.may_repeat(op) and not halves.is_free(value):
            found.append(op)
            work += halves.body.operands[op]
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_no_choice_of_what_is_made_again_keeps_fewer_bytes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    text = before(stage)
    context = make_context()
    found = kept_bytes(text, context)
    open_to_choice: set[int] = set()

    def choose(halves: Halves, late: Sequence[int], wanted: Iterable[ir.Value], *others: Any) -> Division:
        may_be = choices(halves, wanted)  # rows of the weights are always made again
        open_to_choice.update(op for op in may_be if is_elementwise(halves.body.ops[op]))
        return Division(set(), {op for op in may_be if op in chosen or op not in open_to_choice})

    monkeypatch.setattr(stacked_rows, "divide", choose)
    chosen: set[int] = set()
    most = least = kept_bytes(text, context)
    for subset in list(chain.from_iterable(combinations(open_to_choice, n) for n in range(1, len(open_to_choice) + 1))):
        chosen = set(subset)
        least = min(least, kept_bytes(text, context))
    assert found == least < most

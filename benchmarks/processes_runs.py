"""Training steps that processes.py compares: each `make_*(model)` returns one, to be run again and again."""

import itertools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from processes_models import LAYERS, Model, Tree

import jaxpp
from jaxpp import _compat
from jaxpp.runtime.processes.job import gather

Run = Callable[[], Any]
"""A step, waited for; returns its loss, None in a process that doesn't know it."""

HALF = LAYERS // 2


def make_single(model: Model) -> Run:
    """Makes plain jax.jit in process 0."""
    if jax.process_index():
        return lambda: None

    def loss(parameters: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        blocks, before, after = parameters
        return model.loss(after, model.blocks(blocks, model.first(before, x)), y)

    @partial(jax.jit, donate_argnums=0)
    def step(parameters: Tree, x: jax.Array, y: jax.Array) -> tuple[Tree, jax.Array]:
        def add(sums: Tree, microbatch: Tree) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(parameters, *microbatch)), None

        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, parameters)
        (total, gradients), _ = jax.lax.scan(add, zeros, (x, y))
        return model.update(parameters, gradients), total / model.microbatches

    return _runs(step, *jax.tree.map(jnp.array, (model.parameters(), *model.data())))


def _runs(step: Callable[..., Any], state: Any, x: Any, y: Any) -> Run:
    """Returns a run of one step after the other, from `state` on."""

    def run() -> float:
        nonlocal state
        state, total = step(state, x, y)
        jax.block_until_ready(state)
        return float(total)

    return run


def make_spmd(model: Model) -> Run:
    """Makes GPipe as JAX's users write it: one program over both processes, activations moved by ppermute."""
    mesh = Mesh(np.array(jax.devices()), ("stage",))
    ticks = model.microbatches + 1

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P("stage"))
    def pipe(stacked: Tree, xs: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("stage")
        blocks = [jax.tree.map(operator.itemgetter((0, k)), stacked) for k in range(HALF)]

        def tick(x: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jnp.where(stage == 0, xs[jnp.minimum(number, model.microbatches - 1)], x)
            y = model.blocks(blocks, x)
            return jax.lax.ppermute(y, "stage", [(0, 1)]), y

        start = jax.lax.pcast(jnp.zeros_like(xs[0]), ("stage",), to="varying")
        return jax.lax.scan(tick, start, jnp.arange(ticks))[1][None, 1:]

    def loss(parameters: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        stacked, before, after = parameters
        outputs = pipe(stacked, model.first(before, x))[1]
        return jnp.sum(jax.vmap(partial(model.loss, after))(outputs, y))

    @partial(jax.jit, donate_argnums=0)
    def step(parameters: Tree, x: jax.Array, y: jax.Array) -> tuple[Tree, jax.Array]:
        total, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return model.update(parameters, gradients), total / model.microbatches

    blocks, before, after = model.parameters()
    halves = jax.tree.map(lambda *leaves: np.stack(leaves).reshape(2, HALF, *leaves[0].shape), *blocks)
    everywhere = partial(globally, sharding=NamedSharding(mesh, P()))
    stacked = jax.tree.map(partial(globally, sharding=NamedSharding(mesh, P("stage"))), halves)
    before, after, x, y = jax.tree.map(everywhere, (before, after, *model.data()))
    return _runs(step, (stacked, before, after), x, y)


def make_jaxpp(model: Model) -> Run:
    """Makes the function of `make_single` with two marks, in 1F1B."""
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")

    def loss(parameters: Tree, microbatch: Tree) -> jax.Array:
        (blocks, before, after), (x, y) = parameters, microbatch
        x = jaxpp.mark_stage_end(model.blocks(blocks[:HALF], model.first(before, x)))
        return jaxpp.mark_stage_end(model.loss(after, model.blocks(blocks[HALF:], x), y))

    @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=mesh, donate_argnums=0)
    def step(parameters: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        gradient = partial(jax.value_and_grad(loss), parameters)
        operation = (jaxpp.Add, jaxpp.Add)
        total, gradients = jaxpp.treduce(gradient, batch, schedule=jaxpp.schedules.Std1F1B(2), operation=operation)
        return model.update(parameters, gradients), total / model.microbatches

    arguments = model.parameters(), model.data()
    compiled = step.compile(*arguments)
    shardings = jax.tree.map(operator.attrgetter("sharding"), compiled.in_shardings[0])
    state, batch = jax.tree.map(globally, arguments, shardings)

    def run() -> float | None:
        nonlocal state
        state, total = compiled(state, batch)
        jax.block_until_ready(state)
        return float(total) if total.addressable_shards else None

    return run


def make_by_hand(model: Model) -> Run:
    """Makes 1F1B for this model alone, as a careful user writes it with transfers and jitted stage functions."""
    me, count = jax.process_index(), model.microbatches
    device = jax.local_devices()[0]
    server = _compat.start_transfer_server(device, "127.0.0.1")
    connection = server.connect(gather(server.address())[1 - me])
    blocks, before, after = model.parameters()
    state = jax.device_put((blocks[HALF * me : HALF * me + HALF], after if me else before), device)
    inputs = [jax.device_put(each, device) for each in model.data()[me]]
    zeros = jax.jit(partial(jax.tree.map, jnp.zeros_like))
    update = jax.jit(model.update, donate_argnums=0)
    offers, pulls = itertools.count(), itertools.count()

    @jax.jit
    def forward(parameters: Tree, x: jax.Array) -> Any:
        def outputs(p: Tree) -> jax.Array:
            return model.blocks(p[0], model.first(p[1], x))

        return jax.vjp(outputs, parameters)

    @partial(jax.jit, donate_argnums=2)
    def backward(back: Any, g: jax.Array, sums: Tree) -> Tree:
        return jax.tree.map(jnp.add, sums, back(g)[0])

    @partial(jax.jit, donate_argnums=3)
    def both(parameters: Tree, x: jax.Array, y: jax.Array, sums: Tree) -> tuple[jax.Array, Tree]:
        def loss(p: Tree, x: jax.Array) -> jax.Array:
            return model.loss(p[1], model.blocks(p[0], x), y)

        total, (gradients, g) = jax.value_and_grad(loss, argnums=(0, 1))(parameters, x)
        return g, jax.tree.map(jnp.add, sums, (total, gradients))

    shape = jax.eval_shape(model.first, before, inputs[0]).shape
    wanted = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=SingleDeviceSharding(device))]

    def offer(array: jax.Array) -> None:
        _compat.offer(server, next(offers), [array])

    def pull() -> jax.Array:
        return _compat.pull(connection, next(pulls), device, wanted)[0]

    def first() -> Any:
        sums, backs = zeros(state), {}
        for m in range(count + 1):
            if m < count:
                y, backs[m] = forward(state, inputs[m])
                offer(y)
            if m:
                sums = backward(backs.pop(m - 1), pull(), sums)
        return None, sums

    def last() -> Any:
        sums = jnp.float32(0), zeros(state)
        for m in range(count):
            g, sums = both(state, pull(), inputs[m], sums)
            offer(g)
        return sums

    def run() -> float | None:
        nonlocal state
        total, sums = last() if me else first()
        state = jax.block_until_ready(update(state, sums))
        return float(total) / count if me else None

    return run


def globally(array: np.ndarray, sharding: Any) -> jax.Array:
    """Returns a global array of which this process makes its own shards."""
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__, dtype=array.dtype)


RUNS = {"single": make_single, "spmd": make_spmd, "by hand": make_by_hand, "jaxpp": make_jaxpp}

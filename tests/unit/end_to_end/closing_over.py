"""Arrays that a step closes over. JAX makes them constants of its module, or arguments that it adds."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from unit.end_to_end.compare import WIDTH, assert_same, batch, check, make_mesh, weights

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
TABLE = np.linspace(0, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)


def make_loss() -> Any:
    """A loss of arrays of many types: in jitted, checkpointed and scanned functions too."""
    whole, keys = jnp.asarray(TABLE), jax.random.split(jax.random.key(3), 4)
    narrow = TABLE.astype(ml_dtypes.bfloat16)
    mask, count = TABLE > 0.5, np.arange(WIDTH, dtype=np.int32)

    @jax.jit
    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w + TABLE[:1] * count)

    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(layer(params[0], microbatch["x"]) @ whole)
        x = jnp.where(mask[:1], x * jax.random.uniform(keys[1], x.shape), x) + jnp.asarray(narrow[:1])
        x = jax.checkpoint(layer)(params[1], x)
        x, _ = jax.lax.scan(lambda x, row: (x + row, None), x, TABLE)
        return mark(jnp.mean((x - microbatch["y"]) ** 2))

    return loss


def make_step(schedule: str) -> Any:
    """A step of arrays on other devices, too."""
    loss, keys, spectrum = make_loss(), jax.random.split(jax.random.key(4), 2), TABLE.astype(np.complex64)
    table = jax.device_put(TABLE, jax.devices()[-1])

    def step(params: Any, batch: Any) -> Any:
        value, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
        added = TABLE + table.T + jnp.real(spectrum * 1j * spectrum)
        return [w - 0.1 * g + added for w, g in zip(params, gradients, strict=True)], (value, jax.random.bits(keys[1]))

    return step


def check_steps() -> None:
    """Compare a step, a loop of them, and a function without a loop with plain `jax.jit`."""
    for schedule in ("1f1b", "zb-h1"):
        check(make_step(schedule), (weights(2), batch(4)), make_mesh(2))
    batches = jax.tree.map(lambda leaf: np.stack([leaf, leaf[::-1]]), batch(4))
    check(jaxpp.train_loop(make_step("1f1b"), 2), (weights(2), batches), make_mesh(2))
    arguments = weights(2), jax.tree.map(lambda leaf: leaf[0], batch(1))
    function = jax.value_and_grad(make_loss())
    assert_same(jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(2))(*arguments), jax.jit(function)(*arguments))


def check_arguments() -> None:
    """The arguments are those of the user, of which the first ones are given away."""
    step = jaxpp.mpmd_jit_with_loop(make_step("1f1b"), mpmd_mesh=make_mesh(2), donate_argnums=0)
    lowered = step.lower(weights(2), batch(4))
    assert lowered.as_text().count("tf.aliasing_output") + lowered.as_text().count("jax.buffer_donor") == 2
    assert repr(lowered).startswith("<LoweredStep of step: 4 arrays in, 4 out")


if __name__ == "__main__":
    assert "%arg1" in jax.jit(lambda x: x + TABLE).lower(1.0).as_text(), "JAX adds an argument"
    check_steps()
    check_arguments()

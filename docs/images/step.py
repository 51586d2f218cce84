"""Makes docs/images/see-the-step.png: the page of a small training step on four virtual CPU devices (`make images`)."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from unit.browser import browser

import jaxpp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
WIDTH, HEIGHT = 1200, 720


def loss(weights: list[jax.Array], x: jax.Array) -> Any:
    for w in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ w))
    return jnp.mean(x**2)


def train_step(weights: list[jax.Array], batch: jax.Array) -> Any:
    gradient = partial(jax.value_and_grad(loss), weights)
    value, gradients = jaxpp.treduce(gradient, batch, schedule=jaxpp.schedules.ZeroBubble(4), operation=jaxpp.Add)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def main() -> None:
    """Traces a step and takes a picture of its page."""
    mesh = jaxpp.MpmdMesh.make(mpmd=4)
    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=mesh, cuts=[3, 2, 2, 1], memory_limit="64MiB")
    weights = [jax.random.normal(key, (768, 768)) / 768**0.5 for key in jax.random.split(jax.random.key(0), 8)]
    batch = jax.random.normal(jax.random.key(1), (8, 512, 768))
    compiled = step.lower(weights, batch).compile()
    _, events = min((compiled.trace(weights, batch) for _ in range(5)), key=lambda each: max(e.end for e in each[1]))
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        page = Path(folder, "step.html")
        compiled.report(page, events)
        tab.open(page, WIDTH, HEIGHT)
        Path(__file__).with_name("see-the-step.png").write_bytes(tab.picture())


if __name__ == "__main__":
    main()

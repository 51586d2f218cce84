"""Runs steps on one device of the CPU, task by task, and prints three accounts of their largest memory as JSON.

Of each way to keep residuals: the plan's bytes, those of the arrays that the runtime holds (with the temporaries of the
running task), and the resident memory of this process over what it was before. It has to allocate large arrays with
`mmap`, so that what is freed is gone (`MALLOC_MMAP_THRESHOLD_`).
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp
from jaxpp import schedules
from jaxpp.ir.program import Call

WAYS: Mapping[str, Callable[[schedules.Schedule], schedules.Schedule]] = {
    "keep": lambda plan: plan,
    "recompute": schedules.recompute,
    "offload": schedules.offload,
}
SETTLED = 0.01
"""Seconds after a task in which XLA's threads free its temporaries."""


def resident(key: str) -> int:
    """Bytes, by /proc: "VmRSS" now, "VmHWM" at most since `forget`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def forget() -> None:
    """Let the most resident memory be what it is now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def loss(weights: Any, x: Any) -> jax.Array:
    """Two stages that keep arrays as large as their inputs."""
    for weight in weights:
        x = jaxpp.mark_stage_end(jnp.sin(jnp.tanh(x * weight)) * x)
    return jnp.mean(x**2)


def measure(way: str) -> dict[str, int]:
    """The three accounts of one way, less the arguments."""
    plan = schedules.make("looped-bfs", meshes=1, microbatches=4)
    plan = WAYS[way](plan)

    def step(weights: Any, batch: Any) -> Any:
        one = partial(jax.value_and_grad(loss), weights)
        return jaxpp.treduce(one, batch, schedule=plan, operation=(jaxpp.Concat(), jaxpp.Add))

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("mpmd",)), "mpmd")
    arguments = [jnp.ones(1024)] * 2, jnp.ones((4, 2048, 1024))
    compiled = jaxpp.mpmd_jit_with_loop(step, mesh).lower(*arguments).compile()
    executable: Any = compiled.executable
    given = jax.tree.leaves(arguments)
    ours = {id(each) for each in given}
    accounted = 0

    def observe(label: Any, made: Sequence[Any], registers: Sequence[Any]) -> None:
        nonlocal accounted
        jax.block_until_ready(made)
        time.sleep(SETTLED)
        alive = [each for each in registers if each is not None and not each.is_deleted()]
        held = {id(each): each.nbytes for each in alive if id(each) not in ours}
        called = [
            each.function for _, each in label if isinstance(each, Call) and (each.function, 0) in executable.stats
        ]
        temporaries = max([executable.stats[name, 0].temp_size_in_bytes for name in called], default=0)
        accounted = max(accounted, sum(held.values()) + temporaries)

    executable.run(given, observe)  # what is made once
    time.sleep(SETTLED)
    forget()
    before, accounted = resident("VmRSS"), 0
    executable.run(given, observe)
    most = resident("VmHWM") - before
    (stats,) = compiled.memory_analysis()
    assert stats is not None
    return {"plan": stats.peak_memory_in_bytes - stats.argument_size_in_bytes, "runtime": accounted, "resident": most}


if __name__ == "__main__":
    print(json.dumps({way: measure(way) for way in WAYS}))

"""What the real compilers make of weights that are gathered ahead: beside the task that gathers them for later ones."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp._absent import compile_only
from jaxpp.planning.backend import PlannedProgram
from jaxpp.runtime import load

sys.path.append(str(Path(__file__).parent))
from overlap import Overlap, overlap

WIDTH, HIDDEN, ROWS = 2048, 8192, 4096


def loss(params: Any, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.bfloat16)
    for up, down in params:
        hidden = jax.nn.gelu(x @ up.astype(x.dtype))
        x = jaxpp.mark_stage_end(x + hidden @ down.astype(x.dtype))
    return jnp.mean(x.astype(jnp.float32) ** 2)


def shapes(batch: int) -> Any:
    """The arguments of the step: four stages of two weights, and microbatches of so many rows."""
    weights = tuple(jax.ShapeDtypeStruct(each, np.float32) for each in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    return [weights] * 4, jax.ShapeDtypeStruct((4, batch, WIDTH), np.float32)


def train_step(params: Any, batch: jax.Array) -> Any:
    schedule = jaxpp.schedules.InterleavedGPipe(num_stages=4, mpmd_dim=2)
    return jaxpp.treduce(partial(jax.grad(loss), params), batch, schedule=schedule, operation=jaxpp.Add)


@pytest.mark.parametrize(("name", "options"), [("h200", {"nodes": 2, "gpus": 2}), ("v5e:2x2", {})], ids=["h200", "v5e"])
def test_a_task_runs_beside_the_gather_for_the_next_run(name: str, options: dict[str, Any]) -> None:
    """Two weights of a stage, while the forward of another one runs; alone, nothing is beside them."""
    try:
        target = jaxpp.target(name, **options)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    mesh = target.mesh((2, 2), ("mpmd", "data"))
    shardings = P("data"), P(None, "data")
    ahead = jaxpp.StepOptions(gather_weights="ahead")
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, in_shardings=shardings, options=ahead)
    program = load(step.lower(*shapes(ROWS)).program().module)
    devices = list(mesh.jax_mesh.devices[0].flat)

    def of_function(function: Any) -> Overlap:
        executable = compile_only(function.bytecode, devices, {})
        return overlap("\n".join(module.to_string() for module in executable.hlo_modules()))

    functions = program.functions.values()
    beside = of_function(next(each for each in functions if each.gathered and each.kind == "forward"))
    alone = of_function(next(each for each in functions if each.kind == "gather"))
    print(
        f"{name}: {beside.hidden} of {beside.collectives} beside a forward, {alone.hidden} of {alone.collectives} alone"
    )
    assert beside.hidden == beside.collectives > 0 == alone.hidden


@pytest.mark.parametrize("scatter", ["step", "chunk"])
def test_weights_gathered_for_each_chunk(scatter: Any, absent: list[PlannedProgram]) -> None:
    """A chunk's weights are gathered once and its gradients scattered once, or all gradients at the end of the step."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:16]).reshape(2, 8), ("mpmd", "data")), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(
        train_step,
        mesh,
        in_shardings=(P("data"), P(None, "data")),
        out_shardings=P("data"),
        options=jaxpp.StepOptions(gather_weights="chunk", scatter_gradients=scatter),
    )
    step.lower(*shapes(ROWS)).compile()
    kinds = {each.kind for planned in absent for each in planned.plan.programs}
    assert kinds == {"before", "gather", "forward", "backward", "scatter" if scatter == "chunk" else "after"}

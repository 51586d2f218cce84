"""What slices of the sequence gain: a training step of a GPT under 1F1B and Seq1F1B, for longer and longer sequences.

    python benchmarks/slices.py [--sequences 1024 4096 16384] [--slices 1 4] [--repeat 3]
    JAX_PLATFORMS=cpu python benchmarks/slices.py --target v5e:2x2 --layers 8 --width 1024 --heads 8 --dtype bfloat16

A row for each length and number of slices (1: 1F1B on whole sequences): the peak of the verified program on the mesh
that needs most, that with the temporaries of the compiled tasks, the processor time of a step (the least of
`--repeat`; 0 runs none), and how long the step takes on devices of its own, simulated from the times of its tasks.
`--target` compiles for devices that are not here, and plans. The losses of one length are compared.
"""

import argparse
import importlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import numpy as np

import jaxpp
from jaxpp import schedules

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")

RATE = 0.01


def lower(model: Any, plan: schedules.Schedule, mesh: Any, parameters: Any, text: Any) -> Any:
    """The training step of `model`, lowered."""

    def train_step(parameters: Any, text: Any) -> Any:
        one = partial(jax.value_and_grad(partial(gpt_model.loss, model)), parameters)
        losses, gradients = jaxpp.treduce(one, text, schedule=plan, operation=(jaxpp.Concat(), jaxpp.Add))
        return jax.tree.map(partial(_updated, RATE / len(text)), parameters, gradients), losses.mean()

    return jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0).lower(parameters, text)


def _updated(rate: float, weight: Any, gradient: Any) -> Any:
    return weight - rate * gradient


def measure(compiled: Any, plan: schedules.Schedule, init: Any, text: Any, repeat: int) -> tuple[float, float, float]:
    """(processor seconds of a step, its seconds on devices of its own, its first loss)."""
    parameters, first = compiled(init(), text)
    least = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        parameters, loss = compiled(parameters, text)
        jax.block_until_ready((parameters, loss))
        least = min(least, time.process_time() - start)
    _, events = compiled.trace(parameters, text)
    return least, schedules.simulate(plan, compiled.costs(events)).makespan / 1e3, float(jaxpp.fetch(first))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in ("stages", 4), ("layers", 4), ("width", 64), ("heads", 1), ("microbatches", 4), ("repeat", 3):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", help="devices that are not here, such as v5e:2x2")
    options = parser.parse_args()
    if options.target:
        mesh = jaxpp.target(options.target).mesh((options.stages,), ("mpmd",))
    else:
        mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[: options.stages]), ("mpmd",)), "mpmd")
    last = ["step s, planned"] if options.target else ["processor s", "step s, simulated"]
    head = ["sequence", "slices", "peak MiB", "with temporaries", *last]
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}")
    for sequence in options.sequences:
        losses: list[float] = []
        for slices in options.slices:
            row, loss = measured(options, mesh, sequence, slices)
            print(row, flush=True)
            losses += [loss] if loss is not None else []
        np.testing.assert_allclose(losses, losses[:1] * len(losses), rtol=1e-5)


def measured(options: Any, mesh: Any, sequence: int, slices: int) -> tuple[str, float | None]:
    """A row of the table, and the first loss where the step runs."""
    name = f"seq1f1b{{slices={slices}}}" if slices > 1 else "1f1b"
    plan = schedules.resolve(name, meshes=options.stages, microbatches=options.microbatches)
    sizes = options.stages, options.layers, options.width, options.heads, sequence
    model = gpt_model.Config(*sizes, options.dtype, slices=slices)
    text = np.random.default_rng(0).integers(0, 256, (options.microbatches, 1, sequence + 1)).astype(np.int32)
    init = partial(gpt_model.init, model, 0)
    lowered = lower(model, plan, mesh, jax.eval_shape(init), text)
    compiled, mebi = lowered.compile(), 2**20
    row = f"| {sequence} | {slices} | {max(lowered.program().peak_bytes) / mebi:.1f} "
    if options.target:
        found = compiled.plan
        return f"{row}| {max(each.peak_bytes for each in found.meshes) / mebi:.1f} | {found.step_seconds:.4f} |", None
    peak = max(each.peak_memory_in_bytes for each in compiled.memory_analysis() if each)
    if not options.repeat:
        return f"{row}| {peak / mebi:.1f} | | |", None
    processor, simulated, loss = measure(compiled, plan, init, text, options.repeat)
    return f"{row}| {peak / mebi:.1f} | {processor:.2f} | {simulated:.3f} |", loss


if __name__ == "__main__":
    main()

"""How long the pass chain takes: a GPT step, and synthetic pipelines of growing size.

    python examples/gpt.py --layers 12 --steps 1 --dump gpt.mlir
    python benchmarks/passes.py [--module gpt.mlir] [--sizes 8x64,16x128,32x256,64x512] [--repeat 3]
    python benchmarks/passes.py --gpt 96x48x64 --sizes "" --repeat 1    # GPT-3: layers x stages x microbatches

Prints one table: a row per pass, a column per module, milliseconds of the processor (the minimum over the repetitions:
a pass is deterministic, what varies is the machine), and microseconds per task for the synthetic modules, which should
not grow.
"""

import argparse
import os
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "64")

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

import jaxpp
from jaxpp._compat import make_context, own_copy
from jaxpp.hlo_passes import Observer, Pass, run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.lowering import lower


class Clock(Observer):
    """An observer that keeps the least time of each pass, in seconds of the processor."""

    reads_program = False

    def __init__(self) -> None:
        self.best: dict[str, float] = {}
        self._start = 0.0

    def before(self, step: Pass, module: ir.Module) -> None:
        """Start the clock."""
        self._start = time.process_time()

    def after(self, step: Pass, module: ir.Module) -> None:
        """Keep the least time."""
        elapsed = time.process_time() - self._start
        self.best[step.name] = min(elapsed, self.best.get(step.name, elapsed))


def synthetic(stages: int, microbatches: int) -> ir.Module:
    """An MLP of one layer per stage, one device per stage, lowered for 1F1B."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")

    def loss(weights: list[Any], batch: tuple[Any, Any]) -> Any:
        x, y = batch
        for weight in weights:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ weight)) if weight is not weights[-1] else jnp.tanh(x @ weight)
        return jaxpp.mark_stage_end(jnp.mean((x - y) ** 2))

    def step(weights: list[Any], batch: tuple[Any, Any]) -> Any:
        gradient = partial(jax.value_and_grad(loss), weights)
        operation = (jaxpp.Concat(), jaxpp.Add)
        losses, grads = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(stages), operation=operation)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], losses

    weights = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * stages
    data = jax.ShapeDtypeStruct((microbatches, 8, 32), jnp.float32)
    return lower(step, (weights, (data, data)), mpmd_mesh=mesh, donate_argnums=0).module


def gpt(layers: int, stages: int, microbatches: int, width: int = 12288, heads: int = 96) -> ir.Module:
    """The step of examples/gpt.py at the width of GPT-3, one device per stage, AdamW; nothing of it is allocated."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    optax, model = import_module("optax"), import_module("gpt_model")
    config = model.Config(stages, layers, width, heads, 2048, "bfloat16")

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    norm = {"scale": array(width), "bias": array(width)}
    block = {
        "attention_norm": norm,
        "qkv": array(width, 3, heads, width // heads),
        "out": array(heads, width // heads, width),
        "mlp_norm": norm,
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    ends = {"tokens": array(256, width), "positions": array(2048, width), "norm": norm, "head": array(256, width)}
    parameters = {**ends, "blocks": [block] * layers}
    optimizer = optax.adamw(1e-3)
    gradient = jax.value_and_grad(partial(model.loss, config))

    def step(parameters: Any, moments: Any, batch: Any) -> Any:
        operation = (jaxpp.Concat(), jaxpp.Add)
        schedule = jaxpp.Std1F1B(stages)
        losses, grads = jaxpp.treduce(partial(gradient, parameters), batch, schedule=schedule, operation=operation)
        updates, moments = optimizer.update(grads, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, jnp.mean(losses)

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")
    batch = jax.ShapeDtypeStruct((microbatches, 4, 2049), jnp.int32)
    arguments = (parameters, jax.eval_shape(optimizer.init, parameters), batch)
    return lower(step, arguments, mpmd_mesh=mesh, donate_argnums=(0, 1)).module


def measure(module: ir.Module, repeat: int) -> dict[str, float]:
    """The least seconds of each pass over `repeat` runs on copies of `module`."""
    clock = Clock()
    for _ in range(repeat):
        run_passes(own_copy(module), mpmd(), (clock,))
    return clock.best


def report(rows: dict[str, tuple[dict[str, float], int]]) -> None:
    """Print the table in Markdown: passes down, modules across."""
    names = list(next(iter(rows.values()))[0])
    print("| pass (ms) | " + " | ".join(rows) + " |")
    print("|---|" + "---:|" * len(rows))
    for name in names:
        print(f"| {name} | " + " | ".join(f"{times[name] * 1e3:.1f}" for times, _ in rows.values()) + " |")
    print("| **all** | " + " | ".join(f"**{sum(times.values()) * 1e3:.0f}**" for times, _ in rows.values()) + " |")
    per_task = (sum(times.values()) * 1e6 / tasks if tasks else None for times, tasks in rows.values())
    print("| µs per task | " + " | ".join("" if value is None else f"{value:.1f}" for value in per_task) + " |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", default="8x64,16x128,32x256,64x512", help="stages x microbatches, ...")
    parser.add_argument("--module", type=Path, help="a dumped step, to be measured first")
    parser.add_argument("--gpt", help="layers x stages x microbatches of a GPT as wide as GPT-3, to be measured too")
    args = parser.parse_args()
    rows: dict[str, tuple[dict[str, float], int]] = {}
    if args.module:
        with make_context():
            rows[args.module.stem] = measure(ir.Module.parse(args.module.read_text(encoding="utf-8")), args.repeat), 0
    if args.gpt:
        layers, stages, microbatches = map(int, args.gpt.split("x"))
        rows[f"gpt {args.gpt}"] = measure(gpt(layers, stages, microbatches), args.repeat), 2 * stages * microbatches
    for size in filter(None, args.sizes.split(",")):
        stages, microbatches = map(int, size.split("x"))
        rows[f"{stages} x {microbatches}"] = (
            measure(synthetic(stages, microbatches), args.repeat),
            (2 * stages * microbatches),
        )
    report(rows)


if __name__ == "__main__":
    main()

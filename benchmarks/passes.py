"""Measures how long the pass chain takes: a GPT step, and synthetic pipelines of growing size.

    python examples/gpt.py --layers 12 --steps 1 --write gpt
    python benchmarks/passes.py [--module gpt/step.mlir] [--sizes 8x64,16x128,32x256,64x512] [--repeat 3]
    python benchmarks/passes.py --gpt 96x48x64 --sizes "" --repeat 1    # GPT-3: layers x stages x microbatches

Prints one table: a row per pass, a column per module, milliseconds of the processor (the minimum over the repetitions:
a pass is deterministic, what varies is the machine), and microseconds per task for the synthetic modules, which should
not grow.
"""

import os
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
from shared import example, parser, show

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
    """Lowers an MLP of one layer per stage, one device per stage, for 1F1B."""

    def loss(weights: list[Any], batch: tuple[Any, Any]) -> Any:
        x, y = batch
        for weight in weights:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ weight)) if weight is not weights[-1] else jnp.tanh(x @ weight)
        return jaxpp.mark_stage_end(jnp.mean((x - y) ** 2))

    weights = [_array(32, 32)] * stages
    data = _array(microbatches, 8, 32)
    return _lowered(loss, stages, weights, (data, data), 0.1)


def gpt(layers: int, stages: int, microbatches: int) -> ir.Module:
    """Lowers the step of examples/gpt.py as wide as GPT-3, one device per stage, AdamW; nothing of it is allocated."""
    model, width, heads = example("gpt_model"), 12288, 96
    norm = {"scale": _array(width), "bias": _array(width)}
    block = {
        **{"attention_norm": norm, "mlp_norm": norm},
        **{"qkv": _array(width, 3, heads, width // heads), "out": _array(heads, width // heads, width)},
        **{"up": _array(width, 4 * width), "down": _array(4 * width, width)},
    }
    ends = {"tokens": _array(256, width), "positions": _array(2048, width), "norm": norm, "head": _array(256, width)}
    loss = partial(model.loss, model.Config(stages, layers, width, heads, 2048, "bfloat16"))
    batch = jax.ShapeDtypeStruct((microbatches, 4, 2049), jnp.int32)
    return _lowered(loss, stages, {**ends, "blocks": [block] * layers}, batch)


def _array(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _lowered(loss: Any, stages: int, parameters: Any, batch: Any, rate: float | None = None) -> ir.Module:
    """Lowers a step of SGD at a rate, or of AdamW."""
    optax = import_module("optax")
    optimizer = optax.sgd(rate) if rate else optax.adamw(1e-3)

    def step(parameters: Any, moments: Any, batch: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), parameters)
        operation = (jaxpp.Concat(), jaxpp.Add)
        losses, grads = jaxpp.treduce(gradient, batch, schedule=jaxpp.schedules.Std1F1B(stages), operation=operation)
        updates, moments = optimizer.update(grads, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, jnp.mean(losses)

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")
    arguments = (parameters, jax.eval_shape(optimizer.init, parameters), batch)
    return lower(step, arguments, mpmd_mesh=mesh, donate_argnums=(0, 1)).module


def measure(module: ir.Module, repeat: int) -> dict[str, float]:
    """Returns the least seconds of each pass over `repeat` runs on copies of `module`."""
    clock = Clock()
    for _ in range(repeat):
        run_passes(own_copy(module), mpmd(), (clock,))
    return clock.best


def main() -> None:
    """Measures and prints."""
    flags = parser(__doc__, repeat=3)
    flags.add_argument("--sizes", default="8x64,16x128,32x256,64x512", help="stages x microbatches, ...")
    flags.add_argument("--module", type=Path, help="a dumped step, to be measured first")
    flags.add_argument("--gpt", help="layers x stages x microbatches of a GPT as wide as GPT-3, to be measured too")
    options = flags.parse_args()
    times: dict[str, dict[str, float]] = {}
    tasks: dict[str, int] = {}
    if options.module:
        with make_context():
            module = ir.Module.parse(options.module.read_text(encoding="utf-8"))
            times[options.module.stem] = measure(module, options.repeat)
    for size in filter(None, (options.gpt, *options.sizes.split(","))):
        *layers, stages, microbatches = map(int, size.split("x"))
        made = gpt(layers[0], stages, microbatches) if layers else synthetic(stages, microbatches)
        times[size], tasks[size] = measure(made, options.repeat), 2 * stages * microbatches
    rows = [(name, *(f"{1e3 * each[name]:.1f}" for each in times.values())) for name in next(iter(times.values()))]
    sums = {name: sum(each.values()) for name, each in times.items()}
    rows.append(("**all**", *(f"**{1e3 * each:.0f}**" for each in sums.values())))
    rows.append(
        ("µs per task", *(f"{1e6 * each / tasks[name]:.1f}" if name in tasks else "" for name, each in sums.items()))
    )
    show(("pass (ms)", *times), rows)


if __name__ == "__main__":
    main()

"""Shows what splitting the backward costs: FLOPs and bytes of each stage of a GPT, whole and in two.

    python benchmarks/split.py [--layers 4] [--width 256] [--sequence 128] [--batch 4] [--dtype float32]
    python benchmarks/split.py --layers 8 --checkpoint    # each stage scans over its two blocks

Compiles the same step under 1F1B and under ZB-H1, one device per stage, and asks XLA what each stage program does. A
row per stage: GFLOPs of the forward, the whole backward, the input gradient and the weight gradient, and the latter two
over the whole; XLA counts one trip of a loop. Then the KiB that are alive between these two for each microbatch, beside
those that the products of the weight gradient read: their inputs and the gradients of their outputs.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import numpy as np
from jaxlib.mlir import ir
from shared import example, parser, show

import jaxpp
from jaxpp import schedules
from jaxpp._compat import compile_program, make_context
from jaxpp.ir.counted import trips
from jaxpp.ir.functions import body_of, functions, operations
from jaxpp.ir.values import byte_size
from jaxpp.runtime import Call, Program, Receive, load

gpt_model = example("gpt_model")


class Stage(NamedTuple):
    """FLOPs of the tasks of one stage, and bytes for one microbatch.

    Attributes:
        whole: FLOPs of a backward that is not split.
        kept: bytes that the weight gradient reads of its own microbatch.
        products: bytes of the operands of the matrix products in the weight gradient.
        sums: bytes of gradients that the input gradient made, which are only added up (those of norms).
    """

    forward: float
    whole: float
    input_grad: float
    weight_grad: float
    kept: int
    products: int
    sums: int

    @property
    def ratio(self) -> float:
        """FLOPs of both halves over those of the whole backward."""
        return (self.input_grad + self.weight_grad) / self.whole


def measure(model: Any, batch: int, checkpoint: bool = False) -> list[Stage]:
    """Compiles the gradient of `model` both ways, for microbatches of `batch` sequences.

    checkpoint: whether each stage scans over its blocks, with `jax.checkpoint` around each.
    """
    step, microbatches = _lowered(model, batch, checkpoint), 2 * model.stages
    plans = (schedules.make(name, meshes=model.stages, microbatches=microbatches) for name in ("1f1b", "zb-h1"))
    whole, split = (load(step.with_schedule(plan).program().module) for plan in plans)
    return [_stage(stage, whole, split) for stage in range(model.stages)]


def _lowered(model: Any, batch: int, checkpoint: bool) -> Any:
    def gradients(parameters: Any, text: Any) -> Any:
        return jaxpp.treduce(partial(jax.value_and_grad(partial(loss, model)), parameters), text)

    loss, parameters = gpt_model.loss, gpt_model.init(model, 0)
    if checkpoint:
        loss, blocks = _scanned_loss, parameters["blocks"]
        stages = [blocks[first :: model.stages] for first in range(model.stages)]
        parameters["blocks"] = [jax.tree.map(lambda *rows: np.stack(rows), *stage) for stage in stages]
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[: model.stages]), ("mpmd",)), "mpmd")
    options = jaxpp.StepOptions(share_tasks="never")  # a program for each task
    step = jaxpp.mpmd_jit_with_loop(gradients, mpmd_mesh=mesh, options=options)
    text = np.zeros((2 * model.stages, batch, model.sequence + 1), np.int32)
    return step.lower(parameters, text)


def _scanned_loss(model: Any, parameters: Any, text: Any) -> Any:
    """Returns the loss of `gpt_model` with a scan over the stacked blocks of each stage."""

    def apply(x: Any, weights: Any) -> Any:
        return jax.checkpoint(gpt_model.block)(weights, x), None

    x = gpt_model.embed(model, parameters, text[:, :-1])
    for stage, stack in enumerate(parameters["blocks"]):
        x = jaxpp.mark_stage_end(x) if stage else x
        x, _ = jax.lax.scan(apply, x, stack)
    return jaxpp.mark_stage_end(gpt_model.cross_entropy(parameters, x, text[:, 1:]))


def _stage(stage: int, whole: Program, split: Program) -> Stage:
    costs = {**_flops(whole, stage), **_flops(split, stage)}
    flops = (costs[kind] for kind in ("forward", "backward", "input_grad", "weight_grad"))
    return Stage(*flops, *_bytes(split, stage))


def _flops(program: Program, stage: int) -> Mapping[str, float]:
    """Returns the FLOPs of the programs of one stage by kind, as XLA counts them."""
    found = {call.kind: call.function for _, call in _calls(program, stage)}
    device = jax.devices()[:1]
    compiled = {kind: compile_program(program.functions[name].bytecode, device, {}) for kind, name in found.items()}
    return {kind: each.cost_analysis()["flops"] for kind, each in compiled.items()}


def _calls(program: Program, stage: int) -> list[tuple[int, Call]]:
    calls = ((mesh, each) for mesh, sequence in enumerate(program.sequences) for each in sequence)
    return [(mesh, each) for mesh, each in calls if isinstance(each, Call) and each.stage == stage]


def _bytes(program: Program, stage: int) -> tuple[int, int, int]:
    """Returns (kept, products, sums), as in `Stage`."""
    mesh, call = next(each for each in _calls(program, stage) if each[1].kind == "weight_grad")
    own: set[int] = set()
    for each in program.sequences[mesh]:
        if isinstance(each, Receive):
            own.add(each.result)
        elif isinstance(each, Call) and each.microbatch == call.microbatch and each is not call:
            own.update(each.results)
    kept = [program.registers[mesh][register] for register in set(call.operands) & own]
    ready = [each for each in kept if each.shape and set(each.shape[1:-1]) <= {1}]  # or a stack of them
    with make_context():
        module = ir.Module.parse(program.functions[call.function].bytecode)
        products = sum(_product_bytes(body_of(function)) for function in functions(module).values())
        return sum(each.bytes for each in kept), products, sum(each.bytes for each in ready)


def _product_bytes(block: ir.Block) -> int:
    """Returns the bytes of the operands of all products, those in a loop once for each trip."""
    ops = operations(block)
    products = [op for op in ops if op.name in ("stablehlo.dot_general", "stablehlo.scatter")]
    own = sum(byte_size(operand.type) for operand in {operand for op in products for operand in op.operands})
    loops = [op for op in ops if op.name == "stablehlo.while"]
    return own + sum((trips(loop) or 0) * _product_bytes(loop.regions[1].blocks[0]) for loop in loops)


def main() -> None:
    """Prints the table."""
    flags = parser(__doc__, stages=4, layers=4, width=256, heads=4, sequence=128, batch=4)
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--checkpoint", action="store_true", help="scan, with jax.checkpoint around each block")
    options = flags.parse_args()
    sizes = options.stages, options.layers, options.width, options.heads, options.sequence, options.dtype
    found = measure(gpt_model.Config(*sizes), options.batch, options.checkpoint)
    flops = [[f"{value / 1e9:.3f}" for value in each[:4]] for each in found]
    kibis = [[f"{value / 1024:.1f}" for value in each[4:]] for each in found]
    rows = [(k, *flops[k], f"{each.ratio:.4f}", *kibis[k]) for k, each in enumerate(found)]
    show(("stage", *"FBIW", "(I + W) / B", "kept KiB", "products KiB", "sums KiB"), rows)


if __name__ == "__main__":
    main()

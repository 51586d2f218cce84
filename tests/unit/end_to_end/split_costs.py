"""Measures what splitting the backward of a GPT costs: the FLOPs and bytes of each stage, whole and in two."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxlib.mlir import ir

import jaxpp
from jaxpp import schedules
from jaxpp._compat import compile_program, make_context
from jaxpp.ir.counted import trips
from jaxpp.ir.functions import body_of, functions, operations
from jaxpp.ir.values import byte_size
from jaxpp.runtime import Call, Program, Receive, load


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


def measure(gpt_model: Any, model: Any, batch: int, checkpoint: bool) -> list[Stage]:
    """Compiles the gradient of `model` under 1F1B and under ZB-H1, for microbatches of `batch` sequences.

    checkpoint: whether each stage scans over its blocks, with `jax.checkpoint` around each.
    """
    step, microbatches = _lowered(gpt_model, model, batch, checkpoint), 2 * model.stages
    plans = (schedules.make(name, meshes=model.stages, microbatches=microbatches) for name in ("1f1b", "zb-h1"))
    whole, split = (load(step.with_schedule(plan).program().module) for plan in plans)
    return [_stage(stage, whole, split) for stage in range(model.stages)]


def _lowered(gpt_model: Any, model: Any, batch: int, checkpoint: bool) -> Any:
    def gradients(parameters: Any, text: Any) -> Any:
        return jaxpp.treduce(partial(jax.value_and_grad(partial(loss, model)), parameters), text)

    loss, parameters = gpt_model.loss, gpt_model.init(model, 0)
    if checkpoint:
        loss, blocks = partial(_scanned_loss, gpt_model), parameters["blocks"]
        stages = [blocks[first :: model.stages] for first in range(model.stages)]
        parameters["blocks"] = [jax.tree.map(lambda *rows: np.stack(rows), *stage) for stage in stages]
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[: model.stages]), ("mpmd",)), "mpmd")
    options = jaxpp.StepOptions(share_tasks="never")  # a program for each task
    step = jaxpp.mpmd_jit_with_loop(gradients, mpmd_mesh=mesh, options=options)
    text = np.zeros((2 * model.stages, batch, model.sequence + 1), np.int32)
    return step.lower(parameters, text)


def _scanned_loss(gpt_model: Any, model: Any, parameters: Any, text: Any) -> Any:
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
    whole_backward, halves = costs["backward"], (costs["input_grad"], costs["weight_grad"])
    return Stage(costs["forward"], whole_backward, *halves, *_bytes(split, stage))


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

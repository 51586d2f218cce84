"""What keeping less between forward and backward gains and costs: a training step of a GPT under 1F1B, each way.

    python benchmarks/memory.py [--stages 4] [--layers 8] [--width 256] [--sequence 128] [--batch 4] [--repeat 9]
    python benchmarks/memory.py --scan [--chunks 4]
    python benchmarks/memory.py --published
    python benchmarks/memory.py --analyse --layers 4 --width 2048 --heads 16 --sequence 1024 --batch 1 --dtype bfloat16

A row per way: what stage 1 keeps of one microbatch on its device, the peak of the verified program on the mesh that
needs most, the peak that XLA's analysis of the compiled tasks adds up to, FLOPs over those of the step that keeps all,
bytes copied to the host or a peer and back, and the time of the step: all ways by turns in one process, one device per
stage, medians with their quartiles, and the median of the ratios turn by turn. The losses of all ways are compared.
`--scan`: the blocks of each stage are stacked, and scanned over; without `offload, by blocks`. `--analyse` stops before
anything is compiled: for models larger than this machine. `--published`: the peaks that papers publish, those of the
simulator, and those that `verify-program` proves of programs with these schedules, of a layer per stage.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "16")

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

import jaxpp
from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import functions
from jaxpp.runtime import Call, Program, Receive, load
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import subdivide

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")
published: Any = importlib.import_module("published")

WAYS: dict[str, Any] = {
    "all": None,
    "selective": "selective",
    "budget 5 %": 0.05,
    "budget 20 %": 0.2,
    "budget 50 %": 0.5,
    "inputs": "inputs",
    "offload": None,
    "offload, one at a time": None,
    "offload, by blocks": None,
    "evict": None,
}
BY_BLOCKS = "offload, by blocks"
"""The way in which every block is a stage: those of a mesh run one after the other, and come back so."""
AHEAD = {"offload": 1, "offload, one at a time": 0, BY_BLOCKS: 0}
"""How many cells before its backward an activation starts to come back."""
RATE = 0.01


class Needs(NamedTuple):
    """What is known of a way before it is compiled.

    Attributes:
        kept: bytes of one microbatch that stage 1 keeps on its device from its forward to its backward.
        peak: bytes on the mesh that needs most.
        flops: of the step.
        copied: bytes to the host or a peer and back in a step.
    """

    kept: int
    peak: int
    flops: int
    copied: int


def stacked(model: Any, parameters: Any) -> Any:
    """The parameters with the blocks of each stage in one."""
    blocks, each = parameters["blocks"], model.layers // model.stages
    stages = [blocks[first : first + each] for first in range(0, model.layers, each)]
    return {**parameters, "blocks": [jax.tree.map(lambda *leaves: jnp.stack(leaves), *stage) for stage in stages]}


def scanned_loss(model: Any, parameters: Any, text: Any) -> Any:
    """`gpt_model.loss` of stacked blocks."""
    x = gpt_model.embed(model, parameters, text[:, :-1])
    for stage, weights in enumerate(parameters["blocks"]):
        x = jaxpp.mark_stage_end(x) if stage else x
        x, _ = jax.lax.scan(lambda x, layer: (gpt_model.block(layer, x), None), x, weights)
    return jaxpp.mark_stage_end(gpt_model.cross_entropy(parameters, x, text[:, 1:]))


def chunked_mlp(count: int, plain: Callable[..., Any], weights: Any, x: Any) -> Any:
    """The MLP of a block, on one chunk of the sequence after the other."""
    chunks = jnp.moveaxis(x.reshape(x.shape[0], count, -1, x.shape[-1]), 1, 0)
    _, made = jax.lax.scan(lambda _, chunk: (None, plain(weights, chunk)), None, chunks)
    return jnp.moveaxis(made, 0, 1).reshape(x.shape)


def lower(model: Any, way: str, text: Any, parameters: Any, loss: Any) -> Any:
    """The training step of `model`, lowered."""
    plan, meshes = schedules.make("1f1b", meshes=model.stages, microbatches=len(text)), model.stages
    if way == BY_BLOCKS:
        plan = subdivide(plan, model.layers // model.stages)
        model = replace(model, stages=model.layers)
    if way in AHEAD:
        plan = schedules.offload(plan, ahead=AHEAD[way])
    if way == "evict":
        plan = evict(plan)

    def train_step(parameters: Any, text: Any) -> Any:
        one = partial(jax.value_and_grad(partial(loss, model)), parameters)
        losses, gradients = jaxpp.treduce(one, text, schedule=plan, operation=(jaxpp.Concat(), jaxpp.Add))
        return jax.tree.map(partial(_updated, RATE / len(text)), parameters, gradients), losses.mean()

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:meshes]), ("mpmd",)), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, recompute=WAYS[way], donate_argnums=0)
    return step.lower(parameters, text)


def _updated(rate: float, weight: Any, gradient: Any) -> Any:
    return weight - rate * gradient


def analyse(lowered: Any) -> Needs:
    """What the program of a step says."""
    module = lowered.program()
    program = load(module.module)
    calls = [each for sequence in program.sequences for each in sequence if isinstance(each, Call)]
    flops = {name: _flops(function.bytecode) for name, function in program.functions.items() if not function.is_copy}
    copied = sum(
        program.registers[mesh][register].bytes
        for mesh, sequence in enumerate(program.sequences)
        for each in sequence
        if isinstance(each, Call) and each.kind in ("offload", "reload", "evict", "load")
        for register in each.results
    )
    return Needs(_kept(program), max(module.peak_bytes), sum(flops.get(call.function, 0) for call in calls), copied)


def _flops(bytecode: bytes) -> int:
    with make_context():
        module = ir.Module.parse(bytecode)
        return FlopCounter(module).inside(functions(module)["main"])


def _kept(program: Program, stage: int = 1) -> int:
    """What the forward of microbatch 0 made or received that its recompute or backward reads."""
    for mesh, sequence in enumerate(program.sequences):
        received: set[int] = set()
        own: set[int] = set()
        kept: set[int] = set()
        for each in sequence:
            if isinstance(each, Receive):
                received.add(each.result)
            elif isinstance(each, Call) and (each.stage, each.microbatch) == (stage, 0):
                if each.kind == "forward":
                    own = {*each.results, *received.intersection(each.operands)}
                elif each.kind != "offload":
                    kept |= own.intersection(each.operands)
        if own:
            return sum(program.registers[mesh][register].bytes for register in kept)
    raise ValueError(f"no mesh runs stage {stage}")


def measure(steps: Mapping[str, Any], parameters: Any, text: Any, repeat: int) -> dict[str, list[float]]:
    """The milliseconds of each step, by turns. Raises AssertionError where a loss differs."""
    runs: dict[str, Callable[[], float]] = {}
    for way, step in steps.items():
        runs[way] = partial(_run, step, [parameters], text)
    losses = {way: run() for way, run in runs.items()}
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(repeat):
        for way, run in runs.items():
            start = time.perf_counter()
            losses[way] = run()
            times[way].append((time.perf_counter() - start) * 1e3)
    for way, found in losses.items():
        np.testing.assert_allclose(found, losses["all"], rtol=1e-5, err_msg=way)
    return times


def _run(step: Any, state: list[Any], text: Any) -> float:
    state[0], loss = step(state[0], text)
    jax.block_until_ready(state[0])
    return float(jaxpp.fetch(loss))


def show_published() -> None:
    """Print a row for each peak that a paper publishes of a schedule that keeps less."""
    print("| schedule | published | simulated | counted |")
    print("|---|---:|---:|---:|")
    for paper in ("controllable-memory", "pipe-offload", "bpipe"):
        for row in published.PAPERS[paper]():
            if row.schedule is not None:
                counted = max(activations(row.schedule)) / row.pairs
                print(f"| {row.what} | {'<= ' if row.at_most else ''}{row.published:g} | {row.ours:g} | {counted:g} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = ("stages", 4), ("layers", 8), ("width", 256), ("heads", 4), ("sequence", 128)
    for name, default in (*sizes, ("batch", 4), ("microbatches", 8), ("repeat", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="these rows only, besides 'all'")
    parser.add_argument("--scan", action="store_true", help="scan over the blocks of a stage")
    parser.add_argument("--chunks", type=int, help="of the sequence, which each MLP scans over")
    parser.add_argument("--analyse", action="store_true", help="compile nothing, and measure no times")
    parser.add_argument("--published", action="store_true", help="peaks of papers beside those of programs, only")
    options = parser.parse_args()
    if options.published:
        show_published()
        return
    model = gpt_model.Config(*(getattr(options, name) for name, _ in sizes), options.dtype)
    if options.chunks:
        gpt_model._mlp = partial(chunked_mlp, options.chunks, gpt_model._mlp)
    random = np.random.default_rng(0)
    text = random.integers(0, 256, (options.microbatches, options.batch, options.sequence + 1)).astype(np.int32)
    init, loss = partial(gpt_model.init, model, 0), scanned_loss if options.scan else gpt_model.loss
    init = (lambda plain=init: stacked(model, plain())) if options.scan else init
    parameters = jax.eval_shape(init) if options.analyse else init()
    ways = [way for way in WAYS if way in ("all", *options.ways) and not (options.scan and way == BY_BLOCKS)]
    lowered = {way: lower(model, way, text, parameters, loss) for way in ways}
    plans = {way: analyse(each) for way, each in lowered.items()}
    steps = {} if options.analyse else {way: each.compile() for way, each in lowered.items()}
    times = measure(steps, parameters, text, options.repeat) if steps else {}
    show(plans, steps, times)


def show(plans: Mapping[str, Needs], steps: Mapping[str, Any], times: Mapping[str, list[float]]) -> None:
    """Print a row for each way."""
    print("| keep | kept MiB | of all | peak MiB | FLOPs | copied MiB | XLA's peak MiB | ms | quartiles | time |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    mebi, everything = 2**20, plans["all"]
    for way, plan in plans.items():
        row = f"| {way} | {plan.kept / mebi:.2f} | {plan.kept / everything.kept:.2f} | {plan.peak / mebi:.1f} "
        row += f"| {plan.flops / everything.flops:.3f} | {plan.copied / mebi:.0f} |"
        if way in times:
            peak = max(each.peak_memory_in_bytes for each in steps[way].memory_analysis() if each)
            low, middle, high = np.percentile(times[way], (25, 50, 75))
            ratio = np.median([mine / base for mine, base in zip(times[way], times["all"], strict=True)])
            print(f"{row} {peak / mebi:.1f} | {middle:.0f} | {low:.0f}, {high:.0f} | {ratio:.2f} |")
        else:
            print(f"{row} | | | |")


if __name__ == "__main__":
    main()

"""Shows what keeping less between forward and backward gains and costs: a training step of a GPT under 1F1B.

    python benchmarks/memory.py [--stages 4] [--layers 8] [--width 256] [--sequence 128] [--batch 4] [--repeat 9]
    python benchmarks/memory.py --analyse --layers 4 --width 2048 --heads 16 --sequence 1024 --batch 1 --dtype bfloat16

A row per way: the bytes that stage 1 keeps of a microbatch on its device, and the peak of the verified program on the
mesh that needs most; FLOPs over those of the step that keeps all, and bytes copied to the host or a peer and back. Then
the peak by XLA's analysis of the compiled tasks, and the time of the step: all ways by turns in one process, one device
per stage, medians with their quartiles, and the median of the ratios turn by turn. The losses of all ways are compared.
`--analyse` stops before anything is compiled: for models larger than this machine.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "16")

import jax
import numpy as np
from jaxlib.mlir import ir
from shared import by_turns, example, parser, ratios, sgd_step, show, timed

import jaxpp
from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import functions
from jaxpp.runtime import Call, Program, Receive, load
from jaxpp.schedules.rewrites import subdivide
from jaxpp.schedules.rewrites.peers import evict

gpt_model = example("gpt_model")

WAYS: dict[str, Any] = {
    **{"all": None, "selective": "selective"},
    **{"budget 5 %": 0.05, "budget 20 %": 0.2, "budget 50 %": 0.5, "inputs": "inputs"},
    **dict.fromkeys(("offload", "offload, one at a time", "offload, by blocks", "evict")),
}
"""The option `recompute` of each way."""
BY_BLOCKS = "offload, by blocks"
"""The way in which every block is a stage: those of a mesh run one after the other, and come back so."""
AHEAD = {"offload": 1, "offload, one at a time": 0, BY_BLOCKS: 0}
"""How many cells before its backward an activation starts to come back."""
HEADS = ("keep", "kept MiB", "of all", "peak MiB", "FLOPs", "copied MiB", "XLA's peak MiB", "ms", "quartiles", "time")


class Needs(NamedTuple):
    """The needs of a way, which are known before it is compiled.

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


def lower(model: Any, way: str, text: Any, parameters: Any) -> Any:
    """Lowers the training step of `model`."""
    plan, meshes = schedules.make("1f1b", meshes=model.stages, microbatches=len(text)), model.stages
    if way == BY_BLOCKS:
        plan = subdivide(plan, model.layers // model.stages)
        model = replace(model, stages=model.layers)
    if way in AHEAD:
        plan = schedules.offload(plan, ahead=AHEAD[way])
    if way == "evict":
        plan = evict(plan)
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:meshes]), ("mpmd",)), "mpmd")
    train_step = partial(sgd_step, model, plan, 0.01)
    return jaxpp.mpmd_jit_with_loop(train_step, mesh, recompute=WAYS[way], donate_argnums=0).lower(parameters, text)


def analyse(lowered: Any) -> Needs:
    """Reads the needs from the program of a step."""
    module = lowered.program()
    program = load(module.module)
    calls = [
        (mesh, each) for mesh, sequence in enumerate(program.sequences) for each in sequence if isinstance(each, Call)
    ]
    flops = {name: _flops(function.bytecode) for name, function in program.functions.items() if not function.is_copy}
    copied = sum(
        program.registers[mesh][register].bytes
        for mesh, each in calls
        if each.kind in ("offload", "reload", "evict", "load")
        for register in each.results
    )
    return Needs(_kept(program), max(module.peak_bytes), sum(flops.get(call.function, 0) for _, call in calls), copied)


def _flops(bytecode: bytes) -> int:
    with make_context():
        module = ir.Module.parse(bytecode)
        return FlopCounter(module).inside(functions(module)["main"])


def _kept(program: Program, stage: int = 1) -> int:
    """Returns the bytes that the forward of microbatch 0 made or received, and its recompute or backward reads."""
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
    """Returns the milliseconds of each step, by turns. Raises AssertionError where a loss differs."""
    states, losses = dict.fromkeys(steps, parameters), dict[str, Any]()

    def run(way: str) -> Any:
        states[way], losses[way] = steps[way](states[way], text)
        return states[way], losses[way]

    times = by_turns({way: lambda way=way: 1e3 * timed(partial(run, way)) for way in steps}, repeat)
    for way, found in losses.items():
        np.testing.assert_allclose(jaxpp.fetch(found), jaxpp.fetch(losses["all"]), rtol=1e-5, err_msg=way)
    return times


def main() -> None:
    """Prints the table."""
    flags = parser(__doc__, stages=4, layers=8, width=256, heads=4, sequence=128, batch=4, microbatches=8, repeat=9)
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="these rows only, besides 'all'")
    flags.add_argument("--analyse", action="store_true", help="compile nothing, and measure no times")
    options = flags.parse_args()
    sizes = options.stages, options.layers, options.width, options.heads, options.sequence, options.dtype
    model = gpt_model.Config(*sizes)
    random = np.random.default_rng(0)
    text = random.integers(0, 256, (options.microbatches, options.batch, options.sequence + 1)).astype(np.int32)
    init = partial(gpt_model.init, model, 0)
    parameters = jax.eval_shape(init) if options.analyse else init()
    lowered = {way: lower(model, way, text, parameters) for way in WAYS if way in ("all", *options.ways)}
    plans = {way: analyse(each) for way, each in lowered.items()}
    steps = {} if options.analyse else {way: each.compile() for way, each in lowered.items()}
    times = measure(steps, parameters, text, options.repeat) if steps else {}
    show(HEADS[: 10 if steps else 6], rows_of(plans, steps, times))


def rows_of(
    plans: Mapping[str, Needs], steps: Mapping[str, Any], times: Mapping[str, list[float]]
) -> Iterator[list[str]]:
    """Yields a row for each way."""
    mebi, everything = 2**20, plans["all"]
    for way, plan in plans.items():
        row = [way, f"{plan.kept / mebi:.2f}", f"{plan.kept / everything.kept:.2f}", f"{plan.peak / mebi:.1f}"]
        row += [f"{plan.flops / everything.flops:.3f}", f"{plan.copied / mebi:.0f}"]
        if way in times:
            peak = max(each.peak_memory_in_bytes for each in steps[way].memory_analysis() if each)
            low, middle, high = np.percentile(times[way], (25, 50, 75))
            ratio = np.median(ratios(times[way], times["all"]))
            row += [f"{peak / mebi:.1f}", f"{middle:.0f}", f"{low:.0f}, {high:.0f}", f"{ratio:.2f}"]
        yield row


if __name__ == "__main__":
    main()

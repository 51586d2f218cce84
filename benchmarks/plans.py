"""Plans of GPT-3 and Llama 2 70B on 64 to 1,024 chips that are not here: memory, step, utilisation, schedules ranked.

    pip install 'jaxpp[tpu-plan]' 'jaxpp[gpu-plan]' optax
    XLA_FLAGS= python benchmarks/plans.py [--models gpt3 llama2] [--chips v5p h100 h200] [--sizes 64 128 256 512 1024]
    XLA_FLAGS= python benchmarks/plans.py --models gpt3 --chips v5p --sizes 64 --sequence 8192 --microbatches 16

Eight-way tensor parallelism within a host; 8 meshes for GPT-3 and 4 for Llama, interleaved 1F1B with two layers in
each stage; the rest is data parallelism, with one sequence per microbatch and replica. Where the memory is too small,
stages do something again: `recompute="selective"`, then "inputs"; what cannot fit is not compiled. With --memory-limit
it is what `memory_limit` finds for the memory of the chip, which takes long. Each row is printed as Markdown when it is
there, its plan is saved in --folder with its page. A row is a process of its own, timed from its start to the plan.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

MESHES = {"gpt3": 8, "llama2": 4}
TENSOR, LAYERS_PER_STAGE = 8, 2
TPUS = {64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8", 1024: "8x8x16"}
COLUMNS = "model chips sequence batch peak again step idle utilisation schedules wall processor".split()


def main() -> None:
    """Print the table, or be the process of a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MESHES, default=list(MESHES))
    parser.add_argument("--chips", nargs="+", default=["v5p", "h100"])
    parser.add_argument("--sizes", nargs="+", type=int, choices=TPUS, default=list(TPUS))
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--sequence", type=int, help="tokens, instead of the model's")
    parser.add_argument("--memory-limit", action="store_true", help="let memory_limit find what is done again")
    parser.add_argument("--folder", type=Path, default=Path("plans"))
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        one(options, options.models[0], options.chips[0], options.sizes[0])
        return
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    command = [sys.executable, *sys.argv, "--row"]
    for model in options.models:
        for chip in options.chips:
            for size in options.sizes:
                subprocess.run([*command, "--models", model, "--chips", chip, "--sizes", str(size)], check=True)


def first_that_fits(ways: Sequence[Callable[[], Any]], memory_bytes: int) -> tuple[Any, dict[str, str]]:
    """The plan of the first of the lowered steps that fits, or of the last one, and what its stages keep less of.

    What a program itself keeps is known before the compiler adds its temporaries: what cannot fit is not compiled.
    """
    *others, last = ways
    for way in others:
        lowered = way()
        if max(lowered.program().peak_bytes) <= memory_bytes and (found := lowered.compile().plan).fits:
            return found, lowered.program().kept_less
    lowered = last()
    return lowered.compile().plan, lowered.program().kept_less


def one(options: argparse.Namespace, name: str, chip: str, size: int) -> None:
    """Make a plan, save it, and print its row."""
    begin = time.perf_counter()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from dataclasses import replace

    from plans_models import MODELS, make_step

    import jaxpp
    from jaxpp import schedules

    model, meshes = MODELS[name], MESHES[name]
    model = replace(model, sequence=options.sequence or model.sequence)
    tpu = chip in ("v4", "v5e", "v5p", "v6e", "tpu7x")
    target = jaxpp.target(f"{chip}:{TPUS[size]}") if tpu else jaxpp.target(chip, nodes=size // 8, gpus=8)
    replicas = size // meshes // TENSOR
    mesh = target.mesh((meshes, replicas, TENSOR), ("mpmd", "data", "model"))
    chunks = model.layers // meshes // LAYERS_PER_STAGE
    plan = schedules.make("interleaved-1f1b", meshes=meshes, microbatches=options.microbatches, chunks=chunks)

    def lower(**way: Any) -> Any:
        step, arguments = make_step(model, mesh, plan, replicas, **way)
        return step.lower(*arguments)

    ways = [partial(lower, recompute=keep) for keep in (None, "selective", "inputs")]
    if options.memory_limit:
        ways = [partial(lower, memory_limit=target.chip.memory_bytes)]
    found, kept_less = first_that_fits(ways, target.chip.memory_bytes)
    wall, processor = time.perf_counter() - begin, time.process_time()
    options.folder.mkdir(parents=True, exist_ok=True)
    label = f"{name}-{chip}-{size}-{model.sequence}"
    found.save(options.folder / f"{label}.json")
    costs = found.costs()
    if "recompute" in costs.kinds:  # right before its backward; the schedules of the library have none
        again = zip(costs.input_grad, costs.kinds["recompute"], strict=True)
        costs = replace(costs, input_grad=[one + other for one, other in again])
    most = max(schedules.simulate(plan).peak_activations())
    ranked = schedules.tune(costs, meshes=meshes, microbatches=options.microbatches, memory_limit=most, seconds=5)
    found.page(options.folder / f"{label}.html")
    (options.folder / f"{label}.txt").write_text(f"{found}\n\n{ranked}\n", "utf-8")
    gibi = 2**30
    cells = (
        name,
        f"{size} {chip}",
        f"{model.sequence:,}",
        f"{options.microbatches * replicas:,}",
        f"{max(found.peak_bytes) / gibi:.1f} of {found.facts.memory_bytes / gibi:.0f} GiB",
        "; ".join(f"{name} {told(what)}" for name, what in kept_less.items() if what) or "nothing",
        f"{found.step_seconds:.2f} s",
        f"{found.bubble:.1%}",
        f"{found.utilisation:.1%}",
        "; ".join(f"{row.name} {row.value / 1e3:.2f} s" for row in ranked.rows[:3]),
        f"{wall:.0f} s",
        f"{processor:.0f} s",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def told(what: str) -> str:
    """What is done to keep less, in a word or two."""
    words = what.split()
    return what if len(words) == 1 else f"of {len(words)} stages"


if __name__ == "__main__":
    main()

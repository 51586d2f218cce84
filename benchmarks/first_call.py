"""Measures how long the first call of the GPT example's step takes, beside plain `jax.jit` of the same function.

    python benchmarks/first_call.py [--repeat 5] [flags of examples/gpt.py]

Both run on the same devices, each in a process of its own, in turns, without a compilation cache. Plain `jax.jit` gets
one mesh of all devices: the batch is sharded over its data axis, the parameters over its model axis, as in each stage
of the pipeline; along the mpmd axis are copies. The first call traces, lowers, rewrites, compiles and runs a step; it
is timed until all results are ready. After each time stands that of the processors, summed over all threads.
`pipeline` has the default `share_tasks="auto"`, and `never` has `share_tasks="never"`. `restart` is the first call of
the saved pipeline in a new process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from shared import example, parser, ratios, show, spread

Times = dict[str, tuple[float, float]]
"""By part: the seconds that passed, and those of the processors."""
STEPS = ("plain", "pipeline", "never", "restart")


def main() -> None:
    """Prints the table."""
    known = parser(__doc__, repeat=5)
    known.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    known.add_argument("--folder", help=argparse.SUPPRESS)
    options, flags = known.parse_known_args()
    if options.only:
        print(json.dumps(measure(options.only, flags, options.folder)))
        return
    found: dict[str, list[Times]] = {name: [] for name in STEPS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeat):
            for name, measured in found.items():
                command = [sys.executable, __file__, "--only", name, "--folder", folder, *flags]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
    heads = "seconds; of the processors", "plain `jax.jit`", *STEPS[1:]
    parts = "tracing and lowering", "passes", "compiling", "loading", "running", "all"
    cells = {part: [[each[part] for each in found[name] if part in each] for name in STEPS] for part in parts}
    spreads = {part: ["; ".join(map(spread, zip(*each, strict=True))) for each in row] for part, row in cells.items()}
    show(heads, [(part, *row) for part, row in spreads.items()])
    for name, other in (("pipeline", "plain"), ("never", "plain"), ("restart", "pipeline")):
        pairs = ([[each["all"][clock] for each in found[step]] for step in (name, other)] for clock in (0, 1))
        print(f"{name} / {other}, run by run: {'; '.join(spread(ratios(*pair)) for pair in pairs)}")


def measure(name: str, flags: Sequence[str], folder: str) -> Times:
    """Makes one first call, and returns the times of its parts."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import jaxpp

    gpt, gpt_model = example("gpt"), example("gpt_model")
    options, devices = example("gpt_options").parse(flags)
    optimizer, batch = gpt.make_optimizer(options), next(gpt.batches(options))
    parameters = gpt_model.init(gpt.make_model(options), gpt.SEED)
    arguments: Any = (parameters, jax.device_get(optimizer.init(parameters))), batch
    step = gpt.make_train_step(options, gpt.make_model(options), optimizer)
    specs = gpt_model.specs(arguments[0]), PartitionSpec(None, "data")
    names, shape = ("mpmd", "data", "model"), (options.plan.meshes, options.data, options.model)
    mesh, clock = Mesh(np.array(devices).reshape(shape), names), [("", _now())]

    def look(part: str) -> None:
        clock.append((part, _now()))

    if name == "restart":
        compiled: Any = jaxpp.load(folder, like=arguments)
        look("loading")
    elif name == "plain":
        shardings: Any = jax.tree.map(
            partial(NamedSharding, mesh), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
        )
        out = shardings[0], None
        lowered: Any = jax.jit(step, in_shardings=shardings, out_shardings=out, donate_argnums=0).lower(*arguments)
        look("tracing and lowering")
        compiled = lowered.compile()
        look("compiling")
        arguments = jax.device_put(arguments, shardings)
    else:
        share = "never" if name == "never" else "auto"
        known: Any = {"in_shardings": specs, "donate_argnums": 0, "share_tasks": share}
        lowered = jaxpp.mpmd_jit_with_loop(step, jaxpp.MpmdMesh(mesh, "mpmd"), **known).lower(*arguments)
        look("tracing and lowering")
        lowered.program()
        look("passes")
        compiled = lowered.compile()
        look("compiling")
    jax.block_until_ready(compiled(*arguments))
    look("running")
    if name == "pipeline":
        compiled.save(folder)
    parts = {part: _between(before, after) for (_, before), (part, after) in pairwise(clock)}
    return {**parts, "all": _between(clock[0][1], clock[-1][1])}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _between(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float]:
    return after[0] - before[0], after[1] - before[1]


if __name__ == "__main__":
    main()

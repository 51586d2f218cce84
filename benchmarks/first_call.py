"""How long the first call of the GPT example's step takes: the pipeline beside plain `jax.jit` of the same function.

    python benchmarks/first_call.py [--repeat 5] [flags of examples/gpt.py]

Both run on the same devices, each in a process of its own, in turns, without a compilation cache. Plain `jax.jit` gets
one mesh of all devices: the batch is sharded over its data axis, the parameters over its model axis, as in each stage
of the pipeline; along the mpmd axis are copies. The first call traces, lowers, rewrites, compiles and runs a step; it
is timed until all results are ready. Behind each time stands that of the processors, summed over all threads.
The pipeline is that of the default `share_tasks="auto"`; `never` is the one with `share_tasks="never"`, `restart` the
first call in a new process of the step that the pipeline's process has saved.
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
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

# By part: the seconds that passed, and those of the processors.
Times = dict[str, tuple[float, float]]

STEPS = ("plain", "pipeline", "never", "restart")
EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", choices=STEPS, help="measure once, in this process; prints JSON")
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args()
    if options.only:
        print(json.dumps(measure(options.only, flags, options.folder)))
        return
    found: dict[str, list[Times]] = {name: [] for name in STEPS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeat):
            for name, measured in found.items():
                measured.append(_in_process(name, flags, folder))
    print("| seconds (of the processors) | plain `jax.jit` | pipeline | never | restart |\n|---|---:|---:|---:|---:|")
    for part in ("tracing and lowering", "passes", "compiling", "loading", "running", "all"):
        cells = [_spread([each[part] for each in found[name] if part in each]) for name in STEPS]
        print(f"| {part} | {' | '.join(cells)} |")
    for name, other in (("pipeline", "plain"), ("never", "plain"), ("restart", "pipeline")):
        pairs = [(a["all"], b["all"]) for a, b in zip(found[name], found[other], strict=True)]
        print(f"{name} / {other}, run by run: {_spread([(a[0] / b[0], a[1] / b[1]) for a, b in pairs])}")


def _in_process(name: str, flags: Sequence[str], folder: str) -> Times:
    command = [sys.executable, __file__, "--only", name, "--folder", folder, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _spread(times: Sequence[tuple[float, float]]) -> str:
    """The medians, and the extremes of the first."""
    if not times:
        return ""
    wall, processors = zip(*times, strict=True)
    return f"{median(wall):.2f} ({median(processors):.2f}), {min(wall):.2f} to {max(wall):.2f}"


def measure(name: str, flags: Sequence[str], folder: str) -> Times:
    """One first call, part by part."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    sys.path.insert(0, str(EXAMPLES))
    import jax

    gpt, gpt_model, gpt_options = map(import_module, ("gpt", "gpt_model", "gpt_options"))
    options, devices = gpt_options.parse(flags)
    model = gpt_model.Config(
        options.stages, options.layers, options.width, options.heads, options.sequence, options.dtype
    )
    optimizer = gpt.make_optimizer(options)
    parameters = gpt_model.init(model, options.seed)
    state = (parameters, jax.device_get(optimizer.init(parameters)))
    batch = next(gpt.batches(options))
    step = gpt.make_train_step(options, model, optimizer)
    if name == "restart":
        return _restart(state, batch, folder)
    if name == "plain":
        return _plain(step, options, devices, state, batch)
    share = "never" if name == "never" else "auto"
    return _pipeline(step, options, devices, state, batch, share, "" if name == "never" else folder)


class _Clock:
    """Keeps the time since the last look, and since the start."""

    def __init__(self) -> None:
        self.parts: Times = {}
        self._start = self._last = self._now()

    def look(self, part: str) -> None:
        now = self._now()
        self.parts[part] = (now[0] - self._last[0], now[1] - self._last[1])
        self.parts.pop("all", None)  # it comes last
        self.parts["all"] = (now[0] - self._start[0], now[1] - self._start[1])
        self._last = now

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def _mesh(options: Any, devices: Sequence[Any]) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    shape = (options.plan.meshes, options.data, options.model)
    return Mesh(np.array(devices).reshape(shape), ("mpmd", "data", "model"))


def _plain(step: Any, options: Any, devices: Sequence[Any], state: Any, batch: Any) -> Times:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    specs = (import_module("gpt_model").specs(state), PartitionSpec(None, "data"))
    place = partial(NamedSharding, _mesh(options, devices))
    shardings = jax.tree.map(place, specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    jitted = jax.jit(step, in_shardings=shardings, out_shardings=(shardings[0], None), donate_argnums=0)
    clock = _Clock()
    lowered = jitted.lower(state, batch)
    clock.look("tracing and lowering")
    compiled = lowered.compile()
    clock.look("compiling")
    jax.block_until_ready(compiled(*jax.device_put((state, batch), shardings)))
    clock.look("running")
    return clock.parts


def _pipeline(
    step: Any, options: Any, devices: Sequence[Any], state: Any, batch: Any, share: str, folder: str
) -> Times:
    import jax
    from jax.sharding import PartitionSpec

    import jaxpp

    piped = jaxpp.mpmd_jit_with_loop(
        step,
        mpmd_mesh=jaxpp.MpmdMesh(_mesh(options, devices), "mpmd"),
        in_shardings=(import_module("gpt_model").specs(state), PartitionSpec(None, "data")),
        donate_argnums=0,
        share_tasks=share,
    )
    clock = _Clock()
    lowered = piped.lower(state, batch)
    clock.look("tracing and lowering")
    lowered.program()
    clock.look("passes")
    compiled = lowered.compile()
    clock.look("compiling")
    jax.block_until_ready(compiled(state, batch))
    clock.look("running")
    if folder:
        compiled.save(folder)
    return clock.parts


def _restart(state: Any, batch: Any, folder: str) -> Times:
    import jax

    import jaxpp

    clock = _Clock()
    step = jaxpp.load(folder, like=(state, batch))
    clock.look("loading")
    jax.block_until_ready(step(state, batch))
    clock.look("running")
    return clock.parts


if __name__ == "__main__":
    main()

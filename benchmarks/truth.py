"""Is a predicted step as long as a measured one? Ten models and schedules in two and four processes on this machine.

    python benchmarks/truth.py [--repeat 15] [--traces 5] [--rows 0 5]

Predicted: one process with a device for each mesh traces the step, task after task, so that each is measured alone;
two processes that only send measure what a message takes. From these `jaxpp.planning` predicts the step, as it does
for devices that are not here: each mesh runs its tasks in order, each as soon as its operands are there; meshes whose
processes share a core share its time. Measured: as many processes as there are meshes, each with one thread for XLA, on
a core of its own, or, where there are fewer cores, on one with as few others as there have to be; from when the first
process begins a step until the last one has its results, the median of all repetitions. Run it on an idle machine.
"""

import argparse
import json
import operator
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from processes import free_port, join, one_thread
from processes_models import LAYERS, Model, Tree
from processes_runs import globally
from truth_sharing import shared_step

import jaxpp
from jaxpp import schedules
from jaxpp.planning import CHIPS, Efficiency, Link, Target
from jaxpp.planning.estimate import Network
from jaxpp.runtime import Call, Program
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.processes.job import gather

SIZES = {
    "mlp": ("mlp", 512, 2048, 1024),
    "wide": ("mlp", 1024, 3072, 512),
    "tf": ("tf", 256, 1024, 32),
    "narrow": ("tf", 128, 512, 96),
}
"""(kind of processes_models.py, width, hidden, rows or sequences of a step)."""


@dataclass(frozen=True)
class Case:
    """A row: a model, a schedule as text, how many processes, and microbatches."""

    model: str
    schedule: str
    processes: int
    microbatches: int = 8

    def __str__(self) -> str:
        return f"{self.model}, {self.schedule}, {self.processes} processes"


CASES = [
    Case("tf", "1f1b", 2),
    Case("mlp", "zb-h1", 2),
    Case("narrow", "interleaved-1f1b", 2),
    Case("wide", "gpipe", 2),
    Case("tf", "zb-v", 2),
    Case("tf", "1f1b", 4),
    Case("mlp", "zb-h1", 4),
    Case("narrow", "interleaved-1f1b", 4),
    Case("wide", "gpipe", 4),
    Case("mlp", "zb-v", 4),
]
SENDS, HOPS = (1, 1 << 16), 32
"""How many numbers the messages have by which links are measured, and how many go to and fro."""

Seconds = Mapping[str, float]
"""By function, of one call."""


def plan_of(case: Case) -> schedules.Schedule:
    """The schedule of a case."""
    return schedules.make(case.schedule, meshes=case.processes, microbatches=case.microbatches)


def step_of(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The compiled training step of a case on one device for each mesh, and its arguments."""
    kind, width, hidden, batch = SIZES[case.model]
    model = Model(kind, case.microbatches, width, hidden, batch, 1e-3)
    plan = plan_of(case)

    def loss(parameters: Tree, microbatch: Tree) -> jax.Array:
        (blocks, before, after), (x, y) = parameters, microbatch
        x, each = model.first(before, x), LAYERS // plan.stages
        for stage in range(plan.stages - 1):
            x = jaxpp.mark_stage_end(model.blocks(blocks[stage * each : stage * each + each], x))
        return jaxpp.mark_stage_end(model.loss(after, model.blocks(blocks[-each:], x), y))

    def step(parameters: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        gradient = partial(jax.value_and_grad(loss), parameters)
        total, gradients = jaxpp.treduce(gradient, batch, schedule=plan, operation=(jaxpp.Add, jaxpp.Add))
        return model.update(parameters, gradients), total / model.microbatches

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[: case.processes]), ("mpmd",)), "mpmd")
    compiled = jaxpp.mpmd_jit_with_loop(step, mesh, donate_argnums=0).compile(model.parameters(), model.data())
    shardings = jax.tree.map(operator.attrgetter("sharding"), compiled.in_shardings[0])
    return compiled, jax.tree.map(globally, (model.parameters(), model.data()), shardings)


def chain(numbers: int) -> tuple[Any, Any]:
    """A compiled function of so many numbers that go to and fro between two meshes, and its argument."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")

    def function(x: jax.Array) -> jax.Array:
        for _ in range(HOPS):
            x = jaxpp.mark_stage_end(x + 1)
        return x

    compiled = jaxpp.mpmd_jit_by_yield(function, mesh).compile(np.zeros(numbers, np.float32))
    sharding = jax.tree.leaves(compiled.in_shardings)[0].sharding
    return compiled, globally(np.zeros(numbers, np.float32), sharding)


def trace(case: Case, traces: int) -> tuple[Program, Seconds]:
    """The program of a case, and how long each function takes alone: the median over its calls in all steps but one."""
    compiled, (state, batch) = step_of(case)
    program = compiled.executable.program
    calls = [each.function for _, each in merged_order(program) if isinstance(each, Call)]
    found: dict[str, list[float]] = {}
    for number in range(traces + 1):
        (state, _), events = compiled.trace(state, batch)
        tasks = (each.seconds for each in events if each.target is None)
        for name, seconds in zip(calls, tasks, strict=True):
            if number:
                found.setdefault(name, []).append(seconds)
    return program, {name: statistics.median(seconds) for name, seconds in found.items()}


def trace_chain(numbers: int, traces: int) -> float:
    """How long a task of the chain takes alone."""
    compiled, x = chain(numbers)
    steps = [compiled.trace(x)[1] for _ in range(traces + 1)]
    return statistics.median(each.seconds for events in steps[1:] for each in events if each.target is None)


def hop(numbers: int, repeat: int) -> tuple[float, float]:
    """In two processes: how long a task and a message of the chain take, and of the processor of both together."""
    compiled, x = chain(numbers)
    walls: list[float] = []
    works: list[float] = []
    for _ in range(repeat + 1):
        gather("")
        begin, busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(compiled(x))
        walls.append(max(float(each) for each in gather(str(time.perf_counter() - begin))))
        works.append(sum(float(each) for each in gather(str(time.process_time() - busy))))
    return statistics.median(walls[1:]) / HOPS, statistics.median(works[1:]) / HOPS


def measure(case: Case, repeat: int) -> list[float]:
    """In all processes: from when the first begins a step until the last has its results, of each step but one."""
    compiled, (state, batch) = step_of(case)
    found: list[tuple[float, float]] = []
    for _ in range(repeat + 1):
        gather("")
        begin = time.perf_counter()  # of the machine, not of the process
        state, _ = compiled(state, batch)
        jax.block_until_ready(state)
        found.append((begin, time.perf_counter()))
    turns = zip(*map(json.loads, gather(json.dumps(found))), strict=True)
    return [max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in turns][1:]


def line(sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """What messages of two sizes take, as a latency and a bandwidth; neither is less than nothing."""
    bandwidth = (sizes[1] - sizes[0]) / max(seconds[1] - seconds[0], 1e-12)
    return Link(bandwidth, max(seconds[0] - sizes[0] / bandwidth, 0.0))


def network_of(link: Link, meshes: int) -> Network:
    """This machine, with processes for so many meshes, whose messages take `link`."""
    chip = replace(CHIPS["cpu"], inside=link, efficiency=Efficiency(links=1.0))
    return Network(Target("this machine", chip, ()), (frozenset((0,)),) * meshes)


def spawn(processes: int, devices: int, job: Sequence[object], options: Sequence[object]) -> Any:
    """Run this script in so many processes that do a job; what the first of them answers."""
    place, environment = f"127.0.0.1:{free_port()}", one_thread(devices)
    command = [sys.executable, __file__, *map(str, options), "--job", *map(str, job), "--place", place]
    children = [
        subprocess.Popen([*command, str(processes), str(number)], env=environment, stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    try:
        answers = [child.communicate()[0] for child in children]
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        sys.exit(f"truth.py: {' '.join(map(str, job))} failed")
    return json.loads(answers[0].splitlines()[-1])


def be_process(job: Sequence[str], place: str, processes: int, number: int, options: argparse.Namespace) -> Any:
    """Do what `spawn` asks for, on a core of its own, or shared by as few processes as there have to be."""
    cores = join(place, processes, number)
    match job:
        case ["task", numbers]:
            return trace_chain(int(numbers), options.traces)
        case ["hop", numbers]:
            return hop(int(numbers), options.repeat)
        case ["steps", row]:
            return measure(CASES[int(row)], options.repeat)
        case _:
            _, row, *links = job
            link, ends = (Link(*map(float, links[each : each + 2])) for each in (0, 2))
            program, seconds = trace(CASES[int(row)], options.traces)
            processors = [mesh % len(cores) for mesh in range(program.meshes)]
            return shared_step(program, seconds, network_of(link, program.meshes), ends, processors)


def links(given: Sequence[object]) -> tuple[Link, Link]:
    """What a message takes between two processes, and what the processor of each works for it."""
    tasks = [spawn(1, 2, ("task", numbers), given) for numbers in SENDS]
    hops = [spawn(2, 1, ("hop", numbers), given) for numbers in SENDS]
    sizes = [4 * numbers for numbers in SENDS]
    link = line(sizes, [wall - task for (wall, _), task in zip(hops, tasks, strict=True)])
    return link, line(sizes, [(work - task) / 2 for (_, work), task in zip(hops, tasks, strict=True)])


def main() -> None:
    """Print the table, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15, help="steps of each row that are measured")
    parser.add_argument("--traces", type=int, default=5, help="steps of each row that are traced")
    parser.add_argument("--rows", type=int, nargs="+", default=range(len(CASES)), help="only these, from 0 on")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--place", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        place, processes, number = options.place
        print(json.dumps(be_process(options.job, place, int(processes), int(number), options)), flush=True)
        return
    given = "--repeat", options.repeat, "--traces", options.traces
    link, ends = links(given)
    print(f"a message takes {1e6 * link.latency:.0f} us and {link.bandwidth / 1e9:.2f} GB/s,")
    print(f"each end of it works {1e6 * ends.latency:.0f} us and {ends.bandwidth / 1e9:.2f} GB/s\n")
    print("| model | schedule | processes | predicted ms | measured | quartiles | measured / predicted |")
    print("|---|---|---:|---:|---:|---|---:|", flush=True)
    ratios: list[float] = []
    for row in options.rows:
        case = CASES[row]
        numbers = link.bandwidth, link.latency, ends.bandwidth, ends.latency
        told = spawn(1, case.processes, ("predict", row, *numbers), given)
        low, middle, high = np.percentile(spawn(case.processes, 1, ("steps", row), given), (25, 50, 75))
        ratios.append(middle / told)
        print(
            f"| {case.model} | {case.schedule} | {case.processes} | {1e3 * told:.0f} | {1e3 * middle:.0f} "
            f"| {1e3 * low:.0f}, {1e3 * high:.0f} | {middle / told:.3f} |",
            flush=True,
        )
    errors = [abs(ratio - 1) for ratio in ratios]
    print(f"\nerror: median {statistics.median(errors):.1%}, largest {max(errors):.1%}; ratios from {min(ratios):.3f}")
    print(f"to {max(ratios):.3f}, their spread (standard deviation) {np.std(ratios):.3f}")


if __name__ == "__main__":
    main()

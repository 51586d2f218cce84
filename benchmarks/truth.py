"""Is a predicted step as long as a measured one? Pipelines, FSDP and tensor parallelism in two and four processes.

    python benchmarks/truth.py [--repeat 15] [--traces 5] [--shrink 1] [--rows 0 5]

Predicted: one process with a device for each process of the job traces the step, task by task, so that each task is
measured alone. Processes that only send, or only sum, measure messages and collectives. From these `jaxpp.planning`
predicts the step; meshes whose processes share a core share its time. Measured: a process with one thread for XLA for
each device, on a core of its own, or, with fewer cores, shared with as few others as possible. A step counts from when
the first process begins it until the last one has its results; the median counts. Run it on an idle machine. With
`--shrink 8` batches are eight times as small.
"""

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from processes import free_port
from processes_models import LAYERS, Model, Tree
from processes_runs import globally
from shared import parser, show
from truth_sharing import shared_step

import jaxpp
from jaxpp import distributed, schedules
from jaxpp.planning import CHIPS, Efficiency, Link, Target
from jaxpp.planning.compiling import compile_now
from jaxpp.planning.estimate import Network
from jaxpp.runtime import Call, Program
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.processes.job import gather

SIZES = {
    "mlp": ("mlp", 512, 2048, 1024),
    "wide": ("mlp", 1024, 3072, 512),
    "tf": ("tf", 256, 1024, 64),
    "narrow": ("tf", 128, 512, 128),
}
"""(kind of processes_models.py, width, hidden, rows or sequences of a step)."""


@dataclass(frozen=True)
class Case:
    """A row: a model, a schedule of a pipeline or "fsdp" or "tensor", the number of processes, and microbatches."""

    model: str
    way: str
    processes: int
    microbatches: int = 8

    @property
    def stages(self) -> int:
        """The number of meshes; each process is one, or all of them are one."""
        return 1 if self.way in ("fsdp", "tensor") else self.processes


CASES = [
    Case("tf", "1f1b", 2),
    Case("mlp", "zb-h1", 2),
    Case("narrow", "interleaved-1f1b", 4),
    Case("wide", "gpipe", 4),
    Case("tf", "fsdp", 2, 2),
    Case("mlp", "fsdp", 2, 2),
    Case("wide", "fsdp", 4, 1),
    Case("tf", "tensor", 2, 4),
    Case("mlp", "tensor", 2, 4),
    Case("wide", "tensor", 4, 2),
]
SENDS, HOPS = (1, 1 << 16), 32
"""The numbers in the messages by which links are measured, and how many messages go to and fro."""

Seconds = Mapping[str, float]
"""The seconds of a call of each function."""


def main() -> None:
    """Prints the table, or is one of the processes."""
    flags = parser(__doc__, repeat=15, traces=5, shrink=1)
    flags.add_argument("--rows", type=int, nargs="+", default=range(len(CASES)), help="only these, from 0 on")
    flags.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    flags.add_argument("--place", nargs=3, help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.job:
        place, processes, number = options.place
        print(json.dumps(be_process(options.job, place, int(processes), int(number), options)), flush=True)
        return
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n")
    errors: list[float] = []
    heads = ("model", "way", "processes", "predicted ms", "measured", "quartiles", "measured / predicted")
    show(heads, rows(options, errors), words=2)
    print(f"\nerror: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")


def rows(options: argparse.Namespace, errors: list[float]) -> Iterator[Sequence[object]]:
    """Yields the rows, and appends their errors."""
    given = "--repeat", options.repeat, "--traces", options.traces, "--shrink", options.shrink
    links = messages(given) if any(CASES[row].stages > 1 for row in options.rows) else []
    sums: dict[tuple[int, bool], list[float]] = {}
    for row in options.rows:
        case = CASES[row]
        count = case.processes
        if case.stages == 1 and (count, True) not in sums:
            sums[count, True], sums[count, False] = (collective(*each, given) for each in ((count, 1), (1, count)))
        costs = links if case.stages > 1 else [*sums[count, True], *sums[count, False]]
        expected = spawn(1, count, ("predict", row, *costs), given)
        low, middle, high = np.percentile(spawn(count, 1, ("steps", row), given), (25, 50, 75))
        errors.append(abs(middle / expected - 1))
        spread = f"{1e3 * low:.0f}, {1e3 * high:.0f}"
        yield (
            case.model,
            case.way,
            count,
            f"{1e3 * expected:.0f}",
            f"{1e3 * middle:.0f}",
            spread,
            f"{middle / expected:.3f}",
        )


def messages(given: Sequence[object]) -> list[float]:
    """Returns the bandwidth and the latency of a message between processes, and of the work at each of its ends."""
    tasks = [spawn(1, 2, ("task", numbers), given) for numbers in SENDS]
    hops = [spawn(2, 1, ("hop", numbers), given) for numbers in SENDS]
    sizes = [4.0 * numbers for numbers in SENDS]
    link = line(sizes, [wall - task for (wall, _), task in zip(hops, tasks, strict=True)])
    ends = line(sizes, [(work - task) / 2 for (_, work), task in zip(hops, tasks, strict=True)])
    print(f"a message takes {1e6 * link.latency:.0f} us and {link.bandwidth / 1e9:.2f} GB/s,")
    print(f"each end of it works {1e6 * ends.latency:.0f} us and {ends.bandwidth / 1e9:.2f} GB/s\n")
    return [link.bandwidth, link.latency, ends.bandwidth, ends.latency]


def collective(processes: int, devices: int, given: Sequence[object]) -> list[float]:
    """Returns the bandwidth and the latency of a sum over the devices of these processes."""
    count = processes * devices
    seconds = [spawn(processes, devices, ("sum", numbers), given) for numbers in SENDS]
    found = line([2 * (count - 1) / count * 4.0 * numbers for numbers in SENDS], seconds)
    return [found.bandwidth, found.latency]


def line(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Returns what messages of two sizes take, as a latency and a bandwidth of at least 0."""
    bandwidth = (sizes[1] - sizes[0]) / max(seconds[1] - seconds[0], 1e-12)
    return Link(bandwidth, max(seconds[0] - sizes[0] / bandwidth, 0.0))


def spawn(processes: int, devices: int, job: Sequence[object], given: Sequence[object]) -> Any:
    """Runs this script in so many processes that do a job; returns the answer of the first of them."""
    flags = {"PJRT_NPROC": str(devices), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    environment = {**os.environ, **flags, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, *map(str, given), "--job", *map(str, job), "--place", place, str(processes)]
    children = [
        subprocess.Popen([*command, str(number)], env=environment, stdout=subprocess.PIPE, text=True)
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
    """Does a job. A process of several has a core of its own, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    if processes > 1:
        os.sched_setaffinity(0, {cores[number % len(cores)]})
        distributed.initialize(place, processes, number)
    match job:
        case ["task", numbers]:
            return trace_chain(int(numbers), options.traces)
        case ["hop", numbers]:
            return hop(int(numbers), options.repeat)
        case ["sum", numbers]:
            return summed(int(numbers), options.repeat)
        case ["steps", row]:
            return measure(CASES[int(row)], options)
        case _:
            _, row, *numbers = job
            first, second = (Link(*map(float, numbers[each : each + 2])) for each in (0, 2))
            return predicted(CASES[int(row)], options, first, second, len(cores))


def step_of(case: Case, shrink: int) -> tuple[Any, tuple[Any, ...]]:
    """Returns the compiled training step of a case, and its arguments."""
    kind, width, hidden, batch = SIZES[case.model]
    model = Model(kind, case.microbatches, width, hidden, batch // shrink, 1e-3)
    schedule = "gpipe" if case.stages == 1 else case.way
    plan = schedules.make(schedule, meshes=case.stages, microbatches=case.microbatches)
    shape = case.stages, case.processes // case.stages
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[: case.processes]).reshape(shape), ("mpmd", "all")), "mpmd")
    rows = P("all") if case.way == "fsdp" else P()

    def loss(parameters: Tree, microbatch: Tree) -> jax.Array:
        (blocks, before, after), (x, y) = parameters, microbatch
        x, each = model.first(before, x), LAYERS // plan.stages
        for number, block in enumerate(blocks):
            if number and number % each == 0:
                x = jaxpp.mark_stage_end(x)
            x = jax.lax.with_sharding_constraint(model.blocks([block], x), NamedSharding(mesh.jax_mesh, rows))
        return jaxpp.mark_stage_end(model.loss(after, x, y))

    def step(parameters: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        gradient = partial(jax.value_and_grad(loss), parameters)
        total, gradients = jaxpp.treduce(gradient, batch, schedule=plan, operation=(jaxpp.Add, jaxpp.Add))
        return model.update(parameters, gradients), total / model.microbatches

    parameters, data = model.parameters(), model.data()
    specs = jax.tree_util.tree_map_with_path(partial(spec_of, case.way), parameters)
    pinned: dict[str, Any] = {}
    if case.stages == 1:
        pinned = {"in_shardings": (specs, P(None, *rows)), "out_shardings": (specs, P())}
    compiled = jaxpp.mpmd_jit_with_loop(step, mesh, donate_argnums=0, **pinned).compile(parameters, data)
    shardings = jax.tree.map(operator.attrgetter("sharding"), compiled.in_shardings[0])
    return compiled, jax.tree.map(globally, (parameters, data), shardings)


def spec_of(way: str, path: tuple[Any, ...], leaf: np.ndarray) -> P:
    """Returns the sharding of a weight: by rows for FSDP, of the hidden units for tensor parallelism."""
    names = [getattr(each, "key", "") for each in path]
    if way == "fsdp":
        return P("all") if leaf.ndim == 2 else P()
    if way != "tensor" or not {"up", "down"} & {*names}:
        return P()
    return P(*([None] * (leaf.ndim - 1)), "all") if "up" in names else P("all") if leaf.ndim == 2 else P()


def predicted(case: Case, options: argparse.Namespace, first: Link, second: Link, cores: int) -> float:
    """Returns the predicted seconds of a step.

    Args:
        case: the case.
        options: the flags.
        first: a message, or a collective of the processes.
        second: the work at each end of a message, or a collective of the devices of one process.
        cores: the number of cores.
    """
    program, seconds = trace(case, options)
    if case.stages > 1:
        processors = [mesh % cores for mesh in range(program.meshes)]
        return shared_step(program, seconds, network_of(first, program.meshes), second, processors)
    devices = jaxpp.target("cpu", devices=case.processes).devices
    more: dict[str, float] = {}
    for name in seconds:
        sent = compile_now(program.functions[name].bytecode, devices, {}, ())
        times = [sent.collectives * each.latency + sent.collective_bytes / each.bandwidth for each in (first, second)]
        more[name] = seconds[name] + times[0] - times[1]
    return shared_step(program, more, network_of(first, 1), first, [0])


def network_of(link: Link, meshes: int) -> Network:
    """Returns this machine, with processes for so many meshes, whose messages take `link`."""
    chip = replace(CHIPS["cpu"], inside=link, efficiency=Efficiency(links=1.0))
    return Network(Target("this machine", chip, ()), (frozenset((0,)),) * meshes)


def trace(case: Case, options: argparse.Namespace) -> tuple[Program, Seconds]:
    """Returns the program of a case, and how long each function takes alone: the median over its calls."""
    compiled, (state, batch) = step_of(case, options.shrink)
    program = compiled.executable.program
    calls = [each.function for _, each in merged_order(program) if isinstance(each, Call)]
    found: dict[str, list[float]] = {}
    for number in range(options.traces + 1):
        (state, _), events = compiled.trace(state, batch)
        tasks = (each.seconds for each in events if each.target is None)
        for name, seconds in zip(calls, tasks, strict=True):
            if number:
                found.setdefault(name, []).append(seconds)
    return program, {name: statistics.median(seconds) for name, seconds in found.items()}


def measure(case: Case, options: argparse.Namespace) -> list[float]:
    """Returns, from all processes, the seconds from the first begin of a step until the last result."""
    compiled, (state, batch) = step_of(case, options.shrink)
    found: list[tuple[float, float]] = []
    for _ in range(options.repeat + 1):
        gather("")
        begin = time.perf_counter()  # of the machine, not of the process
        state, _ = compiled(state, batch)
        jax.block_until_ready(state)
        found.append((begin, time.perf_counter()))
    turns = zip(*map(json.loads, gather(json.dumps(found))), strict=True)
    return [max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in turns][1:]


def chain(numbers: int) -> tuple[Any, Any]:
    """Returns a compiled function of numbers that go to and fro between two meshes, and its argument."""
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")

    def function(x: jax.Array) -> jax.Array:
        for _ in range(HOPS):
            x = jaxpp.mark_stage_end(x + 1)
        return x

    compiled = jaxpp.mpmd_jit_by_yield(function, mesh).compile(np.zeros(numbers, np.float32))
    sharding = jax.tree.leaves(compiled.in_shardings)[0].sharding
    return compiled, globally(np.zeros(numbers, np.float32), sharding)


def trace_chain(numbers: int, traces: int) -> float:
    """Returns how long a task of the chain takes alone."""
    compiled, x = chain(numbers)
    steps = [compiled.trace(x)[1] for _ in range(traces + 1)]
    return statistics.median(each.seconds for events in steps[1:] for each in events if each.target is None)


def hop(numbers: int, repeat: int) -> tuple[float, float]:
    """Returns how long a task and a message take in two processes, and the processor time of both together."""
    compiled, x = chain(numbers)
    return medians(partial(compiled, x), repeat)


def summed(numbers: int, repeat: int) -> float:
    """Returns how long a sum over all devices takes."""
    mesh = Mesh(np.array(jax.devices()), ("all",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P("all"), out_specs=P("all"))
    def sums(x: jax.Array) -> jax.Array:
        for _ in range(HOPS):
            x = jax.lax.pcast(jnp.tanh(jax.lax.psum(x, "all")), "all", to="varying")
        return x

    x = globally(np.zeros(numbers * mesh.size, np.float32), NamedSharding(mesh, P("all")))
    return medians(partial(sums, x), repeat)[0]


def medians(run: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Returns the median seconds of one of the `HOPS` of a run: by the clock, and of all processors together."""
    found: list[tuple[float, float]] = []
    for _ in range(repeat + 1):
        told("")
        begin, busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(run())
        took = told(json.dumps((time.perf_counter() - begin, time.process_time() - busy)))
        wall, work = zip(*map(json.loads, took), strict=True)
        found.append((max(wall) / HOPS, sum(work) / HOPS))
    return statistics.median(each[0] for each in found[1:]), statistics.median(each[1] for each in found[1:])


def told(text: str) -> list[str]:
    """Returns the texts of all processes."""
    return [text] if jax.process_count() == 1 else gather(text)


if __name__ == "__main__":
    main()

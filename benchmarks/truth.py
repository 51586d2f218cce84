"""Is a predicted step as long as a measured one? Pipelines, FSDP and tensor parallelism in two and four processes.

    python benchmarks/truth.py [--repeat 15] [--shrink 1] [--rows 0 5]

Predicted: the processes of a pipeline trace the step, which waits for each task. The processor time of tasks counts, so
they compete for memory as in a step, but not for a core. Processes that only send measure messages. For FSDP and tensor
parallelism one process with all devices traces the step. Each of its collectives is measured between products, which
fill the mean time between two collectives of the step, once in processes and once in one; the difference is added. From
these `jaxpp.planning` predicts the step, once for each traced one; meshes whose processes share a core share its time.

Measured: a process for each device, with one thread for XLA, on a core of its own, or, with fewer cores, shared with as
few others as possible. A step counts from when the first process begins it until the last one has its results.

Traced and measured steps take turns, as a machine's neighbours slow it down for seconds; medians count. Run it on an
idle machine. With `--shrink 8` batches are eight times as small.
"""

import argparse
import contextlib
import json
import operator
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
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
from jaxpp._absent import compile_only
from jaxpp.planning import CHIPS, Efficiency, Link, Target
from jaxpp.planning.collectives import COLLECTIVE, result_bytes
from jaxpp.planning.estimate import Network
from jaxpp.runtime import Program
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
SENDS, HOPS = (1, 1 << 18), 16
"""The numbers in the messages by which links are measured, and how many messages go to and fro."""


def main() -> None:
    """Prints the table, or is one of the processes."""
    flags = parser(__doc__, repeat=15, shrink=1)
    flags.add_argument("--rows", type=int, nargs="+", default=range(len(CASES)), help="only these, from 0 on")
    flags.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    flags.add_argument("--place", nargs=3, help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.job:
        place, processes, number = options.place
        be_process(options.job, place, int(processes), int(number), options)
        return
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n")
    errors: list[float] = []
    heads = ("model", "way", "processes", "predicted ms", "measured", "quartiles", "measured / predicted")
    show(heads, rows(options, errors), words=2)
    print(f"\nerror: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")


def rows(options: argparse.Namespace, errors: list[float]) -> Iterator[Sequence[object]]:
    """Yields the rows, and appends their errors."""
    given = "--repeat", options.repeat, "--shrink", options.shrink
    links = messages(given) if any(CASES[row].stages > 1 for row in options.rows) else [1.0] * 4
    for row in options.rows:
        case = CASES[row]
        expected, seconds = tried(row, options.repeat, links, given)
        low, middle, high = np.percentile(seconds, (25, 50, 75))
        errors.append(abs(middle / expected - 1))
        spread = f"{1e3 * low:.0f}, {1e3 * high:.0f}"
        numbers = f"{1e3 * expected:.0f}", f"{1e3 * middle:.0f}", spread, f"{middle / expected:.3f}"
        yield case.model, case.way, case.processes, *numbers


def tried(row: int, turns: int, links: Sequence[float], given: Sequence[object]) -> tuple[float, list[float]]:
    """Returns the predicted seconds of the step of a row, and the measured ones."""
    case = CASES[row]
    processes, devices = (1, case.processes) if case.stages == 1 else (case.processes, 1)
    with (
        running(processes, devices, ("predict", row, *links), given, threads=devices) as some,
        running(case.processes, 1, ("steps", row), given) as all_,
    ):
        (expected, sent), seconds = [(ask(some), ask(all_)) for _ in range(turns)][-1]
    if sent:
        job = "sums", expected / sum(sent.values()), *sent
        apart = once(case.processes, 1, job, given)
        within = once(1, case.processes, job, given, case.processes)
        expected += sum(map(operator.mul, sent.values(), map(operator.sub, apart, within)))
    return expected, seconds


def messages(given: Sequence[object]) -> list[float]:
    """Returns the bandwidth and the latency of a message between processes, and of the work at each of its ends."""
    tasks = [once(1, 2, ("task", numbers), given) for numbers in SENDS]
    hops = [once(2, 1, ("hop", numbers), given) for numbers in SENDS]
    sizes = [4.0 * numbers for numbers in SENDS]
    link = line(sizes, [wall - task for (wall, _), task in zip(hops, tasks, strict=True)])
    ends = line(sizes, [(work - task) / 2 for (_, work), task in zip(hops, tasks, strict=True)])
    print(f"a message takes {1e6 * link.latency:.0f} us and {link.bandwidth / 1e9:.2f} GB/s,")
    print(f"each end of it works {1e6 * ends.latency:.0f} us and {ends.bandwidth / 1e9:.2f} GB/s\n")
    return [link.bandwidth, link.latency, ends.bandwidth, ends.latency]


def line(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Returns what messages of two sizes take, as a latency and a bandwidth of at least 0."""
    bandwidth = (sizes[1] - sizes[0]) / max(seconds[1] - seconds[0], 1e-12)
    return Link(bandwidth, max(seconds[0] - sizes[0] / bandwidth, 0.0))


Children = Sequence["subprocess.Popen[str]"]

OWN_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Makes glibc keep what is freed. Otherwise Linux clears 48 MB for some tasks, and steps differ by a tenth."""


@contextlib.contextmanager
def running(
    processes: int, devices: int, job: Sequence[object], given: Sequence[object], threads: int = 1
) -> Generator[Children]:
    """Starts this script in processes of so many devices and threads of XLA, which do a job whenever they are asked."""
    flags = {"PJRT_NPROC": str(threads), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    environment = {**os.environ, **flags, **OWN_MEMORY, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, *map(str, given), "--job", *map(str, job), "--place", place, str(processes)]
    children = [
        subprocess.Popen(
            [*command, str(number)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    try:
        yield children
        for child in children:
            if child.stdin:
                child.stdin.close()
        for child in children:
            child.wait()
    finally:
        for child in children:
            child.kill()


def ask(children: Children) -> Any:
    """Returns the next answer of the first process, after all have answered."""
    for child in children:
        print(file=child.stdin, flush=True)
    answers = [child.stdout.readline() for child in children if child.stdout]
    if not all(answers):
        sys.exit(f"truth.py: {children[0].args} failed")
    return json.loads(answers[0])


def once(processes: int, devices: int, job: Sequence[object], given: Sequence[object], threads: int = 1) -> Any:
    """Returns the only answer of a job."""
    with running(processes, devices, job, given, threads) as children:
        return ask(children)


def be_process(job: Sequence[str], place: str, processes: int, number: int, options: argparse.Namespace) -> None:
    """Does a job whenever it is asked. A process with one thread has a core of its own, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    if os.environ["PJRT_NPROC"] == "1":
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    if processes > 1:
        distributed.initialize(place, processes, number)
        lower_gloo()
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # Gloo prints
        for answer in answers_of(job, options, len(cores)):
            if not sys.stdin.readline():
                return
            print(json.dumps(answer()), file=replies, flush=True)


def lower_gloo() -> None:
    """Gives Gloo's thread a low priority. If there is none, the benchmark ends with a message.

    On the core of XLA's thread it may spin for a whole time slice of Linux on a lock which that thread holds, and so
    keep that thread from releasing it.
    """
    jax.devices()  # starts it, and none of those that transfer values
    own, found = {each.native_id for each in threading.enumerate()}, 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            is_grpcs = (thread / "comm").read_text() == "event_engine\n"
            if int(thread.name) not in own and not is_grpcs and "poll" in (thread / "wchan").read_text():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
                found += 1
    if not found:
        sys.exit("truth.py: found no thread of Gloo in /proc/self/task")


def answers_of(job: Sequence[str], options: argparse.Namespace, cores: int) -> Iterator[Callable[[], Any]]:
    """Yields what answers, as often as it is asked."""
    match job:
        case ["task", numbers]:
            yield partial(trace_chain, int(numbers), options.repeat)
        case ["hop", numbers]:
            yield partial(hop, int(numbers), options.repeat)
        case ["sums", seconds, *kinds]:
            yield partial(exchanged, kinds, float(seconds), options.repeat)
        case ["steps", row]:
            yield from repeat(partial(next, measure(CASES[int(row)], options)))
        case _:
            _, row, *numbers = job
            first, second = (Link(*map(float, numbers[each : each + 2])) for each in (0, 2))
            yield from repeat(partial(next, predicted(CASES[int(row)], options, first, second, cores)))


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


def predicted(case: Case, options: argparse.Namespace, link: Link, ends: Link, cores: int) -> Iterator[Any]:
    """Yields the predicted seconds of a step, from more traced steps each time, and its collectives.

    Args:
        case: the case.
        options: the flags.
        link: a message.
        ends: the work at each end of a message.
        cores: the number of cores.
    """
    compiled, (state, batch) = step_of(case, options.shrink)
    program = compiled.executable.program
    calls, sent = Counter(each.function for called in program.calls for each in called), Counter[str]()
    for name, count in calls.items():
        for kind, size in collectives_of(case, program, name):
            sent[f"{kind} {size:.0f}"] += count
    processors, network = [mesh % cores for mesh in range(program.meshes)], network_of(link, program.meshes)
    steps: list[float] = []
    (state, _), _ = compiled.trace(state, batch)
    while True:
        (state, _), events = compiled.trace(state, batch)
        seconds: list[list[float]] = [[] for _ in range(program.meshes)]
        for each in events:
            if each.target is None:
                seconds[each.mesh].append(each.seconds if case.stages == 1 else each.processor_seconds)
        steps.append(shared_step(program, seconds, network, ends, processors))
        yield statistics.median(steps), sent


def collectives_of(case: Case, program: Program, name: str) -> list[tuple[str, float]]:
    """Returns the kinds and the bytes of the collectives of a function."""
    if case.stages > 1:
        return []
    devices = jaxpp.target("cpu", devices=case.processes).devices
    modules = compile_only(program.functions[name].bytecode, devices, {}, ()).hlo_modules()
    found = (each for module in modules for each in COLLECTIVE.finditer(module.to_string()))
    return [(each["kind"], result_bytes(each)) for each in found]


def network_of(link: Link, meshes: int) -> Network:
    """Returns this machine, with processes for so many meshes, whose messages take `link`."""
    chip = replace(CHIPS["cpu"], inside=link, efficiency=Efficiency(links=1.0))
    return Network(Target("this machine", chip, ()), (frozenset((0,)),) * meshes)


def measure(case: Case, options: argparse.Namespace) -> Iterator[list[float]]:
    """Yields, from all processes, the seconds from the first begin of a step until the last result, of each so far."""
    compiled, (state, batch) = step_of(case, options.shrink)
    found: list[tuple[float, float]] = []
    while True:
        gather("")
        begin = time.perf_counter()  # of the machine, not of the process
        state, _ = compiled(state, batch)
        jax.block_until_ready(state)
        found.append((begin, time.perf_counter()))
        if len(found) > 1:
            turns = zip(*map(json.loads, gather(json.dumps(found[1:]))), strict=True)
            yield [max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in turns]


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
    return medians([partial(compiled, x)], repeat)[0]


def exchanged(collectives: Sequence[str], seconds: float, repeat: int) -> list[float]:
    """Returns how long each of these collectives over all devices takes: a kind, and the bytes of a device's result.

    seconds: about how long the products between two of them take.
    """
    mesh, found = Mesh(np.array(jax.devices()), ("all",)), list[float]()

    def compiled(kind: str, own: int, products: int) -> Callable[[], jax.Array]:
        x, square = (np.full(size, 1e-3, np.float32) for size in (own * mesh.size, (512, 512)))
        function = partial(exchange, kind, mesh.size, products)
        mapped = jax.shard_map(function, mesh=mesh, in_specs=(P("all"), P()), out_specs=P("all"), check_vma=False)
        place = partial(NamedSharding, mesh)
        return partial(jax.jit(mapped), globally(x, place(P("all"))), globally(square, place(P())))

    ((product, _),) = medians([compiled("", 1, 1)], repeat)
    products = max(round(seconds / product), 1)
    for kind, size in map(str.split, collectives):
        own = max(int(size) // 4 // (mesh.size if kind == "all-gather" else 1), 1)
        with_it, without = medians([compiled(each, own, products) for each in (kind, "")], repeat)
        found.append(with_it[0] - without[0])
    return found


def exchange(kind: str, devices: int, products: int, x: jax.Array, square: jax.Array) -> jax.Array:
    """Returns what is left of a device's numbers after so many collectives, with products between them."""
    for _ in range(HOPS):
        match kind:
            case "":
                y = x
            case "all-reduce":
                y = jax.lax.psum(x, "all")
            case "all-gather":
                y = jax.lax.all_gather(x, "all", tiled=True)
                y = y[: x.size] + y[-x.size :]
            case "reduce-scatter":
                y = jax.lax.psum_scatter(jnp.tile(x, devices), "all", tiled=True)
            case "all-to-all":
                y = jax.lax.all_to_all(x, "all", 0, 0, tiled=True)
            case _:
                y = jax.lax.ppermute(x, "all", [(each, (each + 1) % devices) for each in range(devices)])
        square += y[0]
        for _ in range(products):
            square = jnp.dot(square, square)
        x = jnp.tanh(y + square[0, 0])
    return x


def medians(runs: Sequence[Callable[[], Any]], repeat: int) -> list[tuple[float, float]]:
    """Returns the median seconds of one of the `HOPS` of each run: by the clock, and of all processors together."""
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(repeat + 1):
        for run, times in zip(runs, found, strict=True):
            told("")
            begin, busy = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            took = told(json.dumps((time.perf_counter() - begin, time.process_time() - busy)))
            wall, work = zip(*map(json.loads, took), strict=True)
            times.append((max(wall) / HOPS, sum(work) / HOPS))
    return [
        (statistics.median(wall), statistics.median(work))
        for wall, work in (zip(*each[1:], strict=True) for each in found)
    ]


def told(text: str) -> list[str]:
    """Returns the texts of all processes."""
    return [text] if jax.process_count() == 1 else gather(text)


if __name__ == "__main__":
    main()

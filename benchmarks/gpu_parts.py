"""Runs a part of gpu.py: `python gpu_parts.py PART SIZES` prints a JSON list [what, found, asked] for each row."""

import collections
import contextlib
import dataclasses
import importlib.util
import json
import operator
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shared
from jax.profiler import ProfileData
from jax.sharding import Mesh
from shared import example, ratios, sgd_step, spread

import jaxpp
from jaxpp import schedules

gpt_model = example("gpt_model")

STAGES = 4
RATE = 1e-3
SMALL = {"layers": 4, "width": 64, "heads": 4, "sequence": 32}
TRANSPORTS = ("pull", "device_put", "pair")
WORKER_SECONDS = 60
"""The most that processes which share the card may take: those that wait for one another do not end."""
OPTIONS: dict[str, Mapping[str, Any]] = {
    **{f"latency hiding {on}": {"xla_gpu_enable_latency_hiding_scheduler": on} for on in (False, True)},
    "no command buffers": {"xla_gpu_enable_command_buffer": ""},
    "command buffers for one kernel": {"xla_gpu_graph_min_graph_size": 1},
    "no Triton GEMM": {"xla_gpu_enable_triton_gemm": False},
    "autotuning off": {"xla_gpu_autotune_level": 0},
}
Step = Callable[..., Any]


def row(what: str, found: str, asked: str = "") -> None:
    """Prints a row of the table."""
    print(json.dumps([what, found, asked]), flush=True)


class Gpt:
    """A GPT, its text, and its training step: plain, or as a pipeline on the first device."""

    def __init__(
        self, sizes: Mapping[str, int], stages: int = STAGES, dtype: str | None = None, rate: float = RATE, **kind: Any
    ) -> None:
        """rate: of learning; kind: what else `gpt_model.Config` takes, which changes no result."""
        self.repeat, self.microbatches, self.rate = sizes["repeat"], sizes["microbatches"], rate
        self.on_gpu = jax.devices()[0].platform != "cpu"
        shape = (sizes[name] for name in ("layers", "width", "heads", "sequence"))
        self.whole = gpt_model.Config(stages, *shape, dtype or ("bfloat16" if self.on_gpu else "float32"))
        self.model = dataclasses.replace(self.whole, **kind)
        lengths = self.microbatches, sizes["batch"], self.model.sequence + 1
        self.text = jnp.array(np.random.default_rng(0).integers(256, size=lengths).astype(np.int32))
        self.initial = gpt_model.init(self.model, 0)

    def parameters(self) -> Any:
        """Returns new ones, on the device."""
        return jax.tree.map(jnp.array, self.initial)

    def plain(self) -> Step:
        """Returns a step that sums gradients by a loop in one program."""
        return jax.jit(partial(sgd_step, self.whole, "gpipe", self.rate), donate_argnums=0)

    def pipeline(self, schedule: Any = "1f1b", meshes: int = STAGES, **options: Any) -> Any:
        """Returns a step with its stages on `meshes` meshes, all of which are the first device."""
        return self.piped([jax.devices()[0]] * meshes, schedule, **options)

    def piped(self, devices: Sequence[Any], schedule: Any = "1f1b", **options: Any) -> Any:
        """Returns a step with its stages on these devices."""
        mesh = jaxpp.MpmdMesh.of([Mesh(np.array([device]), ("data",)) for device in devices])
        step = partial(sgd_step, self.model, schedule, self.rate)
        return jaxpp.mpmd_jit_with_loop(step, mesh, donate_argnums=0, **options)

    def tokens(self) -> int:
        """Returns the number of tokens that a step trains on."""
        return self.text.shape[0] * self.text.shape[1] * self.model.sequence

    def flops(self) -> float:
        """Returns the FLOPs of a step: six times parameters times tokens, and the products of attention."""
        size = sum(leaf.size for leaf in jax.tree.leaves(self.initial))
        return self.tokens() * (6 * size + 12 * self.model.layers * self.model.width * self.model.sequence)


def by_turns(steps: Mapping[str, Step], gpt: Gpt, texts: Mapping[str, Any] | None = None) -> dict[str, list[float]]:
    """Returns the seconds of each step, each with parameters of its own; of some with texts of their own.

    The card has those of one step at a time, the memory of the host the others: a step may fill it.
    Raises AssertionError where the losses of one text differ.
    """
    texts, states, places = texts or {}, dict[str, Any](), dict[str, Any]()
    losses: dict[str, list[float]] = {name: [] for name in steps}

    def run(name: str) -> float:
        place = places.get(name, jax.devices()[0])  # an array without a place would compile the second step anew
        state = jax.device_put(states.get(name, gpt.initial), place)
        jax.block_until_ready(state)
        begin = time.perf_counter()
        state, loss = steps[name](state, texts.get(name, gpt.text))
        jax.block_until_ready((state, loss))
        seconds = time.perf_counter() - begin
        losses[name].append(float(loss))
        places[name] = jax.tree.map(operator.attrgetter("sharding"), state)
        states[name] = jax.device_get(state)
        return seconds

    times = shared.by_turns({name: partial(run, name) for name in steps}, gpt.repeat)
    alike = [name for name in steps if name not in texts]
    for name in alike:
        np.testing.assert_allclose(losses[name], losses[alike[0]], rtol=2e-2 if gpt.on_gpu else 1e-5, err_msg=name)
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> str:
    """Returns the median of the ratios turn by turn, and their range."""
    return spread(ratios(times[name], times[base]))


TESTS = ("models", "optimizers", "loops", "recompute")


def tests(sizes: Mapping[str, int]) -> None:
    """Tests that compare models with `jax.jit`, their stages on one device; those of larger meshes skip themselves."""
    folder = Path(__file__).parents[1]
    files = [str(folder / "tests" / "unit" / "end_to_end" / f"test_{name}.py") for name in TESTS]
    given = {"JAX_NUM_CPU_DEVICES": "1", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    kept = {name: os.environ.get(name, "") for name in ("JAX_PLATFORMS", "XLA_FLAGS")}  # or tests choose CPUs
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "not documentation", *files]
    late = ""
    with tempfile.TemporaryFile("w+") as output:
        try:
            options: Any = {"cwd": folder, "env": {**os.environ, **given, **kept}, "stdout": output, "check": False}
            subprocess.run(command, timeout=0.9 * sizes["seconds"], **options)
        except subprocess.TimeoutExpired:
            late = ", others not in time"
        output.seek(0)
        found = re.findall(r"^\S+::(\S+).* (PASSED|FAILED|ERROR|SKIPPED)", output.read(), re.MULTILINE)
    counts = collections.Counter(outcome.lower() for _, outcome in found)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no test ran"
    row("tests with all stages on one device", said + late, "none failed")
    if wrong := [name for name, outcome in found if outcome in ("FAILED", "ERROR")]:
        row("tests that failed", ", ".join(wrong), "none")


def small_schedules() -> dict[str, tuple[schedules.Schedule, dict[str, Any]]]:
    """Makes each schedule of the library for eight layers, on four meshes or two, with the kind of model."""
    found: dict[str, tuple[schedules.Schedule, dict[str, Any]]] = {}
    for name in schedules.names():
        options = {"layers": 2} if name == "slimpipe" else {}
        for meshes, microbatches in ((4, 4), (4, 8), (2, 4)):
            try:
                made = schedules.make(name, meshes=meshes, microbatches=microbatches, **options)
            except schedules.ScheduleError:  # it is for more microbatches
                continue
            if (kind := _kind_of(made))["stages"] in (4, 8):
                found[name] = made, kind
                break
    return found


def _kind_of(schedule: schedules.Schedule) -> dict[str, Any]:
    """Returns arguments of `gpt_model.Config` for a schedule: of slices, or of a vocabulary that all meshes have."""
    is_graph, meshes = bool(schedule.placement.after), schedule.meshes
    if schedule.slices > 1:
        return {"stages": meshes if is_graph else schedule.stages, "slices": schedule.slices, "exchange": is_graph}
    shards = meshes if is_graph else 0  # a stage for each, and one that has the loss
    return {"stages": schedule.stages - shards - is_graph, "shards": shards}


def every_schedule(sizes: Mapping[str, int]) -> None:
    """Each schedule of the library on a small model, in float32, with products in float32.

    With the rate of learning the new parameters are mostly gradients, so that a wrong one shows.
    """
    jax.config.update("jax_default_matmul_precision", "highest")
    wrong: list[str] = []
    made, end, tried = small_schedules(), time.monotonic() + 0.9 * sizes["seconds"], 0
    for name, (schedule, kind) in made.items():
        if time.monotonic() > end:
            row("not tried, for want of time", ", ".join([*made][tried:]))
            break
        tried += 1
        counts = {"layers": 8, "batch": 1, "microbatches": schedule.microbatches}
        gpt = Gpt({**sizes, **SMALL, **counts}, dtype="float32", rate=100.0, **kind)
        expected = gpt.plain()(gpt.parameters(), gpt.text)
        try:
            found = gpt.pipeline(schedule, schedule.meshes)(gpt.parameters(), gpt.text)
            if (worst := difference(found, expected)) > 1e-5:
                wrong.append(f"{name} ({worst:.1e})")
        except RuntimeError as error:  # XLA's: the others are tried all the same
            wrong.append(f"{name} ({str(error).splitlines()[0][:80]})")
    row("library schedules with the results of jax.jit", f"{tried - len(wrong)} of {tried}", "all")
    if others := [name for name in schedules.names() if name not in made]:
        row("not tried, for models of other stages", ", ".join(others))
    if wrong:
        row("schedules with other results", ", ".join(wrong), "none")


def difference(found: Any, expected: Any) -> float:
    """Returns the greatest difference of two trees of arrays, by the largest number of each array."""
    pairs = zip(map(np.asarray, jax.tree.leaves(found)), map(np.asarray, jax.tree.leaves(expected)), strict=True)
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)


def step(sizes: Mapping[str, int]) -> None:
    """The step's time against that of plain accumulation."""
    gpt = Gpt(sizes)
    times = by_turns({"jax.jit": gpt.plain(), "1f1b": gpt.pipeline(), "zb-h1": gpt.pipeline("zb-h1")}, gpt)
    for name, found in times.items():
        middle = statistics.median(found)
        rates = f"{gpt.tokens() / middle:,.0f} tokens/s, {gpt.flops() / middle / 1e12:.3g} TFLOP/s"
        row(f"{name}: a step", f"{middle * 1e3:.1f} ms, {rates}")
    row("1f1b over jax.jit", ratio(times, "1f1b", "jax.jit"), "<= 1.03")
    row("zb-h1 over jax.jit", ratio(times, "zb-h1", "jax.jit"))


def memory(sizes: Mapping[str, int]) -> None:
    """The peak on the card, with four stages on one mesh: meshes that share a card don't reach theirs at once."""
    gpt = Gpt(sizes)
    schedule = schedules.make("interleaved-1f1b", meshes=1, microbatches=gpt.microbatches, chunks=STAGES)
    compiled = gpt.pipeline(schedule, meshes=1).compile(gpt.initial, gpt.text)
    (stats,) = compiled.memory_analysis()
    said = stats.peak_memory_in_bytes
    row("predicted peak of four stages on one mesh", f"{said / 2**30:.3f} GiB")
    parameters, _ = compiled(gpt.initial, gpt.text)
    jax.block_until_ready(parameters)
    measured = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    shown = f"{measured / 2**30:.3f} GiB, {measured / said - 1:+.1%}" if measured else "this backend does not count it"
    row("measured", shown, "<= 2 % off")


def timeline(sizes: Mapping[str, int]) -> None:
    """How long the card waits between tasks."""
    gpt = Gpt(sizes)
    step, parameters = gpt.pipeline(), gpt.parameters()
    parameters, _ = jax.block_until_ready(step(parameters, gpt.text))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(step(parameters, gpt.text))
        (path,) = Path(folder).rglob("*.xplane.pb")
        cells = sorted(_computing(ProfileData.from_file(str(path))))
    if not cells:
        row("from the profile", "no line of a device is in it")
        return
    share, longest = busy_share(cells)
    row("the device works", f"{share:.1%} of the step", ">= 97 %")
    row("longest time in which it does not", f"{longest / 1e3:.1f} us")


def busy_share(cells: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the share of their span in which some of the cells run, sorted by their begin, and the longest gap."""
    busy, end, longest = 0.0, cells[0][0], 0.0
    for begin, until in cells:
        longest = max(longest, begin - end)
        busy += max(until - max(begin, end), 0)
        end = max(end, until)
    return busy / (end - cells[0][0]), longest


_FROM_HOST = re.compile("Memcpy(H2D|D2H)")
"""What goes to or from the host may run beside the tasks, and is no work of theirs. Copies on the card are."""


def _computing(profile: Any) -> list[tuple[float, float]]:
    """Returns begin and end, in ns, of all that runs: on the streams of a GPU, in XLA's threads on a CPU.

    A stream is a line whose name also says what ever ran there, as in "Stream #7(Compute,MemcpyD2H)".
    """
    found: list[tuple[float, float]] = []
    for plane in profile.planes:
        is_gpu = plane.name.startswith("/device:GPU")
        for line in plane.lines:
            if line.name.startswith("Stream" if is_gpu else "tf_XLA"):
                events = [each for each in line.events if not _FROM_HOST.search(each.name)]
                found += [(each.start_ns, each.end_ns) for each in events]
    return found


def offload(sizes: Mapping[str, int]) -> None:
    """Twice the batch with activations in the host's memory, against the batch that keeps them; and many steps.

    Of half of the layers: twice the batch of all of them needs more than a card of 80 GB, also offloaded.
    """
    schedule = schedules.make("1f1b", meshes=STAGES, microbatches=sizes["microbatches"])
    moved = schedules.offload(schedule)
    gpt = Gpt({**sizes, "layers": max(sizes["layers"] // 2, STAGES)})
    twice = jnp.concatenate([gpt.text, gpt.text], axis=1)
    steps = {"kept": gpt.pipeline(schedule), "offloaded": gpt.pipeline(moved)}
    times = by_turns(steps, gpt, {"offloaded": twice})
    found = statistics.median(ratios(times["offloaded"], times["kept"])) / 2
    row("time per token at twice the batch, offloaded, over kept", f"{found:.3f}", "<= 1.10")
    for name, text in (("kept", gpt.text), ("offloaded", twice)):
        peaks = steps[name].lower(gpt.initial, text).program().peak_bytes
        row(f"peaks of the four meshes together, {name}", f"{sum(peaks) / 2**30:.3f} GiB")
    small = Gpt({**sizes, **SMALL})
    step, parameters, losses = small.pipeline(moved), small.parameters(), list[Any]()
    for _ in range(500):
        parameters, loss = step(parameters, small.text)
        losses.append(loss)
    every = np.array(losses)
    row("500 steps, offloaded", f"loss {every[0]:.3f} to {every[-1]:.3f}, {np.isnan(every).sum()} NaN", "none")


def processes(sizes: Mapping[str, int]) -> None:
    """Two processes that share the card, with a stage each, by each transport: against one that has both stages.

    NCCL may refuse two ranks on one card, which is a row that says so.
    """
    given = json.dumps({**sizes, "layers": min(sizes["layers"], 8)})
    alone, loss = _workers(given, 1, "pull")
    row("one process", f"{alone * 1e3:.1f} ms")
    for transport in TRANSPORTS:
        try:
            together, other = _workers(given, 2, transport)
        except RuntimeError as error:
            row(f"two processes by {transport}", str(error).replace("|", "/")[:160])
        else:
            row(f"two processes by {transport}, over one", f"{together / alone:.3f} ({together * 1e3:.1f} ms)")
            row(f"the loss by {transport}, off", f"{abs(other / loss - 1):.1e}", "<= 1e-5")


def _workers(sizes: str, count: int, transport: str) -> tuple[float, float]:
    """Returns the median seconds of a step in so many processes, and its last loss.

    Raises RuntimeError with the last error of the process that failed.
    """
    command = [sys.executable, __file__, "worker", sizes, importlib.import_module("processes").free_port(), str(count)]
    environment = {**os.environ, "JAXPP_TRANSPORT": transport}
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
        children: list[subprocess.Popen[bytes]] = []
        for number, output in enumerate(outputs):
            one = [*command, str(number)]
            child = subprocess.Popen(one, env=environment, stdout=output, stderr=subprocess.STDOUT)
            children.append(stack.enter_context(child))
            stack.callback(child.kill)
        end = time.monotonic() + WORKER_SECONDS
        while None in (codes := [child.poll() for child in children]) and not any(codes) and time.monotonic() < end:
            time.sleep(0.1)
        for output in outputs:
            output.seek(0)
        failed = next((number for number, code in enumerate(codes) if code), None)
        if failed is not None:
            errors = re.findall(r"^[\w.]*Error: (.*)", outputs[failed].read(), re.MULTILINE)
            raise RuntimeError(errors[-1] if errors else f"exit code {codes[failed]}")
        if None in codes:
            raise RuntimeError(f"not finished after {WORKER_SECONDS} s")
        return json.loads([line for line in outputs[0].read().splitlines() if line.startswith("[")][-1])


def worker(sizes: Mapping[str, int]) -> None:
    """One of some processes that share two stages; the first prints the median seconds of a step, and the last loss."""
    port, count, number = sys.argv[3], *map(int, sys.argv[4:])
    if count > 1:
        jaxpp.distributed.initialize(f"127.0.0.1:{port}", count, number, local_device_ids=[0])
    gpt = Gpt(sizes, stages=2)
    firsts = [next(each for each in jax.devices() if each.process_index == process) for process in range(count)]
    step = gpt.piped(firsts * (2 // count))
    text, made = np.asarray(gpt.text), [gpt.initial, None]

    def run() -> Any:
        made[:] = step(made[0], text)
        return made

    times = shared.by_turns({"step": lambda: shared.timed(run)}, gpt.repeat)["step"]
    loss = jaxpp.fetch(made[1])
    if number == 0:
        print(json.dumps([statistics.median(times), float(loss)]), flush=True)


def dlpack(sizes: Mapping[str, int]) -> None:
    """A result of a step goes through DLPack, to PyTorch where it is installed, and comes back where it was."""
    gpt = Gpt({**sizes, **SMALL})
    parameters, _ = gpt.pipeline()(gpt.parameters(), gpt.text)
    leaf, between = parameters["head"], "JAX alone"
    there: Any = leaf
    if importlib.util.find_spec("torch") is not None:
        there, between = importlib.import_module("torch").from_dlpack(leaf), "PyTorch"
    back = jnp.from_dlpack(there)
    same = leaf.unsafe_buffer_pointer() == back.unsafe_buffer_pointer()
    row(f"round trip through DLPack, by {between}", "no copy" if same else "copied", "no copy")
    row("its bits", "equal" if np.array_equal(leaf, back) else "differ", "equal")


def options(sizes: Mapping[str, int]) -> None:
    """Each of XLA's options on half of the layers."""
    gpt = Gpt({**sizes, "layers": max(sizes["layers"] // 2, STAGES)})
    if not gpt.on_gpu:
        row("XLA's options for GPUs", "need a GPU")
        return
    for name, given in OPTIONS.items():
        try:
            times = by_turns({"default": gpt.pipeline(), name: gpt.pipeline(compiler_options=given)}, gpt)
        except (RuntimeError, ValueError) as error:  # an option that this XLA does not know
            row(name, str(error).splitlines()[0].replace("|", "/")[:120])
        else:
            row(f"{name}, over the default", ratio(times, name, "default"))
        jax.clear_caches()


PARTS = {part.__name__: part for part in (tests, step, memory, timeline, offload, processes, worker, dlpack, options)}
PARTS["schedules"] = every_schedule

if __name__ == "__main__":
    PARTS[sys.argv[1]](json.loads(sys.argv[2]))

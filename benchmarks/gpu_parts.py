"""The parts of gpu.py: `python gpu_parts.py PART SIZES` prints a JSON list [what, found, asked] for each row."""

import importlib
import importlib.util
import json
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
from jax.profiler import ProfileData
from jax.sharding import Mesh

import jaxpp
from jaxpp import schedules

sys.path.append(str(Path(__file__).parents[1] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")

STAGES = 4
RATE = 1e-3
OPTIONS: dict[str, Mapping[str, Any]] = {
    "no latency hiding scheduler": {"xla_gpu_enable_latency_hiding_scheduler": False},
    "latency hiding scheduler": {"xla_gpu_enable_latency_hiding_scheduler": True},
    "no command buffers": {"xla_gpu_enable_command_buffer": ""},
    "no Triton GEMM": {"xla_gpu_enable_triton_gemm": False},
    "autotuning off": {"xla_gpu_autotune_level": 0},
}

Step = Callable[..., Any]


def row(what: str, found: str, asked: str = "") -> None:
    """Print a row of the table."""
    print(json.dumps([what, found, asked]), flush=True)


class Gpt:
    """A GPT, its text, and its training step: plain, or as a pipeline on the first device."""

    def __init__(self, sizes: Mapping[str, int], stages: int = STAGES, dtype: str | None = None) -> None:
        self.repeat, self.microbatches = sizes["repeat"], sizes["microbatches"]
        self.on_gpu = jax.devices()[0].platform != "cpu"
        shape = (sizes[name] for name in ("layers", "width", "heads", "sequence"))
        self.model = gpt_model.Config(stages, *shape, dtype or ("bfloat16" if self.on_gpu else "float32"))
        lengths = self.microbatches, sizes["batch"], self.model.sequence + 1
        self.text = jnp.array(np.random.default_rng(0).integers(256, size=lengths).astype(np.int32))
        self.initial = gpt_model.init(self.model, 0)

    def parameters(self) -> Any:
        """New ones, on the device."""
        return jax.tree.map(jnp.array, self.initial)

    def plain(self) -> Step:
        """Gradients summed by a loop in one program."""
        return jax.jit(partial(self.step, "gpipe"), donate_argnums=0)

    def pipeline(self, schedule: Any = "1f1b", meshes: int = STAGES, **options: Any) -> Any:
        """Its stages on `meshes` meshes, all of which are the first device."""
        mesh = jaxpp.MpmdMesh.of([Mesh(np.array(jax.devices()[:1]), ("data",))] * meshes)
        return jaxpp.mpmd_jit_with_loop(partial(self.step, schedule), mesh, donate_argnums=0, **options)

    def step(self, schedule: Any, parameters: Any, text: Any) -> Any:
        """The parameters after a step, and its loss."""
        one = partial(jax.value_and_grad(partial(gpt_model.loss, self.model)), parameters)
        operation = jaxpp.Concat(), jaxpp.Add
        losses, gradients = jaxpp.treduce(one, text, schedule=schedule, operation=operation)
        rate = RATE / self.microbatches
        return jax.tree.map(partial(_updated, rate), parameters, gradients), losses.mean()

    def tokens(self) -> int:
        """That a step trains on."""
        return self.text.shape[0] * self.text.shape[1] * self.model.sequence

    def flops(self) -> float:
        """Of a step, without the rest: six times parameters times tokens, and the products of attention."""
        size = sum(leaf.size for leaf in jax.tree.leaves(self.initial))
        return self.tokens() * (6 * size + 12 * self.model.layers * self.model.width * self.model.sequence)


def _updated(rate: float, weight: Any, gradient: Any) -> Any:
    return weight - rate * gradient


def by_turns(steps: Mapping[str, Step], gpt: Gpt, texts: Mapping[str, Any] | None = None) -> dict[str, list[float]]:
    """The seconds of each step, each with parameters of its own; of some with texts of their own.

    Raises AssertionError where the losses of one text differ.
    """
    texts = texts or {}
    states = {name: gpt.parameters() for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(gpt.repeat + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            states[name], loss = step(states[name], texts.get(name, gpt.text))
            jax.block_until_ready((states[name], loss))
            times[name].append(time.perf_counter() - begin)
            losses[name].append(float(loss))
    alike = {name: found for name, found in losses.items() if name not in texts}
    for name, found in alike.items():
        np.testing.assert_allclose(found, next(iter(alike.values())), rtol=2e-2 if gpt.on_gpu else 1e-5, err_msg=name)
    return {name: found[1:] for name, found in times.items()}


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> str:
    """The median of the ratios turn by turn, and their range."""
    found = sorted(one / other for one, other in zip(times[name], times[base], strict=True))
    return f"{statistics.median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"


def small_schedules() -> dict[str, schedules.Schedule | None]:
    """Each schedule of the library in four stages, or eight, on four meshes or two; None for models of other stages."""
    found: dict[str, schedules.Schedule | None] = dict.fromkeys(schedules.names())
    for name in found:
        for meshes, microbatches in ((4, 4), (4, 8), (2, 4)):
            try:
                made = schedules.make(name, meshes=meshes, microbatches=microbatches)
            except schedules.ScheduleError:  # it is for more microbatches
                continue
            if made.stages in (4, 8) and made.slices == 1 and not made.placement.after:
                found[name] = made
                break
    return found


def every_schedule(sizes: Mapping[str, int]) -> None:
    """Each schedule of the library on a small model, in float32, with products in float32."""
    jax.config.update("jax_default_matmul_precision", "highest")
    wrong: list[str] = []
    made = small_schedules()
    for name, schedule in made.items():
        if schedule is None:
            continue
        counts = {"microbatches": schedule.microbatches, "layers": 8}
        small = {**sizes, "width": 64, "heads": 4, "sequence": 32, "batch": 1, **counts}
        gpt = Gpt(small, schedule.stages, "float32")
        expected = gpt.plain()(gpt.parameters(), gpt.text)
        try:
            found = gpt.pipeline(schedule, schedule.meshes)(gpt.parameters(), gpt.text)
        except RuntimeError as error:  # XLA's: the others are tried all the same
            wrong.append(f"{name} ({str(error).splitlines()[0][:80]})")
            continue
        pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        if not all(np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs):
            wrong.append(name)
    others = [name for name, schedule in made.items() if schedule is None]
    tried = len(made) - len(others)
    row("library schedules with the results of jax.jit", f"{tried - len(wrong)} of {tried}", "all")
    row("not tried, for models of other stages", ", ".join(others))
    if wrong:
        row("schedules with other results", ", ".join(wrong), "none")


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
    if measured is None:
        row("measured", "this backend does not count it", "<= 2 % off")
    else:
        row("measured", f"{measured / 2**30:.3f} GiB, {measured / said - 1:+.1%}", "<= 2 % off")


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
    row("the device computes", f"{share:.1%} of the step", ">= 97 %")
    row("longest time without a kernel", f"{longest / 1e3:.1f} us")


def busy_share(cells: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """For what share of their span some of the cells run, sorted by their begin, and the longest gap."""
    busy, end, longest = 0.0, cells[0][0], 0.0
    for begin, until in cells:
        longest = max(longest, begin - end)
        busy += max(until - max(begin, end), 0)
        end = max(end, until)
    return busy / (end - cells[0][0]), longest


_COPIES = re.compile("Memcpy|Memset")


def _computing(profile: Any) -> list[tuple[float, float]]:
    """Begin and end, in ns, of every kernel: of the lines of streams of a GPU, of XLA's threads on a CPU."""
    found: list[tuple[float, float]] = []
    for plane in profile.planes:
        is_gpu = plane.name.startswith("/device:GPU")
        for line in plane.lines:
            if line.name.startswith("Stream") if is_gpu else line.name.startswith("tf_XLA"):
                names = (f"{line.name} {each.name}" for each in line.events)
                cells = ((each.start_ns, each.end_ns) for each in line.events)
                found.extend(cell for cell, name in zip(cells, names, strict=True) if not _COPIES.search(name))
    return found


def offload(sizes: Mapping[str, int]) -> None:
    """Twice the batch with activations in the host's memory, against the batch that keeps them; and many steps."""
    schedule = schedules.make("1f1b", meshes=STAGES, microbatches=sizes["microbatches"])
    moved = schedules.offload(schedule)
    gpt = Gpt(sizes)
    twice = jnp.concatenate([gpt.text, gpt.text], axis=1)
    steps = {"kept": gpt.pipeline(schedule), "offloaded": gpt.pipeline(moved)}
    times = by_turns(steps, gpt, {"offloaded": twice})
    found = statistics.median(one / other / 2 for one, other in zip(times["offloaded"], times["kept"], strict=True))
    row("time per token at twice the batch, offloaded, over kept", f"{found:.3f}", "<= 1.10")
    for name, text in (("kept", gpt.text), ("offloaded", twice)):
        peaks = steps[name].lower(gpt.initial, text).program().peak_bytes
        row(f"peaks of the four meshes together, {name}", f"{sum(peaks) / 2**30:.3f} GiB")
    small = Gpt({**sizes, "layers": 4, "width": 64, "heads": 4, "sequence": 32})
    step, parameters, losses = small.pipeline(moved), small.parameters(), []
    for _ in range(500):
        parameters, loss = step(parameters, small.text)
        losses.append(loss)
    every = np.array(losses)
    row("500 steps, offloaded", f"loss {every[0]:.3f} to {every[-1]:.3f}, {np.isnan(every).sum()} NaN", "none")


def processes(sizes: Mapping[str, int]) -> None:
    """Each of two processes has two of the stages; what they send goes over the host."""
    gpt = Gpt({**sizes, "layers": min(sizes["layers"], 8)})
    alone = statistics.median(by_turns({"one": gpt.pipeline("1f1b")}, gpt)["one"])
    jax.clear_caches()
    port = importlib.import_module("processes").free_port()
    command = [sys.executable, __file__, "worker", json.dumps({**sizes, "layers": gpt.model.layers}), port]
    children = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(2)]
    try:
        while all(child.poll() is None for child in children):
            time.sleep(0.1)
        codes = [child.wait(30) for child in children]
        if any(codes):
            raise RuntimeError(f"the two processes ended with the exit codes {codes}")
        out = children[0].stdout.read() if children[0].stdout else ""
    finally:
        for child in children:
            child.kill()
    together = json.loads(out.splitlines()[-1])
    row("two processes on the card over one", f"{together / alone:.3f} ({together * 1e3:.1f} ms)")


def worker(sizes: Mapping[str, int]) -> None:
    """One of the two processes; the first prints the median seconds of a step."""
    port, number = sys.argv[3:]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number), local_device_ids=[0])
    gpt = Gpt(sizes, stages=2)
    firsts = [next(each for each in jax.devices() if each.process_index == process) for process in range(2)]
    mesh = jaxpp.MpmdMesh(Mesh(np.array(firsts), ("mpmd",)), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(partial(gpt.step, "1f1b"), mesh, donate_argnums=0)
    parameters: Any = gpt.initial
    times: list[float] = []
    for _ in range(gpt.repeat + 1):
        begin = time.perf_counter()
        parameters, loss = step(parameters, np.asarray(gpt.text))
        jax.block_until_ready((parameters, loss))
        times.append(time.perf_counter() - begin)
    if number == "0":
        print(json.dumps(statistics.median(times[1:])))


def dlpack(sizes: Mapping[str, int]) -> None:
    """A result of a step goes through DLPack, to PyTorch where it is installed, and comes back where it was."""
    gpt = Gpt({**sizes, "layers": 4, "width": 64, "heads": 4, "sequence": 32})
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


PARTS = {
    "schedules": every_schedule,
    "step": step,
    "memory": memory,
    "timeline": timeline,
    "offload": offload,
    "processes": processes,
    "worker": worker,
    "dlpack": dlpack,
    "options": options,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](json.loads(sys.argv[2]))

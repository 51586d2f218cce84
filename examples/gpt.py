"""Trains a small GPT on Shakespeare's sonnets as a pipeline of stages, each on its own mesh of devices.

    python examples/gpt.py                       # 4 stages x 8 microbatches on 8 virtual CPU devices
    python examples/gpt.py --check               # and the same steps with plain jax.jit on one device
    python examples/gpt.py --schedule gpipe --stages 2 --data 2 --model 2
    python examples/gpt.py --schedule interleaved-1f1b{chunks=2} --stages 8
    python examples/gpt.py --schedule seq1f1b{slices=4}
    python examples/gpt.py --schedule auto --stages 2
    python examples/gpt.py --processes 4         # each with a quarter of the devices
    python examples/gpt.py --actors 4            # the same by Ray, told by this process what to run
    python examples/gpt.py --checkpoint saved    # goes on from there when it was ended, also with other stages

What makes it a pipeline: the stage marks in gpt_model.py, `make_train_step` and `compile_pipeline`.
"""

import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpt_checkpoints
import gpt_model
import gpt_options
import gpt_processes
import jax
import numpy as np
import optax
from gpt_options import BATCH, Options
from jax.sharding import Mesh, PartitionSpec
from tqdm import tqdm

import jaxpp
from jaxpp.runtime import Event, write_chrome_trace

# What --check allows: the largest relative difference of the losses and of the parameters, see `difference`. Adam
# divides a gradient by its own size: where one is little but rounding, so is its update. Its parameters are not judged.
TOLERANCES = {
    ("sgd", "float32"): (1e-5, 1e-5),
    ("adamw", "float32"): (1e-4, np.inf),
    ("sgd", "bfloat16"): (1e-2, np.inf),
    ("adamw", "bfloat16"): (1e-2, np.inf),
}

TEXT = Path(__file__).parent / "data" / "sonnets.txt"
DTYPE = "float32"
"""The type that is computed with, or bfloat16."""
SEED = 0
State = tuple[Any, Any]
"""The parameters, and the state of the optimizer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, and returns the exit code: 1 when --check finds too large a difference."""
    options, devices = gpt_options.parse(arguments)
    if options.starts_others:
        return gpt_processes.start(options.processes, sys.argv[1:] if arguments is None else arguments)
    model, optimizer = make_model(options), make_optimizer(options)
    parameters = gpt_model.init(model, SEED)
    state: State = (parameters, jax.device_get(optimizer.init(parameters)))
    state, done = gpt_checkpoints.resume(options.checkpoint, state)
    if done >= options.steps:
        print(f"{options.checkpoint} has step {done} already: nothing to do for --steps {options.steps}")
        return 0
    batch = next(batches(options))
    train_step = make_train_step(options, model, optimizer)

    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    mesh = f"{options.data} x {options.model} (data x model) {options.platform} devices"
    print(f"{size:,} parameters in {options.stages} stages on {options.plan.meshes} meshes of {mesh}")
    pipeline, times = compile_pipeline(train_step, options, devices, state, batch)
    name = f"{options.schedule}, {options.microbatches} microbatches"
    with gpt_checkpoints.saving(options.checkpoint, options.steps) as after_step:
        trained, losses, seconds = train(name, pipeline, state, options, done, after_step)
    if done + len(losses) < options.steps:
        print(f"told to end: saved after step {done + len(losses)}, in {options.checkpoint}")
        return 0
    times[f"{len(losses)} steps"] = seconds

    agrees = True
    trained_parameters = jaxpp.fetch(trained[0])
    if options.check and jax.process_index() == 0:
        whole = make_train_step(options, dataclasses.replace(model, slices=1, shards=0, exchange=False), optimizer)
        plain = jax.jit(whole, donate_argnums=0).lower(state, batch).compile()
        expected, expected_losses, _ = train("plain jax.jit on one device", plain, state, options, done)
        agrees = compare(options, (losses, trained_parameters), (expected_losses, expected[0]))

    _, events = pipeline.trace(trained, batch)
    show_times(times, events)
    if options.write:
        write_chrome_trace(events, options.write / "step.json")
        costs = pipeline.costs(events)
        costs.save(options.write / "costs.toml")
        plan = pipeline.tuned.schedule if options.is_auto and pipeline.tuned else options.plan
        predicted = jaxpp.schedules.simulate(plan, costs).makespan
        print(f"wrote that step, {options.write}/step.json, for chrome://tracing or https://ui.perfetto.dev")
        print(f"wrote its costs, {options.write}/costs.toml, for jaxpp-schedule (simulated: {predicted:.1f} ms)")
    return 0 if agrees else 1


def make_model(options: Options) -> gpt_model.Config:
    """Returns the model. With auto it marks each block, and the training shares them out to stages."""
    stages = None if options.is_auto else options.stages
    kind: dict[str, Any] = {"slices": options.plan.slices, "shards": options.shards, "exchange": options.exchange}
    return gpt_model.Config(stages, options.layers, dtype=DTYPE, **kind)


def make_train_step(
    options: Options, model: gpt_model.Config, optimizer: optax.GradientTransformation
) -> Callable[[State, jax.Array], tuple[State, jax.Array]]:
    """Returns the training step: (state, batch) -> (state, loss), a function that runs under plain `jax.jit` too."""
    loss_and_gradients = jax.value_and_grad(functools.partial(gpt_model.loss, model))

    def train_step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        parameters, moments = state
        mean_loss, gradients = jaxpp.treduce(
            functools.partial(loss_and_gradients, parameters),
            batch,
            schedule="auto" if options.is_auto else options.plan,
            operation=jaxpp.Mean,
        )
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), mean_loss

    return train_step


def compile_pipeline(
    train_step: Callable[..., Any], options: Options, devices: Sequence[Any], state: State, batch: np.ndarray
) -> tuple[Any, dict[str, float]]:
    """Compiles the step for the meshes, as `step(state, batch)` does; returns it, and the seconds of each part."""
    step = jaxpp.mpmd_jit_with_loop(
        train_step,
        mpmd_mesh=make_mesh(options, devices),
        in_shardings=(gpt_model.specs(state), PartitionSpec(None, "data")),
        donate_argnums=0,
    )
    clock = [time.perf_counter()]
    lowered = step.lower(state, batch)
    clock.append(time.perf_counter())
    lowered.program()
    clock.append(time.perf_counter())
    compiled = lowered.compile()
    clock.append(time.perf_counter())
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "step.mlir").write_text(lowered.as_text(debug_info=True), encoding="utf-8")
        print(f"wrote the lowered step, {options.write}/step.mlir, for jaxpp-opt")
    parts = "tracing and lowering", "passes", f"compiling {len(compiled.executable.program.functions)} programs"
    return compiled, dict(zip(parts, np.diff(clock), strict=True))


def make_mesh(options: Options, devices: Sequence[Any]) -> jaxpp.MpmdMesh:
    """Returns the meshes of the stages: over these devices, or over those of --actors, which end with this process."""
    shape, names = (options.plan.meshes, options.data, options.model), ("mpmd", "data", "model")
    if not options.actors:
        return jaxpp.MpmdMesh(Mesh(np.array(devices).reshape(shape), names), "mpmd")
    held = math.ceil(options.plan.meshes / options.actors) * options.data * options.model
    return jaxpp.ray.Cluster(options.actors, devices=held, platform=options.platform).mesh(shape, names, "mpmd")


def train(
    name: str,
    step: Callable[..., Any],
    state: State,
    options: Options,
    before: int,
    after_step: Callable[[int, State], bool] = lambda done, state: False,
) -> tuple[State, list[float], float]:
    """Runs the steps after those `before`, until `after_step` says to end; the state, their losses, the seconds.

    Shows a progress bar on a terminal, and a line every few steps where the output goes elsewhere.
    """
    losses: list[float] = []
    start = time.perf_counter()
    rest = itertools.islice(batches(options), before, None)
    with tqdm(rest, name, options.steps, initial=before, unit="step", file=sys.stdout, disable=None) as bar:
        if bar.disable:
            print(name)
        for done, batch in enumerate(bar, before + 1):
            state, loss = step(state, batch)
            losses.append(float(jaxpp.fetch(loss)))
            speed = len(losses) * BATCH * gpt_model.Config.sequence / (time.perf_counter() - start)
            bar.set_postfix_str(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {speed:,.0f} tokens/s")
            if bar.disable and (len(losses) == 1 or done % 5 == 0 or done == options.steps):
                print(f"  step {done:3}  loss {losses[-1]:.4f}  {speed:,.0f} tokens/s", flush=True)
            if after_step(done, state):
                break
    jax.block_until_ready(state)
    return state, losses, time.perf_counter() - start


def compare(options: Options, found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> bool:
    """Prints how far (losses, parameters) are from the expected ones; returns whether that is within the tolerances."""
    losses = [difference(*pair) for pair in zip(found[0], expected[0], strict=True)]
    parameters = jax.tree.leaves(jax.tree.map(difference, found[1], expected[1]))
    print("largest relative difference from plain jax.jit on one device")
    agrees = True
    for name, values, tolerance in zip(
        ("losses", "parameters"), (losses, parameters), TOLERANCES[options.optimizer, DTYPE], strict=True
    ):
        value = np.max(values)  # NaN if one is
        is_within = bool(value <= tolerance)
        limit = "not judged" if tolerance == np.inf else f"at most {tolerance:.0e}"
        print(f"  {name:10}  {value:.1e}  ({limit}){'' if is_within else '  TOO LARGE'}")
        agrees &= is_within
    return agrees


def difference(found: Any, expected: Any) -> float:
    """Returns the largest difference between two arrays, in units of the largest magnitude in the expected one.

    Per array, not per element: an element near zero is a sum of larger numbers, and has their rounding errors.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.max(np.abs(found - expected)) / (np.max(np.abs(expected)) or 1.0))


def show_times(times: Mapping[str, float], events: Sequence[Event]) -> None:
    """Prints where the time went: the parts of this run, then what each mesh does in one step."""
    print("where the time went")
    for name, seconds in times.items():
        print(f"  {name:21} {seconds:6.2f} s")
    tasks = [event for event in events if event.kind != "send"]
    end = max(event.end for event in tasks)
    print(f"one step, if each mesh had its own processors: {end * 1e3:.1f} ms (from each task's time alone)")
    for mesh in sorted({event.mesh for event in tasks}):
        kinds: dict[str, float] = {}
        for event in tasks:
            if event.mesh == mesh:
                kinds[event.kind] = kinds.get(event.kind, 0.0) + event.seconds
        busy = sum(kinds.values()) / end
        parts = ", ".join(f"{kind} {seconds * 1e3:.1f}" for kind, seconds in kinds.items())
        print(f"  mesh {mesh}  busy {busy:4.0%}  idle {1 - busy:4.0%}  ({parts} ms)")


def make_optimizer(options: Options) -> optax.GradientTransformation:
    """Returns AdamW or plain SGD, both with a warm-up over the first tenth of the steps."""
    warmup = max(1, options.steps // 10)
    rate = gpt_options.LEARNING_RATES[options.optimizer]
    rate = optax.schedules.warmup_constant_schedule(rate / (warmup + 1), rate, warmup)
    return optax.adamw(rate, weight_decay=0.01) if options.optimizer == "adamw" else optax.sgd(rate)


def batches(options: Options) -> Iterator[np.ndarray]:
    """Yields for each step random pieces of the text: bytes as int32 [microbatches, sequences, length + 1]."""
    text = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int32)
    pieces = np.lib.stride_tricks.sliding_window_view(text, gpt_model.Config.sequence + 1)
    random = np.random.default_rng(SEED)
    for _ in range(options.steps):
        yield pieces[random.integers(len(pieces), size=(options.microbatches, BATCH // options.microbatches))]


if __name__ == "__main__":
    sys.exit(main())

"""Is a predicted step as long as a measured one? Ten models and schedules in two and four processes on this machine.

    python benchmarks/truth.py [--repeat 15] [--rows 0 5] [--seconds 60]

Predicted: one process with a device for each mesh traces the step, task after task, so that each is measured alone; two
processes that only send measure what a message takes. From these `jaxpp.planning` predicts the step, as it does for
devices that are not here: each mesh runs its tasks in order, each as soon as its operands are there; meshes of processes
that share a core share its time. Measured: as many processes as there are meshes, each with one thread for XLA on a core
of its own, or, where there are more processes than cores, each core with as many; from when the first process begins a
step until the last one has its results, the median of all repetitions. Run it on an idle machine.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from processes_models import LAYERS, Model, Tree
from processes_runs import globally

import jaxpp
from jaxpp import schedules
from jaxpp.planning import CHIPS, Efficiency, Link, Target
from jaxpp.planning.estimate import Network, predict
from jaxpp.runtime import Call, Event, Program
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
SENDS = (1, 250_000)
"""How many numbers the messages have by which a link is measured."""

Seconds = Mapping[str, float]
"""By function, of one call."""


def main() -> None:
    """Print the table, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15, help="steps of each row that are measured")
    parser.add_argument("--traces", type=int, default=5, help="steps of each row that are traced")
    parser.add_argument("--rows", type=int, nargs="+", default=range(len(CASES)))
    parser.add_argument("--join", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.join is not None:
        join(options, *options.join)
        return
    rows = [row for row in options.rows if 0 <= row < len(CASES)]
    answers = {count: start(count) for count in sorted({CASES[row].processes for row in rows})}
    report([(CASES[row], *answers[CASES[row].processes][row]) for row in rows])


def step_of(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The compiled training step of a case on one device for each mesh, and its arguments."""
    kind, width, hidden, batch = SIZES[case.model]
    model = Model(kind, case.microbatches, width, hidden, batch, 1e-3)
    plan = schedules.make(case.schedule, meshes=case.processes, microbatches=case.microbatches)

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
    shardings = jax.tree.map(lambda each: each.sharding, compiled.in_shardings[0])
    return compiled, jax.tree.map(globally, (model.parameters(), model.data()), shardings)


def chain(numbers: int, hops: int = 32) -> tuple[Any, Any]:
    """A compiled function of so many numbers that go to and fro between two meshes, and its argument."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")

    def function(x: jax.Array) -> jax.Array:
        for _ in range(hops):
            x = jaxpp.mark_stage_end(x + 1)
        return x

    compiled = jaxpp.mpmd_jit_by_yield(function, mesh).compile(np.zeros(numbers, np.float32))
    sharding = jax.tree.leaves(compiled.in_shardings)[0].sharding
    return compiled, globally(np.zeros(numbers, np.float32), sharding)


def traced(case: Case, traces: int) -> tuple[Program, dict[str, list[float]]]:
    """The program of a case, and how long each call of each function took alone, of all traced steps but the first."""
    compiled, (state, batch) = step_of(case)
    found: dict[str, list[float]] = {}
    for number in range(traces + 1):
        (state, _), events = compiled.trace(state, batch)
        for name, seconds in named(compiled.executable.program, events):
            if number:
                found.setdefault(name, []).append(seconds)
    return compiled.executable.program, found


def named(program: Program, events: Sequence[Event]) -> Iterator[tuple[str, float]]:
    """The function of each call that was traced in one process, and how long it took."""
    calls = [each.function for _, each in merged_order(program) if isinstance(each, Call)]
    yield from zip(calls, (each.seconds for each in events if each.target is None), strict=True)


def join(options: argparse.Namespace, coordinator: str, count: int, number: int) -> None: ...

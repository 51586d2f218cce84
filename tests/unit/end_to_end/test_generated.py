"""Generated steps: a model, a schedule, and what they may be combined with, drawn by chance; equal to plain `jax.jit`.

JAXPP_GENERATED=300 in the environment runs as many, and not those of the suite; JAXPP_GENERATED=40:50 these seeds.
"""

# pyright: reportUnknownLambdaType=false

import itertools
import os
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import le
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare
from unit.end_to_end.generated import FAMILIES, Case

import jaxpp.api as jaxpp
from jaxpp import checkpoint, schedules
from jaxpp.healing.state import described, placed, taken
from jaxpp.ir.errors import ProgramError
from jaxpp.schedules.memory import activations

GROUP = 5
"""So many seeds share a model and the kind of their meshes: it is traced, and its reference compiled, once."""


def changed(draw: random.Random, case: Case) -> None:
    """Let the schedule keep less, or call a function of the user's."""
    stages = range(case.plan.stages)

    def some() -> list[int]:
        return draw.sample(stages, draw.randint(1, len(stages)))

    changes: dict[str, Callable[[schedules.Schedule], schedules.Schedule]] = {
        "evict": schedules.evict,
        "offload": lambda plan: schedules.offload(plan, *some(), k=draw.choice([0.5, 1.0, 2.0])),
        "recompute": lambda plan: schedules.recompute(plan, *some()),
        "insert": lambda plan: schedules.insert(plan, schedules.Operation.parse("norms: forward"), after="forward"),
    }
    for word in draw.sample(list(changes), draw.choice([0, 1, 1, 2])):
        case.words.append(word)
        case.plan = changes[word](case.plan)
        if word == "insert":
            case.options["operations"] = {"norms": look}


def look(task: jaxpp.Task, residuals: Sequence[jax.Array]) -> None:
    """An operation of the user's, which is given what the stage of its task keeps."""
    assert task.kind == "norms"
    assert all(isinstance(each, jax.Array) for each in residuals)


def mesh_of(model: random.Random, case: Case) -> jaxpp.MpmdMesh:
    """A device for each mesh, or two, or one for all, or meshes of several sizes; and what is donated."""
    count = case.plan.meshes
    word = case.mesh or model.choice(["alone", "alone", "data", "data", "uneven", "shared"])
    is_sharded, place = model.random() < 0.5, model.random()
    case.options["donate_argnums"] = model.choice([(), 0])
    case.words.append(word)
    if word == "alone":
        return compare.make_mesh(count)
    if word == "shared":
        return jaxpp.MpmdMesh.of([Mesh(np.array(jax.devices()[:1]), "data")] * count)
    case.words += ["sharded weights"] * is_sharded
    case.options["in_shardings"] = case.sharded if is_sharded else P(), case.spec
    if word == "data":
        return compare.make_mesh(count, data=2)
    sizes = [1] * count
    sizes[int(place * count)] = 2
    bounds = np.cumsum(sizes)
    devices = np.split(np.array(jax.devices()[: bounds[-1]]), bounds[:-1])
    return jaxpp.MpmdMesh.of([Mesh(each, "data") for each in devices])


def options_of(draw: random.Random, case: Case) -> None:
    """What is kept, gathered, scattered and shared."""
    if "cuts" not in case.options or draw.random() < 0.5:
        keep = draw.choice([None, None, None, "inputs", "selective", 0.05, 0.3, 1.0])
        case.options["recompute"] = keep
        case.words += [f"keep {keep}"] * (keep is not None)
    is_sharded = "sharded weights" in case.words
    for name, ways in (("gather_weights", ("step", "chunk", "ahead")), ("scatter_gradients", ("step", "chunk"))):
        if draw.random() < (0.5 if is_sharded else 0.05):
            case.options[name] = draw.choice(ways)
            case.words.append(f"{name} {case.options[name]}")
    if draw.random() < 0.3:
        case.words.append("share_tasks")
        case.options["share_tasks"] = "always"


def train_step(loss: Any, reduced: Any, params: Any, batch: Any, schedule: Any = None) -> Any:
    gradient = partial(jax.value_and_grad(loss), params)
    losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(reduced, jaxpp.Add))
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses


def delayed_step(loss: Any, reduced: Any, state: Any, batch: Any, older: Any, schedule: Any = None) -> Any:
    after, losses = train_step(loss, reduced, older, batch, schedule)
    return (jax.tree.map(lambda w, new, old: w + (new - old), state[0], after, older),), losses


def in_a_loop(case: Case, reduced: Any) -> tuple[Any, Any]:
    """The loop over steps of a case, and its arguments: the batch of each step is another one."""
    assert case.loop is not None
    steps, delay = case.loop
    one = partial(delayed_step if delay else train_step, case.loss, reduced, schedule=case.plan)
    loop = jaxpp.train_loop(one, steps, delay)
    every = jax.tree.map(lambda leaf: np.stack([np.roll(leaf, k, axis=0) for k in range(steps)]), case.batch)
    for name in {"in_shardings"} & case.options.keys():
        weights, spec = case.options[name]
        spec = jax.tree.map(lambda each: P(None, *each), spec, is_leaf=lambda each: isinstance(each, P))
        case.options[name] = ((weights,), weights) if delay else weights, spec
    return loop, (loop.start((case.params,) if delay else case.params), every)


REFUSALS: Sequence[tuple[set[str], str]] = [
    ({"insert", "loaded"}, "save: the step has operations of yours, and functions of Python can't be saved"),
    ({"evict", "bpipe"}, r"^evict: bpipe has evict\(.*\) already"),
    ({"offload", "po-h"}, r"^offload: po-h has offload\(.*\) already"),
    ({"offload", "po-f"}, r"^offload: po-f has offload\(.*\) already"),
    *(
        (
            {moved, "delay"},
            "mesh . runs (other tasks|its tasks in another order) in step . than in step 0.*; a loop over steps",
        )
        for moved in ("evict", "offload", "recompute")
    ),
    ({"gather_weights chunk"}, "gather_weights is 'chunk', but no product of a stage gathers a weight"),
    ({"gather_weights ahead"}, "gather_weights is 'ahead', but no product of a stage gathers a weight"),
    ({"gather_weights ahead", "delay"}, "gather_weights is 'ahead', but the .* in another order than step 0"),
    ({"scatter_gradients chunk"}, "scatter_gradients is 'chunk', but no "),
    ({"scatter_gradients chunk", "delay"}, "scatter_gradients is 'chunk', for the runs of one step, but the steps"),
]
"""Of what may not be combined: the words of a case that has it, and what is said."""


def is_refused(words: Sequence[str], text: str) -> bool:
    """Whether it is known that these don't go together."""
    return any(needed <= set(words) and re.search(pattern, text) for needed, pattern in REFUSALS)


def seeds() -> range:
    given = os.environ.get("JAXPP_GENERATED", "0:100").split(":")
    return range(*map(int, given))


@pytest.mark.parametrize("seed", seeds())
def test_any_combination_changes_no_numbers(seed: int, tmp_path: Path) -> None:
    """Peaks are those of the schedule, and a limit is kept, or refused by name."""
    group = seed // GROUP
    model, draw = random.Random(group), random.Random(seed)
    family = FAMILIES[group % len(FAMILIES)]
    case = family(model, draw)
    is_split = any(task.kind == "weight_grad" for task in case.plan)
    case.words += [family.__name__, case.plan.name, *(["split"] * is_split)]
    try:
        run(model, draw, case, tmp_path)
    except (jaxpp.PassError, schedules.ScheduleError, ProgramError, ValueError, TypeError) as error:
        if not is_refused(case.words, str(error)):
            raise AssertionError(f"{case.words}: {error}") from error


def run(model: random.Random, draw: random.Random, case: Case, folder: Path) -> None:
    """Compare two steps with plain `jax.jit`; and their peaks with those of the schedule."""
    reduced = model.choice([jaxpp.Concat(), jaxpp.Concat(), jaxpp.Add, jaxpp.Max])
    changed(draw, case)
    mesh = mesh_of(model, case)
    options_of(draw, case)
    step, given = partial(train_step, case.loss, reduced, schedule=case.plan), (case.params, case.batch)
    if case.loop is None and model.random() < 0.2:
        case.loop = model.choice([2, 3]), 0
    if case.loop is not None:
        step, given = in_a_loop(case, reduced)
        case.words.append("loop" if not case.loop[1] else "delay")
    given = jax.tree.map(jnp.array, given)
    lowered = compare.lowered(step, given, mesh, **case.options)
    program = lowered.program()
    if case.options.get("recompute") is None and case.loop is None:
        text = program.as_text()
        peaks = [int(peak) for peak in re.findall(r"jaxpp\.peak_activations = (\d+)", text)]
        assert all(map(le, peaks, activations(as_run(case.plan, text)))), case.words
    compiled = None
    if draw.random() < 0.2:
        compiled = within(int(draw.uniform(0.5, 1.2) * max(program.peak_bytes)), step, given, mesh, case)
    compiled = compiled or lowered.compile()
    if draw.random() < 0.2:
        way = draw.choice([healed, restored, loaded])
        case.words.append(way.__name__)
        compiled = way(compiled, given, folder)
    compare.check_compiled(
        compiled,
        compare.plain_of(step),
        given,
        steps=1 if case.loop else 2,
        feed=compare.feed_state,
        tolerance=case.tolerance,
    )


def as_run(plan: schedules.Schedule, program: str) -> schedules.Schedule:
    """The schedule without recomputes that make nothing: their backward reads only what their stage takes.

    So it is under `jax.checkpoint`, and where a mesh lends. What the stage takes waits from its forward on.
    """
    kinds = re.findall(r'jaxpp\.kind = "([\w+]+)", jaxpp\.stage = (\d+)', program)
    stages = {int(stage) for kind, stage in kinds if "recompute" in kind.split("+")}
    rows = [
        [tuple(task for task in cell if task.kind != "recompute" or task.stage in stages) for cell in row]
        for row in plan.cells
    ]
    return schedules.Schedule.of(
        plan.name, plan.placement, [filter(None, row) for row in rows], plan.kinds, plan.skipped
    )


def healed(step: Any, given: Any, folder: Path) -> Callable[..., Any]:
    """The step, whose state is taken apart and put together as where processes have died."""

    def run(*arguments: Any) -> Any:
        state, losses = step(*arguments)
        held = [(shard, partial(bytes, data)) for shard, data in taken(state, True)]
        return placed(described(state), step.in_shardings[0][0], held), losses

    return run


def restored(step: Any, given: Any, folder: Path) -> Callable[..., Any]:
    """The step, whose state is saved and restored."""
    numbers = itertools.count()

    def run(*arguments: Any) -> Any:
        state, losses = step(*arguments)
        checkpoint.save(folder, next(numbers), state, keep=1)
        return checkpoint.restore(folder, step.in_shardings[0][0]), losses

    return run


def loaded(step: Any, given: Any, folder: Path) -> Callable[..., Any]:
    """The step itself, saved and loaded."""
    step.save(folder)
    return jaxpp.load(folder, like=given)


def within(limit: int, step: Any, given: Any, mesh: jaxpp.MpmdMesh, case: Case) -> Any:
    """The step within a memory limit; None where it is refused."""
    case.words.append(f"limit {limit:,}")
    try:
        limited = compare.lowered(step, given, mesh, memory_limit=limit, **case.options)
        compiled = limited.compile()
    except ProgramError as error:
        assert f"its memory limit is {limit:,}" in str(error), case.words  # noqa: PT017
        return None
    assert max(limited.program().peak_bytes) <= limit, case.words
    return compiled

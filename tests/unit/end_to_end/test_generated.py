"""Generated steps: a model, a schedule, and what they may be combined with, drawn by chance; equal to plain `jax.jit`.

JAXPP_GENERATED=300 in the environment runs as many, and not the few of the suite; JAXPP_GENERATED=40:50 these seeds.
"""

# pyright: reportUnknownLambdaType=false

import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare, decoder, test_branches, test_vocabulary
from unit.end_to_end.generated_stages import LAYERS, stage_of
from unit.end_to_end.test_scanned_layers import stack

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import ProgramError
from jaxpp.schedules.memory import activations

MICROBATCHES = 3
FAMILIES = "scans", "chain", "slices", "vocabulary", "graph", "delayed"
CHAINS = [name for name in schedules.names() if not name.startswith(("seq1f1b", "slimpipe", "vocab"))]


@dataclass
class Case:
    """A step, and what it is run with.

    Attributes:
        words: what was drawn, for messages and for refusals.
        spec: of the batch, where each mesh has several devices.
        weights: likewise of the weights.
        options: of `mpmd_jit_with_loop`.
        loop: of how many optimizer steps, with which delay, it is a step; None if it stands for itself.
    """

    plan: schedules.Schedule
    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any
    spec: Any = field(default_factory=lambda: P(None, "data"))
    weights: Any = field(default_factory=P)
    words: list[str] = field(default_factory=list[str])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    loop: tuple[int, int] | None = None


def scans(draw: random.Random) -> Case:
    """Stages of operations at random, most of which scan over their layers."""
    name, meshes = draw.choice(["1f1b", "gpipe", "zb-h1"]), draw.choice([2, 2, 4])
    plan = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES)
    stages = [stage_of(draw) for _ in range(plan.stages)]

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, weights in zip(stages, params, strict=True):
            x = jaxpp.mark_stage_end(stage(x, weights))
        return jnp.mean((x - microbatch["y"]) ** 2)

    return Case(plan, loss, [stack(k, LAYERS) for k in range(plan.stages)], compare.batch(MICROBATCHES))


def chain(draw: random.Random) -> Case:
    """Any schedule of the library, on one layer a stage; a weight that two stages share; a checkpoint; units."""
    name, meshes = draw.choice(CHAINS), draw.choice([2, 2, 4])
    plan = schedules.make(name, meshes=meshes, microbatches=2 * meshes)
    around = draw.choice([lambda f: f, jax.checkpoint])
    ties, ends, units = draw.random() < 0.3, draw.random() < 0.5, draw.random() < 0.3

    def loss(params: Any, microbatch: Any) -> Any:
        weights = [*params[:-1], params[0]] if ties else params
        marks = len(params) - (not ends)
        return around(partial(in_units if units else compare.loss, marks=marks))(weights, microbatch)

    case = Case(plan, loss, compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.words += ["units"] * units
    case.weights = draw.choice([P(), P("data")])
    return case


def in_units(params: Any, microbatch: Any, marks: int) -> Any:
    """As `compare.loss`, each layer in two units."""
    x = microbatch["x"]
    for stage, w in enumerate(params):
        x = jaxpp.mark_unit_end(jnp.tanh(jaxpp.mark_unit_end(x @ w)))
        x = jaxpp.mark_stage_end(x) if stage < marks else x
    return jnp.mean((x - microbatch["y"]) ** 2)


def delayed(draw: random.Random) -> Case:
    """Several optimizer steps whose gradients are those of older weights."""
    meshes, steps = draw.choice([2, 2, 4]), draw.choice([2, 3])
    delay = draw.randint(1, steps - 1)
    plan = schedules.make("pipedream-2bw", meshes=meshes, microbatches=4, steps=steps, delay=delay)
    return Case(plan, compare.loss, compare.weights(meshes), compare.batch(4), loop=(steps, delay))


def slices(draw: random.Random) -> Case:
    """A decoder that scans over slices of the sequence."""
    name, count = draw.choice(list(decoder.SLICES)), draw.choice([2, 3])
    meshes = draw.choice([2, 2, 4])
    plan = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES, slices=count)
    one = jax.checkpoint(decoder.of_slice) if draw.random() < 0.4 else decoder.of_slice
    loss = draw.choice([partial(decoder.loss, one=one), decoder.plain_scan])
    return Case(plan, partial(loss, slices=count), decoder.parameters(plan.stages), decoder.batch(MICROBATCHES))


def vocabulary(draw: random.Random) -> Case:
    """Layers, and a vocabulary that all meshes share."""
    name, meshes, embeds = draw.choice(["vocab-1f1b", "vocab-v-half"]), draw.choice([2, 3]), draw.random() < 0.5
    plan = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES, embedding=embeds)
    rows = draw.choice([12, 13])
    params, _ = test_vocabulary.arguments(rows, meshes * (2 if name == "vocab-v-half" else 1))
    tokens = np.random.default_rng(0).integers(0, rows, (MICROBATCHES, 4, 6)).astype(np.int32)
    return Case(plan, partial(test_vocabulary.sharded_loss, shards=meshes, embeds=embeds), params, tokens)


def graph(draw: random.Random) -> Case:
    """Stages that are a graph."""
    after = test_branches.any_graph(draw)
    homes = [stage % 3 for stage in range(len(after))]
    draw.shuffle(homes)
    placement = schedules.Placement.of(*homes, after=after)
    plan = test_branches.ordered(placement, MICROBATCHES, draw.randint(0, 99), split=draw.random() < 0.5)
    params, _ = test_branches.arguments(after, 1)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((MICROBATCHES, *shape, 4, 4)).astype(np.float32) for shape in ((len(after),), ()))
    spec = {"x": P(None, None, "data"), "y": P(None, "data")}
    return Case(plan, partial(test_branches.loss, after), params, {"x": x, "y": y}, spec)


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
            case.options["operations"] = {"norms": lambda task, residuals: None}


def mesh_of(draw: random.Random, case: Case) -> jaxpp.MpmdMesh:
    """A device for each mesh, or two, or one for all, or meshes of several sizes."""
    count = case.plan.meshes
    word = draw.choice(["alone", "alone", "data", "uneven", "shared"])
    case.words.append(word)
    if word == "alone":
        return compare.make_mesh(count)
    if word == "data":
        case.options["in_shardings"] = case.weights, case.spec
        return compare.make_mesh(count, data=2)
    if word == "shared":
        return jaxpp.MpmdMesh.of([Mesh(np.array(jax.devices()[:1]), "data")] * count)
    case.options["in_shardings"] = P(), case.spec
    sizes = [1] * count
    sizes[draw.randrange(count)] = 2
    bounds = np.cumsum(sizes)
    devices = np.split(np.array(jax.devices()[: bounds[-1]]), bounds[:-1])
    return jaxpp.MpmdMesh.of([Mesh(each, "data") for each in devices])


def train_step(loss: Any, reduced: Any, params: Any, batch: Any, schedule: Any = None) -> Any:
    gradient = partial(jax.value_and_grad(loss), params)
    losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(reduced, jaxpp.Add))
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses


def delayed_step(loss: Any, reduced: Any, schedule: Any, state: Any, batch: Any, older: Any) -> Any:
    after, losses = train_step(loss, reduced, older, batch, schedule)
    return (jax.tree.map(lambda w, new, old: w + (new - old), state[0], after, older),), losses


def in_a_loop(case: Case, reduced: Any) -> tuple[Any, Any]:
    """The loop over steps of a case, and its arguments: the batch of each step is another one."""
    assert case.loop is not None
    steps, delay = case.loop
    one = partial(delayed_step, case.loss, reduced, case.plan)
    loop = jaxpp.train_loop(one if delay else partial(train_step, case.loss, reduced, schedule=case.plan), steps, delay)
    every = jax.tree.map(lambda leaf: np.stack([np.roll(leaf, k, axis=0) for k in range(steps)]), case.batch)
    for name in {"in_shardings"} & case.options.keys():
        weights, spec = case.options[name]
        spec = jax.tree.map(lambda each: P(None, *each), spec, is_leaf=lambda each: isinstance(each, P))
        case.options[name] = weights, spec
    return loop, (loop.start((case.params,) if delay else case.params), every)


REFUSALS: Sequence[tuple[set[str], str]] = [
    ({"evict", "bpipe"}, r"^evict: bpipe has evict\(.*\) already"),
    ({"offload", "po-h"}, r"^offload: po-h has offload\(.*\) already"),
    ({"offload", "po-f"}, r"^offload: po-f has offload\(.*\) already"),
    ({"evict", "delayed"}, "mesh . runs other tasks in step . than in step 0; a loop over steps"),
    ({"offload", "delayed"}, "mesh . runs other tasks in step . than in step 0; a loop over steps"),
    ({"gather_weights chunk"}, "gather_weights is 'chunk', but no product of a stage gathers a weight"),
]
"""Of what may not be combined: the words of a case that has it, and what is said."""


def is_refused(words: Sequence[str], text: str) -> bool:
    """Whether it is known that these don't go together."""
    return any(needed <= set(words) and re.search(pattern, text) for needed, pattern in REFUSALS)


def seeds() -> range:
    given = os.environ.get("JAXPP_GENERATED", "0:6").split(":")
    return range(*map(int, given))


@pytest.mark.parametrize("seed", seeds())
def test_any_combination_changes_no_numbers(seed: int) -> None:
    """Peaks are those of the schedule, and a limit is kept, or refused by name."""
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    case: Case = globals()[family](draw)
    case.words += [family, case.plan.name]
    try:
        run(draw, case)
    except (jaxpp.PassError, schedules.ScheduleError, ProgramError, ValueError, TypeError) as error:
        if not is_refused(case.words, str(error)):
            raise AssertionError(f"{case.words}: {error}") from error


def run(draw: random.Random, case: Case) -> None:
    """Compare a step with plain `jax.jit`; and its peaks with those of its schedule."""
    changed(draw, case)
    mesh = mesh_of(draw, case)
    keep = draw.choice([None, None, None, "inputs", "selective", 0.05, 0.3, 1.0])
    reduced = draw.choice([jaxpp.Concat(), jaxpp.Concat(), jaxpp.Add, jaxpp.Max])
    case.options |= {"recompute": keep, "donate_argnums": draw.choice([(), 0])}
    case.words.append(f"keep {keep}")
    if draw.random() < 0.3:
        when = draw.choice([("gather_weights", "step"), ("scatter_gradients", "step"), ("gather_weights", "chunk")])
        case.words.append(" ".join(when))
        case.options |= dict([when])
    if draw.random() < 0.3:
        case.words.append("share_tasks")
        case.options["share_tasks"] = "always"
    step, given = partial(train_step, case.loss, reduced, schedule=case.plan), (case.params, case.batch)
    if case.loop is None and draw.random() < 0.2:
        case.loop = draw.choice([2, 3]), 0
    if case.loop is not None:
        step, given = in_a_loop(case, reduced)
        case.words.append("loop" if not case.loop[1] else "delay")
    compare.check(step, jax.tree.map(jnp.array, given), mesh, tolerance=1e-4, **case.options)
    program = jaxpp.mpmd_jit_with_loop(step, mesh, **case.options).lower(*given).program()
    if keep is None and case.loop is None:
        peaks = [int(peak) for peak in re.findall(r"jaxpp\.peak_activations = (\d+)", program.as_text())]
        assert all(found <= kept for found, kept in zip(peaks, activations(case.plan), strict=True)), case.words
    if draw.random() < 0.5:
        return
    limit = int(draw.uniform(0.5, 1.0) * max(program.peak_bytes))
    try:
        limited = jaxpp.mpmd_jit_with_loop(step, mesh, memory_limit=limit, **case.options)
        assert max(limited.lower(*given).program().peak_bytes) <= limit, case.words
    except ProgramError as error:
        assert f"its memory limit is {limit:,}" in str(error), case.words  # noqa: PT017

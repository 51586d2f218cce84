"""All else that a step may be combined with, and the families of seeds."""

# pyright: reportUnknownLambdaType=false

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from fuzz.case import Case, costs_of, ordered, placed, plan_of, shardings_of, yielded_step
from fuzz.models import CHAINED, MODELS
from jax.sharding import PartitionSpec as P

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import insert

WHOLE = tuple(name for name in MODELS if name not in ("read_sums", "effects", "partitioned"))
"""The models with a state and a loss, of which anything may be asked."""


@dataclass(frozen=True)
class Feature:
    """A change of a case, and the models that can have it.

    Attributes:
        often: the share of cases of other families that have it too.
    """

    change: Callable[[random.Random, Case], None]
    models: Sequence[str] = WHOLE
    often: float = 0.08


def some(draw: random.Random, case: Case) -> list[int]:
    """Returns stages by chance."""
    return sorted(draw.sample(range(case.plan.stages), draw.randint(1, case.plan.stages)))


def reordered(draw: random.Random, case: Case) -> None:
    """Let each mesh take its tasks in an order by chance."""
    meshes = draw.choice([each for each in (1, 2, 3, 4) if each <= case.plan.stages])
    placement = schedules.Placement.of(*placed(draw, meshes, case.plan.stages))
    case.plan = ordered(draw, placement, case.plan.microbatches)


def searched(draw: random.Random, case: Case) -> None:
    """Take what the search finds in a moment."""
    stages = case.plan.stages
    chunks = draw.choice([each for each in (1, 2) if stages % each == 0])
    options: dict[str, Any] = {"seed": draw.randrange(99), "split_backward": draw.random() < 0.5, "seconds": 0.05}
    placement = "linear" if chunks == 1 else draw.choice(("v", "looped"))
    case.plan = schedules.search(
        stages // chunks, case.plan.microbatches, costs_of(draw, stages), chunks=chunks, placement=placement, **options
    )


def evicted(draw: random.Random, case: Case) -> None:
    case.plan = evict(case.plan)


def offloaded(draw: random.Random, case: Case) -> None:
    case.plan = schedules.offload(case.plan, *some(draw, case), k=draw.choice([0.5, 1.0, 2.0]))


def recomputed(draw: random.Random, case: Case) -> None:
    case.plan = schedules.recompute(case.plan, *some(draw, case))


def inserted(draw: random.Random, case: Case) -> None:
    """Let a function of the user's look at what stages keep."""
    operation = schedules.Operation.parse("norms: forward")
    case.plan = insert(case.plan, operation, *some(draw, case), after="forward")
    case.options["operations"] = {"norms": look}


def look(task: jaxpp.Task, residuals: Sequence[jax.Array]) -> None:
    """Look at residuals, as a user's function."""
    assert task.kind == "norms"
    assert all(isinstance(each, jax.Array) for each in residuals)


def kept(draw: random.Random, case: Case) -> None:
    """Let stages keep less, in one way or each in its own."""
    ways = ("inputs", "selective", 0.05, 0.3, 1.0, "256B", "4096B")
    stages = some(draw, case)
    each = {stage: draw.choice(ways) for stage in stages}
    case.options["recompute"] = draw.choice((draw.choice(ways), each))


def in_memory(draw: random.Random, case: Case) -> None:
    case.limit = draw.uniform(0.8, 1.5)


def fsdp(draw: random.Random, case: Case) -> None:
    """Shard the weights over the axis of the batch, gather and scatter them."""
    case.mesh, case.is_sharded = "data", True
    for name, ways in (("gather_weights", ("step", "chunk", "ahead")), ("scatter_gradients", ("step", "chunk"))):
        if draw.random() < 0.6:
            case.options[name] = draw.choice(ways)
            case.words.append(f"{name} {case.options[name]}")


def uneven(draw: random.Random, case: Case) -> None:
    case.mesh, case.is_sharded = "uneven", draw.random() < 0.4


def shared(draw: random.Random, case: Case) -> None:
    case.mesh = "shared"


def explicit(draw: random.Random, case: Case) -> None:
    case.mesh = "explicit"


def share_tasks(draw: random.Random, case: Case) -> None:
    case.options["share_tasks"] = "always"


def donated(draw: random.Random, case: Case) -> None:
    case.options["donate_argnums"] = 0


def loop(draw: random.Random, case: Case) -> None:
    if case.loop is None:
        case.loop = draw.choice([2, 3]), 0


def left_out(draw: random.Random, case: Case) -> None:
    """Freeze stages: all of their weight gradients are left out."""
    name = draw.choice(("zb-h1", "zb-h2", "zb-v", "interleaved-zb"))
    case.plan = plan_of(draw, name, (case.plan.stages,) * 4, (case.plan.microbatches,))
    case.frozen = {stage: 1.0 for stage in some(draw, case)} if case.is_split else {}


def in_processes(draw: random.Random, case: Case) -> None:
    """Run in two or three processes, each with a mesh at least, or with a part of one that two of them share."""
    case.way, case.processes = "processes", draw.choice((2, 3))
    case.words.append(f"{case.processes} processes")
    if case.plan.meshes < min(case.processes, case.plan.stages):
        case.plan = schedules.make("1f1b", meshes=case.plan.stages, microbatches=case.plan.microbatches)
        case.options.pop("operations", None)  # of the schedule before
    if len(jax.tree.leaves(case.params)) == 1:  # a single array comes back as a state only if it is donated
        case.options["donate_argnums"] = 0
    is_shared = case.plan.meshes < case.processes or draw.random() < 0.4
    case.mesh = "data" if is_shared or case.is_sharded else "alone"


def by_yield(draw: random.Random, case: Case) -> None:
    """Take one microbatch, and no loop."""
    case.plan = schedules.make("1f1b", meshes=case.plan.stages, microbatches=case.plan.microbatches)
    case.step, case.by_yield = partial(yielded_step, case.loss), True
    case.options = {name: value for name, value in case.options.items() if name == "donate_argnums"}
    case.limit, case.loop, case.frozen = None, None, {}
    case.way = case.way if case.way in ("laid out", "restored") else ""


def x64(draw: random.Random, case: Case) -> None:
    """Compute with 64 bits."""
    case.x64 = True
    case.params, case.batch = jax.tree.map(doubled, (case.params, case.batch))


def doubled(leaf: Any) -> Any:
    """Returns float32 numbers in float64."""
    return np.asarray(leaf, np.float64) if np.asarray(leaf).dtype == np.float32 else leaf


def way(name: str, models: Sequence[str] = WHOLE, often: float = 0.04) -> Feature:
    """Returns a change of what happens between two calls."""
    return Feature(lambda draw, case: setattr(case, "way", name), models, often)


SIMPLE = ("chain", "stacked", "scans", "twice", "alike")
FEATURES: dict[str, Feature] = {
    "reordered": Feature(reordered, CHAINED),
    "searched": Feature(searched, CHAINED, 0.03),
    "left out": Feature(left_out, ("scans",), 0),
    "recomputed": Feature(recomputed),
    "offloaded": Feature(offloaded),
    "evicted": Feature(evicted, often=0.04),
    "inserted": Feature(inserted),
    "kept": Feature(kept, (*WHOLE, "effects"), 0.25),
    "in memory": Feature(in_memory, often=0.1),
    "shared": Feature(shared, [name for name in WHOLE if name != "mapped"]),
    "uneven": Feature(uneven, [name for name in WHOLE if name != "mapped"]),
    "explicit": Feature(explicit, ("chain", "twice", "alike"), 0.02),
    "fsdp": Feature(fsdp, often=0.15),
    "share tasks": Feature(share_tasks, often=0.25),
    "donated": Feature(donated, tuple(MODELS), 0.4),
    "loop": Feature(loop, SIMPLE, 0.1),
    "laid out": way("laid out"),
    "saved": way("saved"),
    "healed": way("healed"),
    "restored": way("restored"),
    "moved": way("moved", SIMPLE),
    "x64": Feature(x64, SIMPLE, 0.05),
    "by yield": Feature(by_yield, SIMPLE, 0),
    "processes": Feature(in_processes, SIMPLE, 0),
}
"""In the order in which they are drawn: changes of the schedule stand before those that need it."""

PLANS = ("reordered", "searched", "left out")
"""The features that take another schedule."""

FAMILIES = (*MODELS, *schedules.names(), *FEATURES)
"""The families of which a seed has one for sure, by its remainder."""

GIVEN = {"seq1f1b": "slices", "slimpipe": "slices", "vocab": "vocabulary"}
"""The models of schedules that are not for every chain."""


def make(seed: int) -> Case:
    """Returns the case of a seed."""
    draw, family = random.Random(seed), FAMILIES[seed % len(FAMILIES)]
    schedule = family if family in schedules.names() else ""
    if family in MODELS:
        model = family
    elif schedule:
        model = next((each for name, each in GIVEN.items() if schedule.startswith(name)), "") or draw.choice(CHAINED)
    else:
        model = draw.choice(FEATURES[family].models)
    case = MODELS[model](draw, schedule)
    case.words[:0] = [model]
    also = [name for name, each in FEATURES.items() if draw.random() < each.often and model in each.models]
    chosen = {name for name in also if name not in PLANS or not (schedule or family in PLANS)} | (
        {family} & FEATURES.keys()
    )
    for name in [name for name in FEATURES if name in chosen]:
        FEATURES[name].change(draw, case)
        case.words.append(name)
    finish(draw, case)
    return case


def moved_plan(plan: schedules.Schedule) -> schedules.Schedule:
    """Returns a schedule of the same stages on other meshes."""
    homes = [(mesh + 1) % plan.meshes for mesh in placed(random.Random(plan.stages), plan.meshes, plan.stages)]
    return ordered(random.Random(0), schedules.Placement.of(*homes), plan.microbatches)


def finish(draw: random.Random, case: Case) -> None:
    """Choose what is left: meshes, shardings, how losses are put together."""
    if case.way == "saved" and "operations" in case.options:  # functions of Python are not saved
        case.way = ""
    if case.way == "moved":  # the other schedule splits no backward
        case.frozen = {}
    case.words.insert(1, case.plan.name)
    case.mesh = case.mesh or draw.choice(("alone", "data"))
    case.reduced = draw.choice((jaxpp.Concat(), jaxpp.Concat(), jaxpp.Add, jaxpp.Max))
    case.words += [case.mesh] * (case.mesh not in FEATURES)
    if case.mesh in ("data", "uneven", "explicit"):
        weights = case.sharded if case.is_sharded else P()
        case.options["in_shardings"] = shardings_of(case, weights)

"""A generated step: a model, a schedule, and all else that it is run with."""

# pyright: reportUnknownLambdaType=false

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.library import options_of

CHAINS = [name for name in schedules.names() if not name.startswith(("seq1f1b", "slimpipe", "vocab"))]
"""The schedules of stages that are a chain."""

Step = Callable[..., Any]
Words = list[str]


@dataclass
class Case:
    """A step before it is compiled.

    Attributes:
        words: the families that it belongs to, and what else was drawn.
        plan: its schedule.
        loss: of the parameters and a microbatch.
        step: a whole step of the user's; None for `train_step` of the loss.
        spec: the sharding of the batch, where a mesh has several devices.
        sharded: the sharding of the parameters, where they are sharded.
        mesh: the kind of its meshes.
        options: of `mpmd_jit_with_loop`.
        reduced: how the losses of microbatches are put together.
        loop: the number of optimizer steps and their delay; None for a step that stands for itself.
        is_sharded: whether the parameters are sharded, where a mesh has several devices.
        way: what happens between two calls of the step: "healed", "restored"...; "" for nothing.
        processes: how many of them the step runs in, where that is its way.
        limit: the memory limit, as a share of what the step needs; None for no limit.
        frozen: the shares of weight gradients that the step leaves out, by stage.
        by_yield: whether the step is one microbatch, without a loop.
        x64: whether it is traced and run with 64 bits.
        calls: what callbacks were called with.
    """

    plan: schedules.Schedule
    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any
    spec: Any = field(default_factory=lambda: P(None, "data"))
    sharded: Any = field(default_factory=lambda: P("data"))
    step: Step | None = None
    words: Words = field(default_factory=list[str])
    mesh: str = ""
    is_sharded: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    reduced: Any = None
    loop: tuple[int, int] | None = None
    way: str = ""
    processes: int = 1
    limit: float | None = None
    frozen: Mapping[int, float] = field(default_factory=dict[int, float])
    by_yield: bool = False
    x64: bool = False
    calls: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    @property
    def is_split(self) -> bool:
        """Whether the backwards of its schedule are split."""
        return any(task.kind == "weight_grad" for task in self.plan)


MICROBATCHES = (2, 3, 4, 4, 6, 8)


def plan_of(
    draw: random.Random,
    name: str = "",
    stages: Sequence[int] = (2, 2, 3, 4),
    microbatches: Sequence[int] = MICROBATCHES,
) -> schedules.Schedule:
    """Returns a schedule for a chain, of the library unless `name` says which one, with options by chance."""
    for attempt in itertools.count():
        wanted = name or draw.choice(CHAINS)
        # Some schedules need more stages, or more microbatches, than most cases have.
        most = draw.choice(stages) if attempt < 40 else draw.choice((*stages, 6, 8))
        meshes, count = draw.choice((1, 2, 2, 3, 4)), draw.choice(microbatches if attempt < 80 else MICROBATCHES)
        try:
            plan = schedules.make(wanted, meshes=meshes, microbatches=count, **options_for(draw, wanted, meshes, most))
        except schedules.ScheduleError:
            continue
        if plan.stages == most:
            return plan
    raise AssertionError


def options_for(draw: random.Random, name: str, meshes: int, stages: int) -> dict[str, Any]:
    """Returns options of a schedule of the library; not all of them fit."""
    ways: dict[str, Callable[[], Any]] = {
        "chunks": lambda: max(1, stages // meshes),
        "fused": lambda: draw.random() < 0.5,
        "doubling": lambda: draw.random() < 0.5,
        "group": lambda: draw.choice((None, 1, 2)),
        "costs": lambda: costs_of(draw, stages),
        "placement": lambda: schedules.Placement.of(*placed(draw, meshes, stages)),
    }
    known = options_of(name).keys() & ways.keys()
    # A placement says how many stages there are.
    chosen = [each for each in sorted(known) if each == "chunks" or draw.random() < 0.4]
    chosen = [each for each in chosen if each != "chunks" or "placement" not in chosen]
    return {each: ways[each]() for each in chosen}


def placed(draw: random.Random, meshes: int, stages: int) -> list[int]:
    """Returns the mesh of each stage, so that each mesh has one."""
    homes = [stage % meshes for stage in range(max(stages, meshes))]
    draw.shuffle(homes)
    return homes


def costs_of(draw: random.Random, stages: int) -> schedules.Costs:
    """Returns the costs of stages that differ."""
    kinds = ("forward", "input_grad", "weight_grad")
    costs: dict[str, Any] = {kind: [draw.choice((1, 2, 5)) for _ in range(stages)] for kind in kinds}
    return schedules.Costs(**costs)


def ordered(draw: random.Random, placement: schedules.Placement, microbatches: int) -> schedules.Schedule:
    """Returns a schedule in which each mesh prefers some tasks by chance."""
    is_split = draw.random() < 0.5
    kinds = ("forward", "input_grad", "weight_grad") if is_split else ("forward", "backward")
    likes = {(kind, stage): draw.random() for kind in kinds for stage in range(placement.stages)}
    return by_priority("mine", placement, microbatches, lambda task: likes[task.kind, task.stage], tasks=kinds)


def owners_of(case: Case) -> list[list[int]]:
    """Returns by mesh the processes that have a device of it: all have the same number of meshes, or nearly so."""
    width = 2 if case.mesh == "data" else 1
    return [[(mesh + each) % case.processes for each in range(width)] for mesh in range(case.plan.meshes)]


def mesh_over_processes(case: Case) -> jaxpp.MpmdMesh:
    """Returns the meshes of a case that runs in several processes, this one among them."""
    free = [[each for each in jax.devices() if each.process_index == process] for process in range(case.processes)]
    return jaxpp.MpmdMesh.of(
        [Mesh(np.array([free[process].pop(0) for process in owners]), "data") for owners in owners_of(case)]
    )


def mesh_of(case: Case) -> jaxpp.MpmdMesh:
    """Returns the meshes of a case: a device for each, or two, or one for all, or meshes of several sizes."""
    count = case.plan.meshes
    if case.mesh == "alone":
        return compare.make_mesh(count)
    if case.mesh == "shared":
        return jaxpp.MpmdMesh.of([Mesh(np.array(jax.devices()[:1]), "data")] * count)
    if case.mesh in ("data", "explicit"):
        return compare.make_mesh(count, data=2, explicit=case.mesh == "explicit")
    sizes = [1 + (mesh == 0) for mesh in range(count)]
    bounds = np.cumsum(sizes)
    return jaxpp.MpmdMesh.of([Mesh(each, "data") for each in np.split(jax.devices()[: bounds[-1]], bounds[:-1])])


def train_step(loss: Any, reduced: Any, params: Any, batch: Any, schedule: Any = None) -> Any:
    """Returns (new parameters, the losses put together)."""
    gradient = partial(jax.value_and_grad(loss), params)
    losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(reduced, jaxpp.Add))
    return jax.tree.map(descended, params, grads), losses


def yielded_step(loss: Any, params: Any, batch: Any) -> Any:
    """Returns (new parameters, the loss) of the first microbatch alone."""
    value, grads = jax.value_and_grad(loss)(params, jax.tree.map(lambda leaf: leaf[0], batch))
    return jax.tree.map(descended, params, grads), value


def descended(weight: Any, gradient: Any) -> Any:
    """Returns a weight after a step, in its own type."""
    return (weight - 0.1 * gradient).astype(weight.dtype)


def delayed_step(loss: Any, reduced: Any, state: Any, batch: Any, older: Any, schedule: Any = None) -> Any:
    """Returns the same, by the gradients of older parameters."""
    after, losses = train_step(loss, reduced, older, batch, schedule)
    return (jax.tree.map(lambda w, new, old: w + (new - old), state[0], after, older),), losses


def step_of(case: Case) -> tuple[Step, tuple[Any, Any]]:
    """Returns the step of a case and its arguments."""
    if case.step is not None:
        return case.step, (case.params, case.batch)
    if case.loop is None:
        return partial(train_step, case.loss, case.reduced, schedule=case.plan), (case.params, case.batch)
    steps, delay = case.loop
    one = partial(delayed_step if delay else train_step, case.loss, case.reduced, schedule=case.plan)
    loop = jaxpp.train_loop(one, steps, delay)
    every = jax.tree.map(lambda leaf: np.stack([np.roll(leaf, k, axis=0) for k in range(steps)]), case.batch)
    return loop, (loop.start((case.params,) if delay else case.params), every)


def shardings_of(case: Case, weights: Any) -> tuple[Any, Any]:
    """Returns the shardings of the arguments, those of the parameters given."""
    if case.loop is None:
        return weights, case.spec
    spec = jax.tree.map(lambda each: P(None, *each), case.spec, is_leaf=lambda each: isinstance(each, P))
    return ((weights,), weights) if case.loop[1] else weights, spec

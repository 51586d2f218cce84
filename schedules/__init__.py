"""Schedules of pipeline parallelism as data: no JAX, no MLIR.

A pipeline cuts a model into *stages* and a batch into *microbatches*. A *schedule* says which *mesh* (group of devices)
holds which stage, and in which order each mesh runs its tasks. A task is the forward or the backward of one stage for
one microbatch.

    >>> from jaxpp import schedules as S
    >>> print(S.make("1f1b", meshes=2, microbatches=3))
    schedule: 1f1b
    placement: 0 1
    mesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2
    mesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2

The grid is a complete description of the schedule: `S.parse` reads it back exactly. `0F2` is the forward of stage 0 for
microbatch 2. B is a full backward; I and W are its two parts, the input gradient and the weight gradient.

    names(), make(...) the published schedules; nine also as JaxPP's classes: Std1F1B, ZeroBubble, DualPipeV, ...
    resolve(...)       the schedule that a user named, wrote in a file, or gave as text or object
    check(s)           finds the first error of a schedule
    simulate(s, costs) when each task starts and ends, the makespan, the bubbles, the memory
    draw(report, path) a picture: SVG, PNG, or an HTML page that zooms
    recompute(s, ...)  the schedule with stages that recompute; offload(s, ...) with copies to the host
    search(...)        the best schedule within a memory limit; tune(costs, ...) compares it with the published ones
    improve(s, costs)  a better order of the tasks of a schedule, of any kinds
    partition(...)     the layers of each stage, and the best schedule for these

A user's schedule is a few lines of a small language (`Plan`, `F`, `B`, `I`, `W`, `Operation`), a grid, a `Schedule` of
`Task`s, or a subclass of `BaseSchedule`. An error in it raises a `ScheduleError` with the mesh, the position and the
reason. Other names are in the modules of this package:

    builders              block, a repeated building block; by_priority, the preferences of a free mesh; repeat and
                          in_steps, several optimizer steps
    rewrites              changes of a finished schedule: insert, subdivide, split_backward, freeze, evict; fill, side
                          work in the bubbles; freeze_ratios, the weight gradients to leave out
    layers                rows_of_layers, the order of stacked layers in which those of each mesh are contiguous
    engine.activations    activations, the number that each mesh keeps
    engine.merged_order   merged_order, one order over all meshes
    model.sequence_cuts   equal_cuts, the lengths of slices that take equally long
    library               the function of each published schedule, such as library.classic.gpipe
"""

from __future__ import annotations

from jaxpp.schedules.builders.language import B, F, I, Operation, Plan, W
from jaxpp.schedules.classes import (
    BaseSchedule,
    DualPipeV,
    Eager1F1B,
    GPipe,
    Interleaved1F1B,
    InterleavedGPipe,
    InterleavedZeroBubble,
    KimiK2,
    Std1F1B,
    ZeroBubble,
)
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.given import resolve
from jaxpp.schedules.library import names
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import Kind
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task, TaskType
from jaxpp.schedules.plot import draw
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.tasks import recompute
from jaxpp.schedules.search import improve, make, partition, search, tune

parse = Schedule.parse

__all__ = [
    "B",
    "BaseSchedule",
    "Costs",
    "DualPipeV",
    "Eager1F1B",
    "F",
    "GPipe",
    "I",
    "Interleaved1F1B",
    "InterleavedGPipe",
    "InterleavedZeroBubble",
    "KimiK2",
    "Kind",
    "Operation",
    "Placement",
    "Plan",
    "Schedule",
    "ScheduleError",
    "Std1F1B",
    "Task",
    "TaskType",
    "W",
    "ZeroBubble",
    "check",
    "draw",
    "improve",
    "make",
    "names",
    "offload",
    "parse",
    "partition",
    "recompute",
    "resolve",
    "search",
    "simulate",
    "tune",
]

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
    rows_of_layers(...) the order of stacked layers in which the layers of each mesh are contiguous
    merged_order(s)    one order over all meshes, for a process that dispatches them all
    simulate(s, costs) when each task starts and ends, the makespan, the bubbles, the memory
    search(...)        the best schedule within a memory limit; tune(costs, ...) compares it with the published ones
    improve(s, costs)  a better order of the tasks of a schedule, of any kinds
    partition(...)     the layers of each stage, and the best schedule for these
    fill(s, operation) side work in the bubbles
    freeze_ratios(...) the weight gradients to leave out so that a step gets shorter
    draw(report, path) a picture: SVG, PNG, or an HTML page that zooms; draw_history(found, path) draws a search

A user's schedule is a few lines of a small language (`jaxpp.schedules.language`), a grid, a `Schedule` of `Task`s, or a
subclass of `BaseSchedule`. An error in it raises a `ScheduleError` with the mesh, the position and the reason.

    Plan, F, B, I, W, Operation       the tasks of each mesh, step by step
    block, by_priority                a repeated building block; the preferences of a free mesh
    offload, evict, recompute, split_backward, freeze, insert, subdivide    changes of a finished schedule
    repeat, in_steps                  several optimizer steps
"""

from __future__ import annotations

from jaxpp.schedules.blocks import block
from jaxpp.schedules.check import check
from jaxpp.schedules.classes import (
    BaseSchedule,
    DualPipeV,
    Eager1F1B,
    GPipe,
    Interleaved1F1B,
    InterleavedBaseSchedule,
    InterleavedGPipe,
    InterleavedZeroBubble,
    KimiK2,
    LibrarySchedule,
    ScheduleTasks,
    Std1F1B,
    ZeroBubble,
)
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.fill import bubbles_used, fill
from jaxpp.schedules.formats.picture import draw, draw_history
from jaxpp.schedules.freezing import Frozen, freeze_ratios
from jaxpp.schedules.given import resolve
from jaxpp.schedules.host import offload
from jaxpp.schedules.kinds import Kind, Need
from jaxpp.schedules.language import B, F, I, MeshOrder, Operation, Pattern, Plan, W
from jaxpp.schedules.layers import rows_of_layers, stored_rows
from jaxpp.schedules.library import names
from jaxpp.schedules.library.classic import gpipe, one_f_one_b
from jaxpp.schedules.library.exchange import exchange_costs
from jaxpp.schedules.memory import activations
from jaxpp.schedules.order import merged_numbers, merged_order, start_times, unit_cost
from jaxpp.schedules.peers import evict
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.report import Bubble, Report, Transfer
from jaxpp.schedules.rewrites import freeze, insert, recompute, split_backward, subdivide
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search import Found, Partition, Tuned, improve, make, partition, search, tune
from jaxpp.schedules.sequence_cuts import equal_cuts
from jaxpp.schedules.simulate import simulate
from jaxpp.schedules.steps import UPDATE, first_step, in_steps, is_in_one_order, repeat, steps_of
from jaxpp.schedules.task import Placement, Task, TaskType

parse = Schedule.parse
from_csv = Schedule.from_csv

__all__ = [
    "UPDATE",
    "B",
    "BaseSchedule",
    "Bubble",
    "Costs",
    "DualPipeV",
    "Eager1F1B",
    "F",
    "Found",
    "Frozen",
    "GPipe",
    "I",
    "Interleaved1F1B",
    "InterleavedBaseSchedule",
    "InterleavedGPipe",
    "InterleavedZeroBubble",
    "KimiK2",
    "Kind",
    "LibrarySchedule",
    "MeshOrder",
    "Need",
    "Operation",
    "Partition",
    "Pattern",
    "Placement",
    "Plan",
    "Report",
    "Schedule",
    "ScheduleError",
    "ScheduleTasks",
    "Std1F1B",
    "Task",
    "TaskType",
    "Transfer",
    "Tuned",
    "W",
    "ZeroBubble",
    "activations",
    "block",
    "bubbles_used",
    "by_priority",
    "check",
    "draw",
    "draw_history",
    "equal_cuts",
    "evict",
    "exchange_costs",
    "fill",
    "first_step",
    "freeze",
    "freeze_ratios",
    "from_csv",
    "gpipe",
    "improve",
    "in_steps",
    "insert",
    "is_in_one_order",
    "make",
    "merged_numbers",
    "merged_order",
    "names",
    "offload",
    "one_f_one_b",
    "parse",
    "partition",
    "recompute",
    "repeat",
    "resolve",
    "rows_of_layers",
    "search",
    "simulate",
    "split_backward",
    "start_times",
    "steps_of",
    "stored_rows",
    "subdivide",
    "tune",
    "unit_cost",
]

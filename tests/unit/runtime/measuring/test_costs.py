"""The costs of a measured step: exact ones from events written out by hand, and those of a program that ran."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.runtime.programs import Pipeline, parse, tick

from jaxpp import runtime
from jaxpp import schedules as S
from jaxpp.ir.program import Instruction, TaskName
from jaxpp.ir.tensors import TensorSpec

PROGRAM = parse(Pipeline(2, 3).text())
X = 8 * 32 * 4


def tasks(mesh: int, kind: str, *seconds: float) -> list[runtime.Event]:
    """A task of stage `mesh` for each microbatch."""
    return [runtime.Event(mesh, kind, mesh, number, 0.0, time, time) for number, time in enumerate(seconds)]


def sends(mesh: int, *seconds: float, start: float = 0.0) -> list[runtime.Event]:
    """What such a task sends to the other mesh."""
    return [
        dataclasses.replace(event, kind="send", start=start, target=1 - mesh, made=X)
        for event in tasks(mesh, "forward", *seconds)
    ]


STEP = [
    *(runtime.Event(mesh, "before", None, None, 0.0, 99.0, 99.0) for mesh in range(2)),
    runtime.Event(0, "send", None, None, 0.0, 99.0, 99.0, target=1),
    *tasks(0, "forward", 9.0, 1.0, 3.0),
    *tasks(0, "backward", 9.0, 4.0, 6.0),
    *tasks(1, "forward", 0.5, 4.0, 4.0),
    *tasks(1, "backward", 0.5, 7.0, 8.0),
]


def test_medians_without_the_first_microbatch() -> None:
    found = runtime.measured_costs(PROGRAM, STEP, unit="s")
    assert found == S.Costs(
        forward=[2, 4],
        input_grad=[2.5, 3.75],
        weight_grad=[2.5, 3.75],
        message_bytes=[X, 0],
        activation_bytes=[2 * X, 2 * X],
        unit="s",
    )


def test_units_and_digits() -> None:
    third, quarter = (tasks(0, "forward", 9.0, seconds) + tasks(1, "forward", 2.0) for seconds in (0.001 / 3, 0.25))
    found = runtime.measured_costs(PROGRAM, third)
    assert (found.unit, found.forward) == ("ms", (0.333333, 2000))
    found = runtime.measured_costs(PROGRAM, quarter, unit="us")
    assert (found.unit, found.forward) == ("us", (250000, 2000000))
    with pytest.raises(S.ScheduleError, match="unit must be one of s, ms, us, units, found 'minutes'"):
        runtime.measured_costs(PROGRAM, STEP, unit="minutes")


def test_a_single_microbatch_and_several_steps() -> None:
    one, two, three = (tasks(0, "forward", 2.0 * n) + tasks(1, "forward", 1.0 * n) for n in (2, 5, 3))
    assert runtime.measured_costs(PROGRAM, one, unit="s").forward == (4, 2)
    assert runtime.measured_costs(PROGRAM, one, two, three, unit="s").forward == (6, 3)


def test_a_hop_takes_as_long_as_the_longest_copy_of_a_task() -> None:
    """A task sends two arrays at once; a later task of the same stage and microbatch sends another back."""
    step = [*STEP, *sends(0, 9.0, 1.0, 1.0), *sends(0, 9.0, 3.0, 0.5), *sends(1, 9.0, 5.0, 7.0)]
    assert runtime.measured_costs(PROGRAM, step, unit="s").hop == 4, "of 3, 1, 5 and 7"
    step = [*STEP, *sends(0, 9.0, 1.0, 1.0), *sends(0, 3.0, 3.0, 3.0, start=2.0)]
    assert runtime.measured_costs(PROGRAM, step, unit="s").hop == 3, "of 1, 1, 3, 3 and 3"


def test_halves_of_a_backward_that_were_measured_apart() -> None:
    step = [
        *tasks(0, "forward", 1.0),
        *tasks(0, "weight_grad", 3.0),
        *tasks(1, "forward", 1.0),
        *tasks(1, "input_grad", 2.0),
        *tasks(1, "weight_grad", 4.0),
    ]
    found = runtime.measured_costs(PROGRAM, step, unit="s")
    assert (found.input_grad, found.weight_grad) == ((1e-9, 2), (3, 4)), "the first stage has no input gradient"


def fused(mesh: int, seconds: float, *parts: tuple[str, int, int]) -> runtime.Event:
    kind = "+".join(kind for kind, *_ in parts)
    tasks = tuple(runtime.TaskName(*part) for part in parts)
    return runtime.Event(mesh, kind, None, None, 0.0, seconds, seconds, fused=tasks)


def test_fused_tasks_that_run_alone_too() -> None:
    pair = [fused(0, seconds, ("forward", 0, n), ("backward", 1, n + 3)) for n, seconds in enumerate((99.0, 4.0, 4.5))]
    step = [*tasks(0, "forward", 2.0), *tasks(1, "forward", 2.0), *tasks(1, "backward", 3.0), *pair]
    found = runtime.measured_costs(PROGRAM, step, unit="s")
    assert (found.forward, found.input_grad, found.fused) == ((2, 2), (1e-9, 1.5), 0.85)


def test_what_is_fused_everywhere_has_what_the_others_leave() -> None:
    pair = [fused(0, seconds, ("forward", 0, n), ("backward", 1, n + 3)) for n, seconds in enumerate((99.0, 4.0, 6.0))]
    found = runtime.measured_costs(PROGRAM, [*tasks(0, "forward", 2.0), *tasks(1, "forward", 2.0), *pair], unit="s")
    assert (found.forward, found.input_grad, found.fused) == ((2, 2), (1e-9, 1.5), 1)


def test_without_a_task_there_are_no_costs() -> None:
    for steps in ([], [STEP[:3]]):
        with pytest.raises(ValueError, match="the events have no task of a stage"):
            runtime.measured_costs(PROGRAM, *steps)


def call(kind: str, stage: int, microbatch: int, operands: Sequence[int], results: Sequence[int]) -> runtime.Call:
    tasks = (TaskName(kind, stage, microbatch),)
    return runtime.Call(f"{kind}_{stage}", tuple(operands), tuple(results), kind, tasks, ())


def program(sizes: Sequence[Mapping[int, int]], sequences: Sequence[Sequence[Instruction]]) -> runtime.Program:
    """`sizes[mesh][register]` in bytes."""
    registers: Any = [
        tuple(TensorSpec((mesh.get(number, 0),), np.dtype("i1"), ((),)) for number in range(1 + max(mesh)))
        for mesh in sizes
    ]
    return runtime.Program(
        len(sizes), (1,) * len(sizes), ({},) * len(sizes), {}, tuple(map(tuple, sequences)), tuple(registers), {}, ()
    )


def test_bytes_of_a_split_backward() -> None:
    """Stages 0 and 1 on mesh 0, stage 2 on mesh 1. Register 0 is a weight, 1 a sum over the microbatches."""
    weight, total, x, saved, y, z, gy, gz, kept = range(9)
    first: list[Instruction] = [
        runtime.Call("before", (weight,), (total,), "before", (), ()),
        call("forward", 0, 5, [weight], [x, saved]),
        call("forward", 1, 5, [weight, x], [y]),
        runtime.Send(7, y, 1, ()),
        runtime.Receive(8, gz, 1),
        call("input_grad", 1, 5, [weight, x, gz], [gy, kept]),
        call("weight_grad", 1, 5, [kept, gz, total], [z]),
        call("backward", 0, 5, [weight, saved, gy, total], []),
    ]
    there: list[Instruction] = [
        runtime.Receive(7, x, 0),
        call("forward", 2, 5, [weight, x], [saved]),
        call("backward", 2, 5, [weight, saved], [gz]),
        runtime.Send(8, gz, 0, ()),
    ]
    sizes = {weight: 1, total: 2, x: 4, saved: 8, y: 16, z: 32, gy: 64, gz: 128, kept: 256}
    made = program([sizes, {weight: 1, x: 16, saved: 512, gz: 128}], [first, there])
    events = [runtime.Event(stage == 2, "forward", stage, 5, 0.0, 1.0, 1.0) for stage in range(3)]
    found = runtime.measured_costs(made, events)
    assert found.message_bytes == (4, 16, 0)
    assert found.activation_bytes == (8, 4, 512)
    assert found.weight_grad_bytes == (0, 256 + 128, 0)


def test_the_simulator_reads_the_costs_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)
    pipeline = Pipeline(4, 8)
    executable = pipeline.executable()
    _, events = runtime.trace_step(executable, pipeline.arguments())
    costs = runtime.measured_costs(executable.program, events)
    assert costs == S.Costs(
        forward=[1000] * 4,
        input_grad=[500] * 4,
        weight_grad=[500] * 4,
        hop=1000,
        message_bytes=[X, X, X, 0],
        activation_bytes=[2 * X] * 4,
        unit="ms",
    )
    for name in ("costs.toml", "costs.json"):
        costs.save(tmp_path / name)
        assert S.Costs.load(tmp_path / name) == costs
    report = S.simulate(S.make("1f1b", meshes=4, microbatches=8), S.Costs.load(tmp_path / "costs.toml"))
    assert report.peak_bytes() == [8 * X, 6 * X, 4 * X, 2 * X]

"""Weight gradients that a step leaves out: `jaxpp.frozen`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import chain
from numbers import Integral, Real
from typing import Any, cast

from jaxpp._system import setting
from jaxpp.ir.program import Call, Program
from jaxpp.runtime.execution.registers import Registers
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.execution.steps import FlatStep
from jaxpp.runtime.processes.arrays import batch_copy

FrozenStages = Mapping[int, float | Collection[int]]
"""For each stage the share of its microbatches to leave out, or the microbatches themselves."""

Tasks = frozenset[tuple[int, int]]
"""The (stage, microbatch) pairs of weight gradients."""

_stages: ContextVar[FrozenStages] = ContextVar("jaxpp_frozen", default={})  # noqa: B039  # nobody writes into it


def frozen(stages: FrozenStages) -> AbstractContextManager[None]:
    """Leaves out weight gradients of the steps that run in a `with` block, without compiling anything anew.

        with jaxpp.frozen({0: 1.0, 1: 0.5}):
            state = step(state, batch)

    The sums of gradients lack the terms of these microbatches, as do metrics of gradients, such as norms. All other
    results stay the same. A sum counts as one of gradients if a weight of its stage has its shape. The schedule must
    split the backwards of these stages (`zb-h1`, `rewrites.split_backward`). All processes of a job must give the same
    stages, as they give the same arguments. The block holds only for steps that this thread calls.

    Parts of a model that have converged need no gradients any more (TimelyFreeze, arXiv 2602.05754).
    `jaxpp.schedules.rewrites.freeze_ratios` chooses the shares that shorten the step most.

    Args:
        stages: for each stage the share of its microbatches whose weight gradients are left out, from 0 to 1, evenly
            spread; or the indices of these microbatches. An inner block replaces an outer one.

    Raises:
        TypeError: `stages` is not such a mapping.
        ValueError: a share is not from 0 to 1. When a step runs: a stage has no separate weight gradients, for these
            microbatches or at all.
    """
    return setting(_stages, _checked(stages))


def current_frozen() -> FrozenStages:
    """Returns the stages that the current `frozen` block gives."""
    return _stages.get()


def _checked(stages: Any) -> FrozenStages:
    expected = "expected for each stage a share from 0 to 1, or numbers of microbatches"
    if not isinstance(stages, Mapping):
        raise TypeError(f"frozen: {expected}, found {stages!r}")
    found: dict[int, float | tuple[int, ...]] = {}
    for stage, what in cast("Mapping[Any, Any]", stages).items():
        numbers = tuple(what) if isinstance(what, Iterable) else ()
        if not _is_number(stage) or isinstance(what, bool) or not isinstance(what, Real | Iterable):
            raise TypeError(f"frozen: {expected}, found {stage!r}: {what!r}")
        if not all(map(_is_number, numbers)):
            raise TypeError(f"frozen: {expected}, found {stage!r}: {what!r}")
        if isinstance(what, Real) and not 0 <= float(what) <= 1:
            raise ValueError(f"frozen: {expected}, found {stage!r}: {what!r}")
        found[int(stage)] = float(what) if isinstance(what, Real) else tuple(map(int, numbers))
    return found


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def frozen_tasks(program: Program, stages: FrozenStages) -> Tasks:
    """Returns the weight gradients of a program that are left out.

    Raises:
        ValueError: a stage has no weight gradient that can be left out, for one of these microbatches or at all.
    """
    if not stages:
        return frozenset()
    present: dict[int, dict[int, bool]] = {stage: {} for stage in stages}
    for call in chain.from_iterable(program.calls):
        for kind, stage, microbatch, _ in call.tasks:
            if stage in present and kind in ("backward", "weight_grad"):
                alone = call.kind == "weight_grad" and len(program.functions[call.function].sums) > 0
                present[stage][microbatch] = alone
    found: set[tuple[int, int]] = set()
    for stage, what in stages.items():
        numbers = sorted(present[stage])
        left_out = _spread(numbers, what) if isinstance(what, int | float) else what
        for microbatch in left_out:
            if microbatch not in present[stage]:
                raise ValueError(f"frozen: there is no backward of stage {stage} for microbatch {microbatch}")
            if not present[stage][microbatch]:
                raise ValueError(
                    f"frozen: the weight gradient of stage {stage} for microbatch {microbatch} is no task of its own, "
                    "or does more than add to sums; take a schedule that splits it: zb-h1, rewrites.split_backward"
                )
            found.add((stage, microbatch))
        if not numbers:
            raise ValueError(f"frozen: the program has no backward of stage {stage}")
    return frozenset(found)


def _spread(microbatches: Sequence[int], share: float) -> list[int]:
    """Returns a share of the microbatches, evenly spread."""
    count = len(microbatches)
    wanted = round(share * count)
    return [each for n, each in enumerate(microbatches) if (n + 1) * wanted // count > n * wanted // count]


def without(
    left_out: Tasks, flat: Sequence[FlatStep], registers: Registers, program: Program, shardings: SubmeshShardings
) -> list[FlatStep]:
    """Returns the steps of a program. A weight gradient that is left out only returns its sums, and has no label.

    It returns copies of the sums if anything else may hold a sum, such as a constant or an argument: the next task may
    take the buffer.
    """
    given = {place for each in program.arguments.values() for place in each.registers}
    steps: list[FlatStep] = []
    for step in flat:
        _, _, results, frees, _, label = step
        mesh, call = label[0] if len(label) == 1 else (0, None)
        if not (isinstance(call, Call) and call.kind == "weight_grad" and (call.stage, call.microbatch) in left_out):
            steps.append(step)
            continue
        function, run = program.functions[call.function], list[Any]
        sums = [call.operands[number] for number in function.sums]
        dying = {*call.frees, *(call.operands[number] for number in function.donates)}
        if not dying.issuperset(sums) or any((mesh, register) in given for register in sums):
            run = batch_copy([shardings.place(spec, (mesh,)).sharding for spec in function.results], always=True)
        steps.append((run, registers.read(mesh, sums), results, frees, None, ()))
    return steps

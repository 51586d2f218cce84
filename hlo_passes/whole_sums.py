"""Observers of the sums over the microbatches."""

import operator
from collections.abc import Collection
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.forward_rows import ForwardRows
from jaxpp.hlo_passes.loop.unroll_loops import UnrollLoops
from jaxpp.hlo_passes.program.once_per_run import OncePerRun
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.verify_gradients import raise_first
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.stages.add_tasks import AddTasks
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import main_of
from jaxpp.ir.linear_terms import APART, FACTOR, LATER
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.manual_sums import unreduced
from jaxpp.ir.microbatch_sums import NO_SUMS, UNKNOWN, Sum, Sums, counted_sums
from jaxpp.ir.step_sums import step_sums
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.errors import counted

_DESCRIBED = 3
"""The most sums that a message describes."""


class WholeSums(Observer):
    """Checks after some passes that the sums of a step are whole, and those that the user wrote.

    The sums of each result are read when the loop is found, and again after later passes. They must have the same
    factors, axes, microbatches and stages as before. A result that is no sum is not compared, nor is what only one of
    the two modules shows. Whole sums are those that `verify-gradients` passes, unless the user's step has others.

    Raises PassError.
    """

    reads_program = False
    checked_after: ClassVar[Collection[type[Pass]]] = (DelayReductions, ShareFunctions)

    def __init__(self) -> None:
        self._module: ir.Module | None = None

    def after(self, step: Pass, module: ir.Module) -> None:
        """Reads the sums when the loop is found, and compares them after other passes."""
        if type(step) is FindMicrobatchLoop:
            raise_first([*unreduced(module)])
            if MicrobatchLoop.of(module).length > 1:  # otherwise all values may move out of the loop
                self._begin(module)
        elif self._module is module and type(step) in self.checked_after:
            if type(step) is not VerifyProgram or self._steps == 1:
                self._check(step, module)
        if type(step) is VerifyProgram:
            self._module = None

    def _begin(self, module: ir.Module) -> None:
        """Reads the sums that the user wrote."""
        self._module, self._before, self._known = module, FindMicrobatchLoop.name, step_sums(module).results
        self._location, loop = MicrobatchLoop.of(module).op.location, TrainLoopAttr.of(module)
        self._steps = 1 if loop is None else loop.steps
        infos = (at.plain(entry.get("jax.result_info")) for entry in at.result_attributes(main_of(module)))
        self._names = [info or f"result {number}" for number, info in enumerate(infos)]
        self._is_known = all(UNKNOWN not in sums for sums in self._known.values())

    def _check(self, step: Pass, module: ir.Module) -> None:
        """Raises PassError for the first sum that is not whole, and the first result with other sums than before."""
        results, wrong = step_sums(module)
        raise_first(wrong if self._is_known else ())
        kept = {n: sums for n, sums in self._known.items() if sums and UNKNOWN not in sums}
        for number, before in kept.items():
            now = results.get(number, NO_SUMS)
            if _differ(before, now, self._before):
                raise PassError(
                    f"after {step.name}, {self._names[number]} of the step depends on {_described(now - before)}; "
                    f"after {self._before} on {_described(before - now)}",
                    location=self._location,
                    hint="a pass between the two dropped a sum, or scaled it",
                )
        self._before, self._known = step.name, {number: results.get(number, NO_SUMS) for number in kept}


class WholeSumsOfProgram(WholeSums):
    """Checks the same after more passes, and in the program as well, which is written as text for it."""

    reads_program = True
    checked_after = (UnrollLoops, ForwardRows, DelayReductions, AddTasks, OncePerRun, ShareFunctions, VerifyProgram)


def _differ(before: Sums, now: Sums, earlier: str) -> bool:
    """Whether a result has other sums than after the pass `earlier`, by what both modules show."""
    one, other = (frozenset(each for each in sums if each.microbatches != 1) for sums in (before, now))
    if earlier == FindMicrobatchLoop.name and other and any(APART in each.axes for each in before):
        return False  # a loop over layers, of which `unroll-loops` may make several sums
    every = one | other
    counts = ({each.axes.count(FACTOR) for each in sums} for sums in (one, other))
    has_scales, has_rows = operator.eq(*counts), any(axis.endswith(LATER) for each in one for axis in each.axes)
    has_microbatches, has_stages = all(each.microbatches for each in every), all(each.stage >= 0 for each in every)

    def shown(each: Sum) -> Sum:
        hidden = {APART} if has_scales else {APART, FACTOR}  # a pass that finds a factor to be a constant takes it in
        axes = tuple(axis for axis in each.axes if axis not in hidden and (has_rows or not axis.endswith(LATER)))
        stage = each.stage if has_stages else -1
        return Sum(each.scale * has_scales, axes, each.microbatches * has_microbatches, stage, each.terms)

    expected, found = (
        {each._replace(terms=0): each.terms for each in counted_sums(map(shown, sums))} for sums in (one, other)
    )
    if not has_microbatches:
        return not found.keys() <= expected.keys()  # a stage without tasks adds nothing
    # Before `forward-rows`, a stack of layers is one term.
    has_terms = earlier not in (FindMicrobatchLoop.name, UnrollLoops.name)
    return found.keys() != expected.keys() or (has_terms and any(found[each] < expected[each] for each in expected))


def _described(sums: Sums) -> str:
    texts = list(map(_text, sorted(sums)))
    more = [f"{len(texts) - _DESCRIBED} more"] if len(texts) > _DESCRIBED else []
    return " and ".join([*texts[:_DESCRIBED], *more]) or "no other sum"


def _text(each: Sum) -> str:
    count = counted(each.microbatches, "microbatch", "es") if each.microbatches else "the microbatches"
    stage = f" of stage {each.stage}" if each.stage >= 0 else ""
    over = f", added over {' and '.join(each.mesh_axes)}" if each.mesh_axes else ""
    terms = f", of {each.terms} terms each" if each.terms > 1 else ""
    return f"{each.scale:g} times {'a value times ' * (FACTOR in each.axes)}the sum over {count}{stage}{over}{terms}"

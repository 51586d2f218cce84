"""Observers that compare the sums over the microbatches with those of the step as the user wrote it."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.forward_rows import ForwardRows
from jaxpp.hlo_passes.program.once_per_run import OncePerRun
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.stages.add_tasks import AddTasks
from jaxpp.hlo_passes.whole_sums import WholeSums
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import main_of
from jaxpp.ir.linear_terms import LATER
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.microbatch_sums import NO_SUMS, UNKNOWN, Sum, Sums
from jaxpp.ir.step_sums import ResultSums, StepSums
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.errors import counted

_DESCRIBED = 3
"""The most sums that a message describes."""


class KeptSums(WholeSums):
    """Checks that each result of a step keeps its sums: the factor, the axes, the microbatches and the stages.

    The sums of the step are read when its loop is found, and again after some of the later passes. A pass that drops
    or doubles all terms of a sum alike, or takes a mean for a sum, changes them. A result that is no sum is not
    compared. Raises PassError, also for some sound steps: where a frozen stage has no task, or where a pass moves a
    factor into a task. So no user's step is checked by it.
    """

    def _begin(self, module: ir.Module) -> None:
        super()._begin(module)
        loop, table = TrainLoopAttr.of(module), at.result_attributes(main_of(module))
        self._steps, self._location = 1 if loop is None else loop.steps, MicrobatchLoop.of(module).op.location
        self._before, self._has_rows = FindMicrobatchLoop.name, False
        infos = (at.plain(entry.get("jax.result_info")) for entry in table)
        self._names = [info or f"result {number}" for number, info in enumerate(infos)]

    def _check(self, step: Pass, module: ir.Module) -> None:
        if type(step) is VerifyProgram and self._steps > 1:
            return
        sums = self._whole(module)
        for number, before in self._known.results.items():
            self._compare_result(self._names[number], before, sums.results.get(number), step)
        self._compare_terms(sums, step)
        self._known, self._before, self._has_rows = _merged(self._known, sums), step.name, type(step) is not ForwardRows

    def _compare_terms(self, sums: StepSums, step: Pass) -> None:
        """Raises PassError where a microbatch adds fewer terms than before."""
        has_rows = self._before != FindMicrobatchLoop.name  # before `forward-rows`, a stack of rows is one term
        if self._is_known and has_rows and sums.terms < self._known.terms:
            what = f"{counted(sums.terms, 'term')} to the sums of the step; after {self._before} {self._known.terms}"
            hint = "a pass between the two dropped a term of a sum"
            raise PassError(f"after {step.name}, each microbatch adds {what}", location=self._location, hint=hint)

    def _compare_result(self, name: str, before: ResultSums, now: ResultSums | None, step: Pass) -> None:
        """Raises PassError where a result has other sums than before."""
        expected, found = before.own | before.whole, NO_SUMS if now is None else now.own | now.whole
        may_be_taken_apart = self._before == FindMicrobatchLoop.name and any(each.is_inside for each in expected)
        if not expected or UNKNOWN in expected or (may_be_taken_apart and _several(found)):
            return
        one, other = _alike(_several(expected), _several(found), self._has_rows)
        if one != other:
            what = _described(one - other) or "no such sum"
            raise PassError(
                f"after {step.name}, {name} of the step depends on {_described(other - one) or 'no such sum'}; "
                f"after {self._before} on {what}",
                location=before.location,
                hint="a pass between the two dropped a sum, or scaled it",
            )


class KeptSumsOfProgram(KeptSums):
    """Checks the same after more passes, and in the program as well, which is written as text for it."""

    reads_program = True
    checked_after = (ForwardRows, DelayReductions, AddTasks, OncePerRun, ShareFunctions, VerifyProgram)


def _merged(known: StepSums, sums: StepSums) -> StepSums:
    """Returns the new sums of the results that had sums before: others are not compared."""
    results = {
        number: sums.results[number]._replace(location=each.location)
        for number, each in known.results.items()
        if number in sums.results and each.own | each.whole and UNKNOWN not in each.own | each.whole
    }
    return StepSums(results, terms=sums.terms)


def _several(sums: Sums) -> Sums:
    """Returns the sums of several microbatches, without values of one."""
    return frozenset(each for each in sums if each.microbatches != 1)


def _alike(one: Sums, other: Sums, has_rows: bool) -> tuple[Sums, Sums]:
    """Returns two sets of sums without what is known of one of them only."""
    every = one | other
    has_scales = all(each.scale for each in every)
    has_counts, has_stages = all(each.microbatches for each in every), all(each.stage >= 0 for each in every)

    def known(each: Sum) -> Sum:
        axes = tuple(axis for axis in each.axes if has_rows or not axis.endswith(LATER))
        return Sum(each.scale * has_scales, axes, each.microbatches * has_counts, each.stage if has_stages else -1)

    return frozenset(map(known, one)), frozenset(map(known, other))


def _described(sums: Sums) -> str:
    texts = list(map(_text, sorted(sums)))
    more = [f"{len(texts) - _DESCRIBED} more"] if len(texts) > _DESCRIBED else []
    return " and ".join([*texts[:_DESCRIBED], *more])


def _text(each: Sum) -> str:
    count = f"{counted(each.microbatches, 'microbatch', 'es')}" if each.microbatches else "the microbatches"
    stage = f" of stage {each.stage}" if each.stage >= 0 else ""
    axes = f", added over {' and '.join(each.axes)}" if each.axes else ""
    factor = f"{each.scale:g}" if each.scale else "an unknown factor"
    return f"{factor} times the sum over {count}{stage}{axes}"

"""`schedule="auto"` and `jaxpp.tune`: steps that measure themselves, and choose their cuts and schedule by that."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
from jaxlib.mlir import ir

from jaxpp.compatibility.times import current_times
from jaxpp.hlo_passes import PassError
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError, first_line
from jaxpp.ir.functions import nested
from jaxpp.ir.loop import entries
from jaxpp.memory.limit import Limit
from jaxpp.program import ProgramModule
from jaxpp.runtime import Event
from jaxpp.runtime.execution.frozen import current_frozen
from jaxpp.schedules import ScheduleError
from jaxpp.schedules.given import AUTO
from jaxpp.schedules.model.values import positive
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.tuning.choices import Choice, Trial, Tuning
from jaxpp.tuning.partitioning import check_step
from jaxpp.tuning.tuner import Auto, Tuner
from jaxpp.tuning.ways import SECONDS, Ways
from jaxpp.zeros import array_of


def is_auto(module: ir.Module, schedule: Any) -> bool:
    """Whether a lowered step chooses its schedule itself.

    That is so if its loop has the schedule "auto", or if it is a plain loop and `schedule` is "auto".
    """
    with module.context:
        texts = [entries(op)["schedule"] for op in nested(module.operation) if at.LOOP in op.attributes]
    return AUTO in texts or (not texts and schedule == AUTO)


class AutoLowered(LoweredStep):
    """A lowered step that chooses its cuts and its schedule while it runs, or takes the choice of another step."""

    def __init__(self, ways: Ways, auto: Auto, *, may_lead: bool = True) -> None:
        super().__init__(ways.lowered, None, ways.compiler_options, ways.passes)
        self.ways, self.auto, self._may_lead = ways, auto, may_lead

    def program(self) -> ProgramModule:
        """Returns the program of the current choice, or of the first one before any step is compiled.

        Raises as `LoweredStep.program`.
        """
        return self.ways.of(self.ways.adapted(self.auto.choice or self.ways.first)).program()

    def at_float32(self) -> LoweredStep | None:
        """Returns `LoweredStep.at_float32` of the current choice."""
        return self.ways.of(self.ways.adapted(self.auto.choice or self.ways.first)).at_float32()

    def _compiled(self) -> CompiledStep:
        """Returns a step that tunes itself while it runs; if the devices are absent, the fastest step by its plan.

        Raises (as `compile`):
            ScheduleError: there are fewer layers than meshes.
            ValueError: the step that it follows marks another number of layers.
            PassError, ProgramError: as `LoweredStep.compile`.
        """
        if self._lowered.mpmd_mesh.is_present:
            return AutoStep(Tuner(self.ways, self.auto, may_lead=self._may_lead))
        if self.auto.choice is None and self._may_lead:
            self.auto.tuned = self._planned()
            self.auto.choice = self.auto.tuned.best.choice
        return self.ways.of(self.ways.adapted(self.auto.choice or self.ways.first)).compile()

    def _planned(self) -> Tuning:
        """Returns a tuning by plans: 1F1B, and the choices of the search in their order until one has a faster plan.

        If the plan of 1F1B fails, the trials are 1F1B and the first choice of the search, with simulated times.
        """
        layers = self.ways.layered().layers()
        first = Choice(self.ways.first.cuts, self.ways.first.schedule, layers.costs.cut(self.ways.first.cuts))
        found, bound = self.ways.search(layers)
        failed: list[str] = []
        before = self._planned_ms(first, failed)
        if before is None:
            trials = [Trial(each, each.report.makespan) for each in (first, *found[:1])]
            return Tuning(tuple(trials), layers.costs, bound, failed=tuple(failed))
        trials = [Trial(first, before)]
        for choice in found:
            if (time := self._planned_ms(choice, failed)) is not None:
                trials.append(Trial(choice, time))
                if time < before:
                    break
        return Tuning(tuple(trials), layers.costs, bound * before / first.report.makespan, failed=tuple(failed))

    def _planned_ms(self, choice: Choice, failed: list[str]) -> float | None:
        """Returns the planned milliseconds of a step; None, and a reason in `failed`, if it does not fit."""
        try:
            plan = self.ways.of(choice).compile().plan
        except (PassError, ProgramError, ScheduleError) as error:
            failed.append(f"{choice}: {first_line(error)}")
            return None
        if plan.fits:
            return 1e3 * plan.step_seconds
        failed.append(f"{choice}: it needs more memory than the devices have")
        return None


class AutoStep(CompiledStep):
    """A compiled step that is tuned while it runs, or follows the choice of another step that is tuned.

    Its attributes are those of its tuner's current step.
    """

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner

    if not TYPE_CHECKING:  # a type checker that sees `__getattr__` would accept any name

        def __getattr__(self, name):
            return getattr(self.tuner.current, name)

    def __repr__(self) -> str:
        return (
            f"<AutoStep in {self.tuner.choice}, {'tuned' if self.tuned else 'not tuned yet'}: {super().__repr__()[1:]}"
        )

    @property
    def tuned(self) -> Tuning | None:
        """The trials and the fastest choice; None until the tuning is done."""
        return self.tuner.auto.tuned

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs one step with the flat list of arguments."""
        return self.tuner.run(leaves)

    def traced(self, leaves: Sequence[Any]) -> tuple[Any, list[Event]]:
        """Runs one step as `trace`, with the flat list of arguments."""
        return self.tuner.traced(leaves)


class _Untuned(Protocol):
    """A step that `mpmd_jit_with_loop` returns."""

    def to_tune(self, args: Sequence[Any], seconds: float, memory_limit: Limit) -> tuple[AutoLowered, list[Any]]:
        """Returns the step, lowered for tuning with these arguments, and their leaves."""
        ...


def tune(step: _Untuned, *args: Any, seconds: float = SECONDS, memory_limit: Limit = None) -> Tuning:
    """Finds the fastest cuts and schedule of a step that marks every layer, by running it with these arguments.

    `schedule="auto"` does the same in the first steps of a training; this call does it at once. Seven steps run, and
    twelve for each choice that is tried (36 if its times don't agree). Each step takes the state that the step before
    it returned.

        tuned = jaxpp.tune(step, state, batch)
        print(tuned)
        step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh, cuts=tuned.partition)

    Args:
        step: a step of `mpmd_jit_with_loop`. Its schedule and its cuts are not used.
        args: the arguments of the step, which are not donated. They may be `jax.ShapeDtypeStruct`s: the step then runs
            on zeros. On the devices of a `jaxpp.target` nothing runs, and shapes are enough.
        seconds: the length of the search in seconds. These are counted work, not a clock, so that equal costs give
            equal choices.
        memory_limit: the bytes that each device may need at once, for all meshes or one per mesh; None: the limit of
            the step.

    Returns:
        The trials, with their predicted and measured times, and the fastest of them.

    Raises:
        PassError: the marks don't fit the loop, as when the step is compiled.
        ScheduleError: there are fewer layers than meshes, or `seconds` is not positive.
        LimitError: 1F1B with equal cuts needs more memory than the limit, also with recompute and offload.
        TypeError, ValueError: the limit or the step is invalid, or the step takes no gradients. Or the call is inside
            of `jaxpp.frozen` or `collect_task_times_ms`, where steps are not measured.
    """
    check_step("tune", step)
    positive(seconds, "seconds")
    if current_times() is not None or current_frozen():
        raise ValueError("tune: steps inside of jaxpp.frozen or collect_task_times_ms don't count: call it outside")
    lowered, leaves = step.to_tune(args, seconds, memory_limit)
    compiled = lowered.compile()
    if lowered.auto.tuned is None:
        leaves = [array_of(leaf) for leaf in leaves]
    while lowered.auto.tuned is None:
        results = jax.tree.leaves(compiled.run(leaves))
        for result, argument in lowered.ways.lowered.feeds.items():
            leaves[argument] = results[result]
    return lowered.auto.tuned

"""`Tuner`: tunes a step while it runs."""

import json
import statistics
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxpp.compatibility.times import current_times
from jaxpp.hlo_passes import PassError
from jaxpp.ir.errors import ProgramError, first_line
from jaxpp.runtime import Event
from jaxpp.runtime.execution.frozen import current_frozen
from jaxpp.runtime.execution.progress import Story
from jaxpp.schedules import Costs, Schedule, ScheduleError
from jaxpp.step import CompiledStep
from jaxpp.tuning.argument_moves import Moves
from jaxpp.tuning.choices import NOTHING_FASTER, Choice, Trial, Tuning
from jaxpp.tuning.layered_step import LayeredStep
from jaxpp.tuning.layers import Layers
from jaxpp.tuning.ways import Ways

STEPS = 5
"""The number of timed steps of a choice, whose median is its time; one step before them is not timed."""
GAIN = 0.01
"""The least predicted gain, as a share of the fastest time so far, for which a choice is compiled and tried."""
STEADY = 1.25
"""The largest ratio between the times of 1F1B before and after a trial with which the trial counts."""
PLAUSIBLE = 0.75
"""The least time of a trial that counts, as a share of the compute time of its busiest mesh."""
TRIALS = 3
"""The most trials of a choice until one of them counts."""
USUAL_STEPS = (1 + STEPS) + 1 + 4 * 2 * (1 + STEPS)
"""The usual number of steps of a tuning: of 1F1B, of the layers, and of four choices, each followed by 1F1B."""
PATIENCE = 12
"""The number of consecutive steps of others after which the tuned step is taken to be gone."""

RunStep = Callable[[Sequence[Any]], Any]
"""A function that runs a step: it takes the leaves of the arguments, and returns the results."""


@dataclass
class Auto:
    """The state of a tuning, shared by the tuners of a step, of its versions for other arguments, and of evaluations.

    Attributes:
        is_quiet: whether nothing is printed.
        choice: the current choice; None before the first step that may lead is compiled.
        tuned: the result of the tuning; None until it is done.
        lock: held while a step runs, as all steps follow the choice of the leader.
    """

    is_quiet: bool = False
    choice: Choice | None = None
    tuned: Tuning | None = None
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _leader: "Tuner | None" = None
    _others: int = 0

    def is_led_by(self, tuner: "Tuner") -> bool:
        """Counts a step of `tuner`; returns whether `tuner` leads, which means that its step is tuned.

        The first tuner whose step runs leads, until others have run more than PATIENCE steps without it. Steps are
        counted, so that all processes agree.
        """
        self._others = 0 if self._leader is tuner else self._others + 1
        if self._others > PATIENCE:
            self.forget()
        if self._leader is None:
            self._leader, self._others = tuner, 0
        return self._leader is tuner

    def forget(self) -> None:
        """Gives up tuning, as the step that led is gone."""
        with self.lock:
            if self._leader is not None:
                self._leader.drop()
            self._leader, self._others = None, 0

    def found(self, tuned: Tuning) -> None:
        """Keeps the result of the tuning. From then on no step leads."""
        self.tuned, self._leader = tuned, None


class Tuner:
    """Tunes a step while it runs, or follows the choice of another tuner.

    The first steps run in 1F1B with equally many layers in each stage, and some of them are timed. One step is traced
    task by task, with each layer as a stage, to measure the layers. Then the choices of a search are tried, each for
    some steps, and compared with as many steps of 1F1B before and after them. A trial is repeated if other work on the
    machine disturbed it. The tuning ends when no choice that is left is predicted to be faster than the fastest so far,
    which stays.

    All these are steps of the training, with the same results. In several processes the first one searches, and the
    slowest process gives the times. A step that fails or is interrupted ends the tuning. The next step begins it again,
    without the choice that failed.

    Attributes:
        ways: the possible ways to run the step.
        auto: the state that it shares with other tuners.
        may_lead: whether its step may be the one that is tuned.
        choice: the current choice.
        current: the compiled step that runs next.
    """

    choice: Choice
    current: CompiledStep

    def __init__(self, ways: Ways, auto: Auto, *, may_lead: bool = True) -> None:
        self.ways, self.auto, self.may_lead = ways, auto, may_lead
        self._made: dict[Any, CompiledStep] = {}
        self._moves = Moves(ways.lowered)
        self._followed: Choice | None = None
        """The shared choice that `choice` was adapted from."""
        self._layered: LayeredStep | None = None
        """The step in which each layer is a stage, until it is measured."""
        self._course: Generator[RunStep] | None = None
        self._trial: Choice | None = None
        self._failed: dict[Any, str] = {}
        self._slow: Mapping[int, float] = {}
        self._story, self._steps = Story("auto"), 0
        with auto.lock:
            if auto.choice is None and may_lead:
                auto.choice = ways.first
                self._layered = ways.layered()  # compiled now, so that it fails here if it fails
            self._follow()

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs one step with the flat list of arguments, and goes on with the tuning."""
        with self.auto.lock:
            try:
                return self._moving(leaves, self._next())
            except BaseException as error:
                if self._trial is not None and isinstance(error, Exception):
                    self._failed[self._trial.key] = f"{self._trial}: {first_line(error)}"
                self.drop()
                raise

    def traced(self, leaves: Sequence[Any]) -> tuple[Any, list[Event]]:
        """Runs one step task by task, as `CompiledStep.traced`."""
        with self.auto.lock:
            self._follow()
            return self._moving(leaves, self.current.traced)

    def drop(self) -> None:
        """Gives up a tuning that is in progress; the next step begins again."""
        if self._course is not None:
            self._course = self._trial = None
            self._lead(self.ways.first)

    def retune(self, slow: Mapping[int, float]) -> None:
        """Tunes again from the next step on, as when a mesh has become slow; all processes call it together.

        Args:
            slow: the speed of each slow mesh, from `CompiledStep.stragglers`. These are upper bounds of the speeds that
                the one step measures in which the layers are traced.
        """
        with self.auto.lock:
            self.drop()
            self.auto.tuned, self._slow = None, dict(slow)

    def _moving(self, leaves: Sequence[Any], run: Callable[[Sequence[Any]], Any]) -> Any:
        """Runs a step with its arguments moved to the meshes of the current choice.

        Deletes donated arguments that were left on other meshes.
        """
        leaves, left = self._moves.of(leaves)
        results = run(leaves)
        for array in left:
            if not array.is_deleted():
                array.delete()
        return results

    def _next(self) -> RunStep:
        """Returns the function that runs the next step: one of the tuning, or that of the current choice."""
        if self.auto.tuned is not None or not self.may_lead or not self.auto.is_led_by(self):
            self._layered = None
            self._follow()
        elif current_times() is None and not current_frozen():
            if self._course is None:
                self._course, self._story, self._steps = self._tune(), Story("auto"), 0
            run = next(self._course, None)
            if run and self._speaks and not self.auto.is_quiet:
                self._steps += 1
                self._story.now(f"step {self._steps} of about {USUAL_STEPS}")
            return run or self.current.run
        return self.current.run

    def _follow(self) -> None:
        """Takes the shared choice; keeps the current one if the shared one does not fit this step's arguments.

        Raises:
            ProgramError: the shared choice does not fit, and no choice was taken before.
        """
        wanted = self.auto.choice or self.ways.first
        if self._followed is wanted:
            return
        choice = self.ways.adapted(wanted)
        try:
            self._take(choice)
        except ProgramError:
            if not self._made:
                raise
        self._followed = wanted
        self._keep(self.choice)

    def _take(self, choice: Choice) -> CompiledStep:
        """Runs by `choice` from now on, and returns its step. Raises as `LoweredStep.compile`."""
        if choice.key not in self._made:
            self._made[choice.key] = self.ways.of(choice).compile()
        self.choice = choice
        self._go_to(self._made[choice.key])
        return self.current

    def _go_to(self, step: CompiledStep) -> None:
        self.current = step
        self._moves.go_to(step.places())

    def _keep(self, *choices: Choice) -> None:
        """Forgets all programs except `choices`, and until the tuning is done the first choice."""
        keys = {each.key for each in (choices if self.auto.tuned else (*choices, self.ways.first))}
        self._made = {key: step for key, step in self._made.items() if key in keys}

    def _tune(self) -> Generator[RunStep]:
        """Yields the function that runs each step of the tuning, and does the rest of the tuning between two steps."""
        self._lead(self.ways.first)
        self._say([f"tunes for about {USUAL_STEPS} steps, which are steps of the training: first {self.choice}"])
        yield self.current.run
        time, before = (yield from self._timed()), self.current.places()
        if refused := self._refused(self._failed.get("layers") or self._error(lambda: self._measuring().compiled)):
            self._failed["layers"] = f"layers are not measured: {refused}"
            trial = Trial(self.choice, time, time)
            self._say([trial.alone, self._failed["layers"]])
            self._finish(Tuning((trial,), None, 0.0, failed=tuple(self._failed.values())), before)
            return
        layers = yield from self._traced_layers()
        self._say([self.current.told_slow(mesh, speed) for mesh, speed in enumerate(layers.speeds) if speed < 1])
        first = replace(self.choice, costs=layers.costs.cut(self.choice.cuts))
        scale = time / first.report.makespan
        trials, again, undecided = [Trial(first, time, time)], time, list[str]()
        self._say([trials[0].alone])
        found, bound = self._searched(layers)
        for choice in found:
            predicted = scale * choice.report.makespan
            best = min(trials, key=lambda trial: trial.time)
            if predicted >= (1 - GAIN) * best.time:
                continue
            if not self._try(choice):
                self._say([self._failed[choice.key]])
            else:
                share, again, doubt = yield from self._compared(choice, first, again)
                if doubt:
                    undecided.append(f"{choice}: {doubt}")
                else:
                    trials.append(Trial(choice, predicted, time * share))
                self._say([undecided[-1] if doubt else trials[-1].outcome])
                self._keep(min(trials, key=lambda trial: trial.time).choice)
        self._finish(
            Tuning(tuple(trials), layers.costs, scale * bound, failed=(*self._failed.values(), *undecided)), before
        )

    def _compared(
        self, choice: Choice, first: Choice, before: float
    ) -> Generator[RunStep, None, tuple[float, float, str]]:
        """Times a choice, with the first choice before and after it, up to TRIALS times, until a trial counts.

        Args:
            choice: the choice to try.
            first: the first choice, 1F1B.
            before: milliseconds of the first choice, which ran last.

        Returns:
            share: the time of the choice, divided by the mean time of the first one before and after it.
            before: the last time of the first choice, in milliseconds.
            doubt: the reason why no trial counts, or "".
        """
        least = max(choice.report.busy_of_meshes) / first.report.makespan
        share, doubt = 1.0, ""
        for _ in range(TRIALS):
            self._trial = choice
            self._lead(choice)
            yield self.current.run
            taken = yield from self._timed()
            self._trial = None
            self._lead(first)  # measured again, as the load of the machine may have changed
            yield self.current.run
            after = yield from self._timed()
            beside = (before + after) / 2
            share, doubt = taken / beside, ""
            if share < PLAUSIBLE * least or max(before, after) > STEADY * min(before, after):
                doubt = (
                    f"undecided after {TRIALS} trials: took {taken:.4g} ms, of which its busiest mesh should compute "
                    f"{least * beside:.4g}, and {first.schedule.name} {before:.4g} before it and {after:.4g} after it"
                )
            before = after
            if not doubt:
                break
        return share, before, doubt

    def _finish(self, tuning: Tuning, before: Mapping[int, NamedSharding]) -> None:
        """Keeps the fastest choice, and prints it.

        Args:
            tuning: the result of the tuning.
            before: the shardings of the arguments in the first choice, by their indices.
        """
        self._layered = None
        self._lead(tuning.best.choice)
        after, avals = self.current.places(), self.ways.lowered.in_avals
        moved = [
            avals[number].size * avals[number].dtype.itemsize
            for number in self.ways.lowered.feeds.values()
            if number in after and after[number].device_set != before[number].device_set
        ]
        found = replace(tuning, moved=(len(moved), sum(moved)))
        self._course = None
        self.auto.found(found)
        self._keep(self.choice)
        nothing = [] if found.trials[1:] or found.failed else [NOTHING_FASTER]
        self._say([*nothing, found.decision])

    def _say(self, lines: Sequence[str]) -> None:
        if self._speaks and not self.auto.is_quiet:
            for line in lines:
                self._story.tell(line)

    def _lead(self, choice: Choice) -> None:
        """Runs by `choice` from now on, and so do the steps that follow."""
        self._take(choice)
        self.auto.choice = self._followed = choice

    def _try(self, choice: Choice) -> bool:
        """Takes `choice`, unless it failed before or a process can't compile it; returns whether it does."""
        self._trial = choice
        if refused := self._refused(self._failed.get(choice.key) or self._error(lambda: self._take(choice))):
            self._failed.setdefault(choice.key, f"{choice}: {refused}")
            self._trial = None
            self._take(self.ways.first)
            self._made.pop(choice.key, None)
            return False
        return True

    def _error(self, made: Callable[[], CompiledStep]) -> str:
        """Returns why a step can't run: it fails to compile, or exceeds the memory of its devices; otherwise ""."""
        try:
            return self.ways.overfull(made())
        except (PassError, ProgramError, ScheduleError, jax.errors.JaxRuntimeError) as caught:
            return first_line(caught)

    def _refused(self, error: str) -> str:
        """Returns the first error of all processes, or ""."""
        return next(filter(None, self._gathered(error)), "")

    def _timed(self) -> Generator[RunStep, None, float]:
        """Returns the median time of STEPS steps, in milliseconds; the slowest process gives the time of a step."""
        times: list[float] = []

        def run(leaves: Sequence[Any]) -> Any:
            jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array) and not leaf.is_deleted()])
            self._gathered("")
            begin = time.perf_counter()
            results = jax.block_until_ready(self.current.run(leaves))
            times.append(time.perf_counter() - begin)
            return results

        while len(times) < STEPS:
            yield run
        every = [json.loads(each) for each in self._gathered(json.dumps(times))]
        return 1e3 * statistics.median(map(max, zip(*every, strict=True)))

    def _measuring(self) -> LayeredStep:
        """Returns the step in which each layer is a stage."""
        self._layered = self._layered or self.ways.layered()
        return self._layered

    def _traced_layers(self) -> Generator[RunStep, None, Layers]:
        """Traces one step in which each layer is a stage, and returns the costs of the layers."""
        events: list[Event] = []
        layered = self._measuring()

        def run(leaves: Sequence[Any]) -> Any:
            try:
                results, found = layered.compiled.traced(leaves)
            except Exception as error:
                self._failed["layers"] = first_line(error)
                raise
            finally:
                self._go_to(self._made[self.choice.key])
            events.extend(found)
            return results

        self._go_to(layered.compiled)
        yield run
        self._layered = None
        return layered.layers(events, slow=self._slow)

    def _searched(self, layers: Layers) -> tuple[list[Choice], float]:
        """Returns the choices and the lower bound that `Ways.search` finds in the first process."""
        text = ""
        if self._speaks:
            found, bound = self.ways.search(layers)
            text = json.dumps([bound, [[each.cuts, str(each.schedule)] for each in found]])
        bound, rows = json.loads(self._gathered(text)[0])
        known = {self.choice.key: self.choice}
        for cuts, schedule in rows:
            costs: Costs = layers.costs.cut(cuts)
            choice = Choice(tuple(cuts), Schedule.parse(schedule), costs)
            known.setdefault(choice.key, choice)
        return list(known.values())[1:], bound

    @property
    def _speaks(self) -> bool:
        """Whether this process searches and prints: the first one of the processes that run the step together."""
        return getattr(self.current.executable, "gather", None) is None or jax.process_index() == 0

    def _gathered(self, text: str) -> list[str]:
        """Returns the texts of all processes, in their order."""
        gather: Callable[[str], list[str]] | None = getattr(self.current.executable, "gather", None)
        return [text] if gather is None else gather(text)

"""A compiled step that tunes itself while it runs."""

import json
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxpp.backend import CompiledProgram
from jaxpp.compatibility.times import current_times
from jaxpp.hlo_passes import PassError
from jaxpp.ir.errors import ProgramError
from jaxpp.moves import Moves
from jaxpp.partitioning import LayeredStep, Layers
from jaxpp.program import ProgramModule
from jaxpp.runtime import Event
from jaxpp.runtime.execution.frozen import current_frozen
from jaxpp.schedules import Costs, Schedule, ScheduleError
from jaxpp.step import CompiledStep
from jaxpp.tuning import Choice, Trial, Tuning
from jaxpp.ways import Ways

STEPS = 5
"""The time of a choice is the median of so many steps, after one that is not counted."""
GAIN = 0.01
"""What a choice must promise to be faster by, to be compiled and tried."""

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs a step: from the leaves of the arguments to those of the results."""


@dataclass
class Auto:
    """What all steps share that run as one of them does: those for other arguments, and evaluations.

    Attributes:
        is_quiet: whether nothing is printed.
        choice: how they run now; None before the first one is compiled.
        tuned: what was found; None until then.
    """

    is_quiet: bool = False
    choice: Choice | None = None
    tuned: Tuning | None = None
    _leader: "weakref.ref[AutoStep] | None" = None

    def is_led_by(self, step: "AutoStep") -> bool:
        """Whether this is the step that is tuned: the first one with a backward that runs, for as long as it lives."""
        leader = self._leader() if self._leader is not None else None
        if leader is None and step.ways.loop.has_backward:
            self._leader, leader = weakref.ref(step), step
        return leader is step


class AutoStep(CompiledStep):
    """A step that tunes itself while it runs, or runs as another one does that is tuned.

    Its first steps are in 1F1B with as many layers in each stage. Some of these are timed; one is run task by task,
    each layer a stage of its own, to see what the layers cost. Then the choices that a search finds are tried, each for
    some steps, and compared with as many of 1F1B right after them, until none that is left promises to be faster than
    the fastest so far, which stays. All are steps of the training, with the same results. In several processes the
    first one searches, and times are those of the slowest.

    ways: how it could run.
    """

    def __init__(self, ways: Ways, auto: Auto) -> None:
        self.ways, self._auto = ways, auto
        self._made: dict[Any, tuple[CompiledProgram, ProgramModule]] = {}
        self._moves = Moves(ways.lowered)
        self._course: Generator[Run] | None = None
        self._failed: list[str] = []
        if auto.choice is None:
            auto.choice = ways.first
            if ways.loop.has_backward:
                _ = self._layered  # compiled now, so that it is refused now, if it is
        self._follow()

    def __repr__(self) -> str:
        return f"<AutoStep in {self._choice}, {'tuned' if self.tuned else 'not tuned yet'}: {super().__repr__()[1:]}"

    @property
    def tuned(self) -> Tuning | None:
        """What was tried and what is the fastest; None until that is known."""
        return self._auto.tuned

    @property
    def choice(self) -> Choice:
        """How it runs now."""
        return self._choice

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run one step with the flat list of arguments."""
        how = self._next()
        return self._moving(leaves, super().run if how is None else lambda moved: self._tree(how(moved)))

    def trace(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Event]]:
        """Run one step task by task; returns its results, and when each task and transfer ran, for how long."""
        self._follow()
        results, events = self._moving(self._leaves(args, kwargs), self.executable.trace)
        return self._tree(results), events

    def _moving(self, leaves: Sequence[Any], run: Callable[[Sequence[Any]], Any]) -> Any:
        """Run a step, with its arguments moved to where they are wanted."""
        leaves, left = self._moves.of(leaves)
        results = run(leaves)
        for array in left:
            if not array.is_deleted():
                array.delete()
        return results

    def _tree(self, results: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self._lowered.out_tree, results)

    def _next(self) -> Run | None:
        """How the next step is run, where it is run in a way of its own."""
        if not self._auto.is_led_by(self):
            self._follow()
        elif self.tuned is None and current_times() is None and not current_frozen():
            self._course = self._course or self._tune()
            return next(self._course, None)
        return None

    _followed: Choice | None = None

    def _follow(self) -> None:
        """Run as the others do."""
        assert self._auto.choice is not None
        if self._followed is not self._auto.choice:
            self._take(self.ways.adapted(self._auto.choice))
            self._followed = self._auto.choice

    def _take(self, choice: Choice) -> None:
        """Run in this way from now on. Raises as `LoweredStep.compile`."""
        made = self._made.get(choice.key)
        if made is not None and made[0] is self.executable:
            self._choice = choice
            return
        if choice.key not in self._made:
            lowered = self.ways.of(choice)
            compiled = lowered.compile()
            self._made[choice.key] = compiled.executable, lowered.program()
        self._choice = choice
        self._become(*self._made[choice.key])

    def _become(self, executable: CompiledProgram, program: ProgramModule) -> None:
        super().__init__(self.ways.lowered, executable, program)
        self._moves.go_to(self.places())

    def _tune(self) -> Generator[Run]:
        """How each step of the tuning is run; what happens between two of them."""
        yield self.executable
        time, before = (yield from self._timed()), self.places()
        layers = yield from self._traced_layers()
        first = replace(self._choice, costs=layers.costs.cut(self._choice.cuts))
        scale = time / first.report.makespan
        trials = [Trial(first, time, time)]
        found, bound = self._searched(layers)
        for choice in found:
            predicted = scale * choice.report.makespan
            if predicted < (1 - GAIN) * min(trial.time for trial in trials) and self._can_take(choice):
                yield self.executable
                taken = yield from self._timed()
                self._lead(first)  # again: the machine may be more or less busy than it was
                yield self.executable
                again = yield from self._timed()
                trials.append(Trial(choice, predicted, time * taken / again))
        self._finish(Tuning(tuple(trials), layers.costs, scale * bound, failed=tuple(self._failed)), before)

    def _finish(self, tuning: Tuning, before: Mapping[int, NamedSharding]) -> None:
        """Keep the fastest, and say so; `before`: where the arguments were in the first choice."""
        self._lead(tuning.best.choice)
        after, avals = self.places(), self._lowered.in_avals
        moved = [
            avals[number].size * avals[number].dtype.itemsize
            for number in self._lowered.feeds.values()
            if number in after and after[number].device_set != before[number].device_set
        ]
        self._made = {tuning.best.choice.key: self._made[tuning.best.choice.key]}
        self._auto.tuned = replace(tuning, moved=(len(moved), sum(moved)))
        if jax.process_index() == 0 and not self._auto.is_quiet:
            for line in str(self._auto.tuned).splitlines():
                print(f"jaxpp: auto: {line}", file=sys.stderr, flush=True)

    def _lead(self, choice: Choice) -> None:
        """Run in this way from now on, and those that follow too."""
        self._take(choice)
        self._auto.choice = self._followed = choice

    def _can_take(self, choice: Choice) -> bool:
        """Run in this way from now on, if it can be compiled in every process."""
        error = ""
        try:
            self._take(choice)
            error = self._overfull()
        except (PassError, ProgramError, ScheduleError, jax.errors.JaxRuntimeError) as caught:
            error = str(caught).splitlines()[0]
        errors = list(filter(None, self._gathered(error)))
        if errors:
            self._failed.append(f"{choice}: {errors[0]}")
            return False
        self._lead(choice)
        return True

    def _overfull(self) -> str:
        """What is wrong where a device of this process needs more memory than it has: a step there would fail."""
        needed = max((each.peak_memory_in_bytes for each in self.memory_analysis() if each), default=0)
        room = self.ways.room
        return f"a device needs {needed:,} bytes, and has {room:,}" if room is not None and needed > room else ""

    def _timed(self) -> Generator[Run, None, float]:
        """The median time of some steps, in milliseconds: of each step, that of the slowest process."""
        times: list[float] = []

        def run(leaves: Sequence[Any]) -> Sequence[Any]:
            jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array) and not leaf.is_deleted()])
            self._gathered("")
            begin = time.perf_counter()
            results = jax.block_until_ready(self.executable(leaves))
            times.append(time.perf_counter() - begin)
            return results

        while len(times) < STEPS:
            yield run
        every = [json.loads(each) for each in self._gathered(json.dumps(times))]
        return 1e3 * statistics.median(map(max, zip(*every, strict=True)))

    @cached_property
    def _layered(self) -> LayeredStep:
        """The step in which each layer is a stage, until it was measured."""
        return self.ways.layered()

    def _traced_layers(self) -> Generator[Run, None, Layers]:
        """What the layers cost, by one step that is traced."""
        events: list[Event] = []

        def run(leaves: Sequence[Any]) -> Sequence[Any]:
            results, found = self.executable.trace(leaves)
            events.extend(found)
            return results

        layered = self._layered
        self._become(layered.compiled.executable, layered.lowered.program())
        while not events:
            yield run
        del self._layered
        self._take(self._choice)
        return layered.layers(events)

    def _searched(self, layers: Layers) -> tuple[list[Choice], float]:
        """What `Ways.search` finds in the first process."""
        text = ""
        if jax.process_index() == 0:
            found, bound = self.ways.search(layers)
            text = json.dumps([bound, [[each.cuts, str(each.schedule)] for each in found]])
        bound, rows = json.loads(self._gathered(text)[0])
        known = {self._choice.key: self._choice}
        for cuts, schedule in rows:
            costs: Costs = layers.costs.cut(cuts)
            choice = Choice(tuple(cuts), Schedule.parse(schedule), costs)
            known.setdefault(choice.key, choice)
        return list(known.values())[1:], bound

    def _gathered(self, text: str) -> list[str]:
        """The texts of all processes, the first one's first."""
        gather: Callable[[str], list[str]] | None = getattr(self.executable, "gather", None)
        return [text] if gather is None else gather(text)

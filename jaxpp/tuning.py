"""What `schedule="auto"` and `jaxpp.tune` choose from, and what they found."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxpp import schedules
from jaxpp._system import write_file
from jaxpp.schedules import Costs, Partition, Report, Schedule, ScheduleError
from jaxpp.schedules.search.cuts import Cuts

NOTHING_FASTER = "nothing that was looked for promises to be faster"


@dataclass(frozen=True)
class Choice:
    """One way to run a step that marks every layer.

    Attributes:
        cuts: how many layers each stage has, from the first one on.
        schedule: of the stages.
        costs: of the stages, in milliseconds; None while nothing is measured.
    """

    cuts: Cuts
    schedule: Schedule
    costs: Costs | None = None

    @cached_property
    def key(self) -> tuple[Cuts, str]:
        """What two equal choices have in common, whatever they cost."""
        return self.cuts, str(self.schedule)

    @cached_property
    def options(self) -> dict[str, str]:
        """The options of passes that say it."""
        return {"cuts": ",".join(map(str, self.cuts)), "schedule": self.key[1]}

    @cached_property
    def report(self) -> Report:
        """The simulated run on the measured costs. Raises ScheduleError where there are none."""
        if self.costs is None:
            raise ScheduleError(f"{self}: what its stages cost was not measured")
        return schedules.simulate(self.schedule, self.costs)

    def __str__(self) -> str:
        """In words: `7, 3 layers in zb-h1`."""
        name, chunks = self.schedule.name, self.schedule.stages // self.schedule.meshes
        if name == "search":
            is_split = any(task.kind == "input_grad" for task in self.schedule)
            name = "an order of its own, backwards in two" if is_split else "an order of its own"
        several = f", {chunks} stages per mesh" if chunks > 1 else ""
        return f"{', '.join(map(str, self.cuts))} layers in {name}{several}"


@dataclass(frozen=True)
class Trial:
    """A choice that was tried.

    Attributes:
        choice: what was tried.
        predicted: milliseconds of a step: simulated, and scaled so that the first choice takes what it took; on devices
            that are not here by its own plan.
        measured: likewise, the median of several steps, in proportion to what the first choice took before and after
            them, as the machine may be more or less busy then; None on devices that are not here.
    """

    choice: Choice
    predicted: float
    measured: float | None = None

    @property
    def time(self) -> float:
        """The measured time; the predicted one where nothing can be measured."""
        return self.predicted if self.measured is None else self.measured

    @property
    def alone(self) -> str:
        """What it takes, and how busy its meshes are, in a line."""
        verb = "takes" if self.measured is not None else "would take"
        text = f"{self.choice}: {verb} {self.time:.4g} ms a step"
        if self.choice.costs is None:
            return text
        report = self.choice.report
        shares = (f"{busy / report.makespan:.0%}" for busy in report.busy_of_meshes)
        return f"{text}, of which its meshes compute {', '.join(shares)}"

    @property
    def outcome(self) -> str:
        """What it was to take, and what it took, in a line."""
        measured = "" if self.measured is None else f", took {self.measured:.4g}"
        return f"{self.choice}: should take {self.predicted:.4g} ms{measured}"


@dataclass(frozen=True)
class Tuning:
    """What was tried, and what of it is the fastest.

    Attributes:
        trials: the first one is that which was there before: as many layers in each stage, in 1F1B.
        layers: what each layer costs, in milliseconds; None where that could not be measured: `failed` says why.
        lower_bound: milliseconds of a step, scaled as predictions are: no cuts and no order of those that were looked
            for take less by these costs.
        moved: how many arguments of the step have other stages now, and how many bytes these are.
        failed: choices that could not be compiled, or whose times did not agree, and why.
    """

    trials: tuple[Trial, ...]
    layers: Costs | None
    lower_bound: float
    moved: tuple[int, int] = (0, 0)
    failed: tuple[str, ...] = ()

    @property
    def before(self) -> Trial:
        """What was there before."""
        return self.trials[0]

    @cached_property
    def best(self) -> Trial:
        """The fastest; of equally fast ones that which was tried first."""
        return min(self.trials, key=lambda trial: trial.time)

    @property
    def cuts(self) -> Cuts:
        """The layers of each stage, as `mpmd_jit_with_loop` takes them."""
        return self.best.choice.cuts

    @property
    def schedule(self) -> Schedule:
        """The schedule, as `treduce` and `mpmd_jit_with_loop` take it."""
        return self.best.choice.schedule

    @property
    def costs(self) -> Costs:
        """The costs of the stages, in milliseconds. Raises ScheduleError where layers were not measured."""
        return self.best.choice.report.costs

    @property
    def speedup(self) -> float:
        """How many times as fast it is as what was there before."""
        return self.before.time / self.best.time

    @property
    def partition(self) -> Partition:
        """What `cuts` of `mpmd_jit_with_loop` takes, so that a step does the same without being tuned.

        Its times are simulated ones, not scaled. Raises ScheduleError where layers were not measured.
        """
        value = self.best.choice.report.makespan
        bound = self.lower_bound * self.before.choice.report.makespan / self.before.time
        return Partition(self.cuts, self.schedule, self.costs, value, min(bound, value))

    @property
    def code(self) -> str:
        """What to write instead of `schedule="auto"`, so that it stays as it is: `schedule="1f1b", cuts=[6, 2]`."""
        name, size = self.schedule.name, {"meshes": self.schedule.meshes, "microbatches": self.schedule.microbatches}
        is_named = name in schedules.names() and schedules.make(name, **size).cells == self.schedule.cells
        text = f'"{name}"' if is_named else 'Path("auto.txt")'
        saved = "" if is_named else '  # after tuned.save("auto.txt")'
        return f"schedule={text}, cuts={list(self.cuts)}{saved}"

    def save(self, path: str | Path) -> None:
        """Write the schedule to a file, a grid, as `schedule` of a step takes it.

        Raises:
            OSError: it cannot be written.
        """
        write_file(str(path), str(self.schedule).encode())

    def draw(self, path: str | Path) -> None:
        """Write a picture: what was there before, and below it what is the fastest, on one scale of time.

        Raises:
            ScheduleError: the name ends in something else than .svg, .png or .html, or a library is missing; or layers
                were not measured.
            OSError: it cannot be written.
        """
        names = {"before": self.before, "after": self.best}
        reports = [
            schedules.simulate(dataclasses.replace(each.choice.schedule, name=name), each.choice.report.costs)
            for name, each in names.items()
        ]
        schedules.draw(reports, path)

    def __str__(self) -> str:
        """Three lines: what was there, what was tried, what is taken, and why."""
        # Several orders may read alike.
        tried = "; ".join(dict.fromkeys([*(trial.outcome for trial in self.trials[1:]), *self.failed]))
        return "\n".join((self.before.alone, tried or NOTHING_FASTER, self.decision))

    @property
    def decision(self) -> str:
        """What is taken, and why, in a line."""
        if self.best is self.before:
            verb = "stays with" if all(trial.measured is None for trial in self.trials[1:]) else "goes back to"
            return f"{verb} {self.before.choice}"
        count, size = self.moved
        moved = f"; {count} arrays ({size / 1e6:.4g} MB) moved to other stages" if count else ""
        return f"takes {self.best.choice}: {self.speedup:.2f} times as fast{moved}"

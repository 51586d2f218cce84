"""The choices that `schedule="auto"` and `jaxpp.tune` try, and the result of their trials."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxpp import schedules
from jaxpp._system import write_file
from jaxpp.schedules import Costs, Schedule, ScheduleError
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.search import Partition
from jaxpp.schedules.search.cuts import Cuts

NOTHING_FASTER = "nothing that was looked for promises to be faster"


@dataclass(frozen=True)
class Choice:
    """One way to run a step that marks every layer.

    Attributes:
        cuts: the number of layers of each stage, first stage first.
        schedule: the order of the tasks of these stages.
        costs: the costs of these stages, in milliseconds; None before the layers are measured.
    """

    cuts: Cuts
    schedule: Schedule
    costs: Costs | None = None

    @cached_property
    def key(self) -> tuple[Cuts, str]:
        """The cuts and the text of the schedule: the identity of the choice, without its costs."""
        return self.cuts, str(self.schedule)

    @cached_property
    def options(self) -> dict[str, str]:
        """The options `cuts` and `schedule` of the passes."""
        return {"cuts": ",".join(map(str, self.cuts)), "schedule": self.key[1]}

    @cached_property
    def report(self) -> Report:
        """The simulated run on the measured costs. Raises ScheduleError if `costs` is None."""
        if self.costs is None:
            raise ScheduleError(f"{self}: what its stages cost was not measured")
        return schedules.simulate(self.schedule, self.costs)

    def __str__(self) -> str:
        """Returns the choice in words: `7, 3 layers in zb-h1`."""
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
        choice: the choice.
        predicted: the predicted milliseconds of a step: the simulated time, scaled so that the prediction of the first
            choice equals its measured time. On devices that are not here, the time in the plan of this choice.
        measured: the measured milliseconds of a step, the median of several steps; None on devices that are not here.
            The first choice runs before and after these steps, and the time is relative to its times: how busy the
            machine is may change.
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
        """One line: the time of a step, and the busy share of each mesh if costs were measured."""
        verb = "takes" if self.measured is not None else "would take"
        text = f"{self.choice}: {verb} {self.time:.4g} ms a step"
        if self.choice.costs is None:
            return text
        report = self.choice.report
        shares = (f"{busy / report.makespan:.0%}" for busy in report.busy_of_meshes)
        return f"{text}, of which its meshes compute {', '.join(shares)}"

    @property
    def outcome(self) -> str:
        """One line: the predicted time of a step, and the measured one."""
        measured = "" if self.measured is None else f", took {self.measured:.4g}"
        return f"{self.choice}: should take {self.predicted:.4g} ms{measured}"


@dataclass(frozen=True)
class Tuning:
    """The trials, and the fastest of them.

    Attributes:
        trials: all trials. The first one is the choice before the tuning: equally many layers in each stage, in 1F1B.
        layers: the cost of each layer, in milliseconds; None if the layers could not be measured, as `failed` reports.
        lower_bound: a lower bound on the milliseconds of a step, scaled like the predictions. It holds for the cuts and
            orders that the search covers, at these costs.
        moved: the number of arguments of the step that changed their devices, and their bytes in all.
        failed: one line for each choice that failed to compile, or whose times did not agree, with the reason.
    """

    trials: tuple[Trial, ...]
    layers: Costs | None
    lower_bound: float
    moved: tuple[int, int] = (0, 0)
    failed: tuple[str, ...] = ()

    @property
    def before(self) -> Trial:
        """The trial of the choice before the tuning."""
        return self.trials[0]

    @cached_property
    def best(self) -> Trial:
        """The fastest trial; the earliest one if several are equally fast."""
        return min(self.trials, key=lambda trial: trial.time)

    @property
    def cuts(self) -> Cuts:
        """The number of layers of each stage, for `cuts` of `mpmd_jit_with_loop`."""
        return self.best.choice.cuts

    @property
    def schedule(self) -> Schedule:
        """The schedule of the fastest trial, for `treduce` and `mpmd_jit_with_loop`."""
        return self.best.choice.schedule

    @property
    def costs(self) -> Costs:
        """The costs of the stages, in milliseconds. Raises ScheduleError if layers were not measured."""
        return self.best.choice.report.costs

    @property
    def speedup(self) -> float:
        """The time of the choice before the tuning, divided by the time of the fastest."""
        return self.before.time / self.best.time

    @property
    def partition(self) -> Partition:
        """A `Partition` for `cuts` of `mpmd_jit_with_loop`, which gives the same step without tuning.

        Its times are the simulated ones, not scaled. Raises ScheduleError if layers were not measured.
        """
        value = self.best.choice.report.makespan
        bound = self.lower_bound * self.before.choice.report.makespan / self.before.time
        return Partition(self.cuts, self.schedule, self.costs, value, min(bound, value))

    @property
    def code(self) -> str:
        """The Python arguments that replace `schedule="auto"` and fix this choice: `schedule="1f1b", cuts=[6, 2]`."""
        name, size = self.schedule.name, {"meshes": self.schedule.meshes, "microbatches": self.schedule.microbatches}
        is_named = name in schedules.names() and schedules.make(name, **size).cells == self.schedule.cells
        text = f'"{name}"' if is_named else 'Path("auto.txt")'
        saved = "" if is_named else '  # after tuned.save("auto.txt")'
        return f"schedule={text}, cuts={list(self.cuts)}{saved}"

    def save(self, path: str | Path) -> None:
        """Writes the schedule to a file as a grid, which `schedule` of a step takes.

        Raises:
            OSError: the file cannot be written.
        """
        write_file(str(path), str(self.schedule).encode())

    def draw(self, path: str | Path) -> None:
        """Writes a picture of the schedule before the tuning and the fastest one below it, on one time scale.

        Raises:
            ScheduleError: the name does not end in .svg, .png or .html, or a library is missing; or layers were not
                measured.
            OSError: the file cannot be written.
        """
        names = {"before": self.before, "after": self.best}
        reports = [
            schedules.simulate(dataclasses.replace(each.choice.schedule, name=name), each.choice.report.costs)
            for name, each in names.items()
        ]
        schedules.draw(reports, path)

    def __str__(self) -> str:
        """Returns three lines: the choice before the tuning, the trials and failures, and the decision."""
        # Several orders may have the same text.
        tried = "; ".join(dict.fromkeys([*(trial.outcome for trial in self.trials[1:]), *self.failed]))
        return "\n".join((self.before.alone, tried or NOTHING_FASTER, self.decision))

    @property
    def decision(self) -> str:
        """One line: the choice that is kept, its speedup, and the arrays that moved for it."""
        if self.best is self.before:
            verb = "stays with" if all(trial.measured is None for trial in self.trials[1:]) else "goes back to"
            return f"{verb} {self.before.choice}"
        count, size = self.moved
        moved = f"; {count} arrays ({size / 1e6:.4g} MB) moved to other stages" if count else ""
        return f"takes {self.best.choice}: {self.speedup:.2f} times as fast{moved}"

"""`train`: a training that goes on when processes die, and when they come back."""

import os
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import jax

from jaxpp import _jobs
from jaxpp._system import tell
from jaxpp.healing.member import HEAD, PLANS, BrokenError, EndError, Go, Membership
from jaxpp.healing.state import described, placed, taken
from jaxpp.ir.program import Program
from jaxpp.loading import load_for, try_loading
from jaxpp.runtime import Event
from jaxpp.runtime.processes import membership
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.waiting import TransferError, in_a_line
from jaxpp.step import CompiledStep
from jaxpp.tuning.auto import AutoStep


def train(
    make_step: Callable[[], Any],
    state: Callable[[], Any],
    batch: Callable[[int], Any],
    steps: int,
    *,
    every: int = 1,
    watch: int = 0,
    on_step: Callable[[int, Any], None] | None = None,
    on_state: Callable[[int, Any], None] | None = None,
    plans: str | os.PathLike[str] | None = None,
) -> Any:
    """Makes `steps` steps in the processes of `jaxpp-run`, even if some of them die meanwhile.

    Step i is `state, output = step(state, batch(i))`. After a step each process copies its part of the state to the
    host's memory. While the next step runs, it sends the copy to the launchers of two hosts. When a process dies, the
    others go on without it, from the last state that is held as a whole. When it is back, it joins them. Lost steps are
    made again with the same batches, so failures do not change the result.

    Args:
        make_step: makes the step, of `mpmd_jit_with_loop`, over `jax.devices()`. It is called whenever the processes
            change. JAX then starts anew, so only numpy arrays may be kept from one call to the next.
        state: makes the first state, the same in every process, as numpy arrays, numbers or arrays of one device. It is
            called once in each process, and again if a process dies before the first state was copied. With
            `jaxpp-run --prepare` it is also called once for each number of processes that is tried.
        batch: makes the batch of a step, the same at each call in each process.
        steps: the number of steps, at least 1.
        every: the number of steps between two copies. At most this many steps that `on_step` has seen are made again.
        watch: the number of steps between two measurements of each process's speed; 0: never. For a measurement a step
            is traced task by task, and takes a few times as long. Slow processes are named. With `schedule="auto"` the
            layers are then distributed anew.
        on_step: called as (i, output) after each step, in all processes; again if the step is made again. At least one
            process makes the call for each step, because the state after step i is copied only after the call.
        on_state: called as (i, state) before `on_step`, with the state after step i, to save a checkpoint with
            `jaxpp.checkpoint.save`. The next step may donate the state's memory.
        plans: a folder, visible to all hosts, for the compiled steps. There is one step for each number of processes,
            saved when it is first compiled, or before the first step with `jaxpp-run --prepare`. Processes that come
            or go then need neither tracing nor compiling. Changes of the training's code are not noticed: give another
            folder then.

    Returns: the last state. The processes are then those of a job of `jax.distributed`, as after
        `jaxpp.distributed.initialize`.

    Raises:
        RuntimeError: the process was not started by `jaxpp-run`.
        EndError: too many hosts were lost, or the same step failed three times.
        ValueError: `steps` or `every` is less than 1, or `watch` less than 0; `jaxpp-run --prepare` without `plans`;
            with plans, a step that can't be saved.
    """
    if HEAD not in os.environ:
        raise RuntimeError("jaxpp.healing.train needs processes that are started anew: run the script by jaxpp-run")
    for name, value, least in (("steps", steps, 1), ("every", every, 1), ("watch", watch, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    training = _ProcessTraining(make_step, state, batch, steps, every, watch, on_step, on_state, plans)
    while True:
        if (last := training.generation()) is not None:
            return last[0]


@dataclass
class _ProcessTraining:
    """The arguments of `train`, and the training in one process, generation by generation."""

    make_step: Callable[[], Any]
    make_state: Callable[[], Any]
    batch: Callable[[int], Any]
    steps: int
    every: int
    watch: int
    on_step: Callable[[int, Any], None] | None
    on_state: Callable[[int, Any], None] | None
    plans: InitVar[str | os.PathLike[str] | None]

    def __post_init__(self, plans: str | os.PathLike[str] | None) -> None:
        self.must_save = plans is not None
        folder = os.environ.get(PLANS) if plans is None else plans
        self.folder = None if folder is None else Path(folder)
        self.membership = Membership()
        self.like: Any = None
        self.slow: dict[int, float] = {}
        self.earlier: tuple[Program, Sequence[Event]] | None = None

    def generation(self) -> tuple[Any] | None:
        """Takes part in a generation until it ends; returns (last state,) if all steps are made, otherwise None."""
        try:
            go = self.membership.join(self._prepare_as_spare)
            if (last := self._steps(go)) is not None:
                return last
            error, lost = "", []
        except (BrokenError, TransferError, ProcessError, jax.errors.JaxRuntimeError) as caught:
            error, lost = in_a_line(caught), membership.lost_peers()
        except EndError:
            raise
        except Exception as caught:  # from a user's function: report this error, not that the process died
            self.membership.fail(in_a_line(caught))
            raise
        self.membership.leave(error, lost)
        return None

    def _prepare_as_spare(self, count: int) -> None:
        """Does ahead what `_begun` does for a generation of `count` processes, without the other processes.

        JAX starts only on CPUs, because it was never tried to make the clients of accelerators twice.
        """
        on_cpus = _jobs.wanted_platforms() == ["cpu"]
        try:
            if self.folder is not None:
                try_loading(self._plan(count), count, on_cpus=on_cpus)
            if self.like is None and on_cpus:
                self.like = described(self.make_state())
        except Exception as error:  # from a user's function too: this process may never be needed
            tell(f"a spare process can't prepare, and does so when it takes a place: {in_a_line(error)}")
        if on_cpus:
            _jobs.leave_coordination()

    def _steps(self, go: Go) -> tuple[Any] | None:
        if go.prepares:
            if not self.must_save:
                raise ValueError(
                    "jaxpp-run --prepare compiles steps ahead, and jaxpp.healing.train has no plans= folder"
                )
            self._begun(go, 0)
            return None
        first = go.resume["step"] if go.resume else 0
        state, step = self._begun(go, first)
        self.slow, self.earlier = {}, None
        kept: int | None = None
        regroups = False
        if go.resume:
            kept = self._keep(state, first)
        for number in range(first, self.steps):
            state, output = self._made(step, state, number, first)
            # Before the copy, so that at least one process makes the calls.
            if self.on_state is not None:
                self.on_state(number, state)
            if self.on_step is not None:
                self.on_step(number, output)
            if (number + 1) % self.every == 0 or number + 1 == self.steps:
                regroups = kept is not None and self.membership.wait_until_safe(kept)
                kept = self._keep(state, number + 1)
            if regroups:
                break
        if kept is not None:
            self.membership.wait_until_safe(kept)
        if regroups:
            return None
        self.membership.done()
        return (state,)

    def _made(self, step: CompiledStep, state: Any, number: int, first: int) -> Any:
        """Makes a step. Every `watch` steps also measures the speed of each mesh."""
        is_tuning = isinstance(step, AutoStep) and step.tuned is None
        if not self.watch or (number + 1) % self.watch or number == first or is_tuning:
            return step(state, self.batch(number))
        results, events = step.trace(state, self.batch(number))
        program = step.executable.program
        if self.earlier is None or self.earlier[0] is not program:
            self.earlier = program, events
        found = step.stragglers(events, before=self.earlier[1])
        new = {mesh: speed for mesh, speed in found.items() if mesh not in self.slow}
        # Slow meshes stay listed: a step tuned anew gives them fewer layers, and later traces are compared with that.
        self.slow |= new
        for mesh, speed in new.items() if jax.process_index() == 0 else ():
            tell(step.told_slow(mesh, speed))
        if isinstance(step, AutoStep) and new:
            step.tuner.retune(self.slow)
        return results

    def _keep(self, state: Any, step: int) -> int:
        self.membership.keep(step, taken(state, jax.process_index() == 0))
        return step

    def _begun(self, go: Go, first: int) -> tuple[Any, CompiledStep]:
        """Returns the state to begin with, and the compiled step."""
        state = None
        if go.resume is None or self.like is None:
            state = self.make_state()
            self.like = described(state)
        step = self._step(self.batch(min(first, self.steps - 1)))
        if go.resume is not None:
            state = placed(self.like, step.in_shardings[0][0], self.membership.held())
        return state, step

    def _step(self, batch: Any) -> CompiledStep:
        """Returns the step for the current number of processes, from the folder of plans if there is one."""
        made = self.make_step()
        if self.folder is None:
            return made.lower(self.like, batch).compile()
        folder = self._plan(jax.process_count())
        return loaded_or_compiled(made, folder, (self.like, batch), must_save=self.must_save)

    def _plan(self, count: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{count}_processes"


def loaded_or_compiled(made: Any, folder: Path, arguments: tuple[Any, ...], *, must_save: bool = True) -> CompiledStep:
    """Loads the step that each process has saved in the folder. If one of them can't load it, all compile and save it.

    made: a step of `mpmd_jit_with_loop`.
    must_save: whether a step that can't be saved is an error.
    Raises as `train`.
    """
    if (step := load_for(folder, arguments)) is not None:
        return step
    step = made.lower(*arguments).compile()
    try:
        if isinstance(step, AutoStep):
            raise ValueError('healing.train: schedule="auto" changes the step while it runs: give plans or "auto"')
        step.save(folder)
    except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
        if must_save and not isinstance(error, OSError):
            raise
        tell(f"the step is not saved for the next time: {error}")
    return step

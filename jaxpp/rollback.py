"""`optimistic`: a loop over optimizer steps that assumes that conditions hold, and rolls back steps where not."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpp.jit import MpmdFunction, mpmd_jit_with_loop
from jaxpp.lowering.arguments import is_sharding
from jaxpp.lowering.locations import here
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.lowering.train_loop import OneStep, TrainLoop, assuming, check_options, no_metrics, of_results
from jaxpp.runtime.processes.fetch import fetch


def optimistic(loop: TrainLoop, mpmd_mesh: MpmdMesh, **options: Any) -> "OptimisticLoop":
    """Compiles two programs for a step of a `train_loop`: one assumes the conditions of `jaxpp.expect`, one waits.

    A call starts each step in the assuming program, in which no mesh waits for a condition. It checks the conditions of
    a step after it has started the next step. If a condition does not hold, it drops the results of both steps. It then
    runs this step again in the waiting program, and starts the next step again. The results always equal the loop's.
    (Zero Bubble, arXiv 2401.10241, section 4: a step is validated when the next one has begun, and rolled back.)

    The state before a step is kept until its conditions are known. At that time there are three states: before the
    step, after it, and after the next step. Without `optimistic` there are two. A call ends when the conditions of its
    last step are known.

    A loop with a delay overlaps its steps in one program. Its calls are rolled back as a whole.

    Args:
        loop: the result of `train_loop`; its step calls `expect`.
        mpmd_mesh: as for `mpmd_jit_with_loop`.
        options: as for `mpmd_jit_with_loop`. Only the waiting program donates arguments (`donate_*`), so they stay
            valid unless a step is rolled back.

    Raises:
        TypeError: `loop` is no `train_loop`, or there are static arguments.
        ValueError: when called: the step never calls `expect`, or the loop refuses its arguments.
    """
    if not isinstance(loop, TrainLoop):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(
            f"{here()}optimistic: expected a loop over steps, as train_loop(step, steps=...) makes it, found "
            f"{type(loop).__name__}"
        )
    check_options(options)
    return OptimisticLoop(loop, mpmd_mesh, options)


class OptimisticLoop:
    """The result of `optimistic`; it is called like the loop.

    Attributes:
        assuming: the program that assumes the conditions, for one step, or for a whole call if the loop has a delay.
            Its metrics are (the metrics of the loop, a boolean per step: whether its conditions held).
        waiting: the program of the same length that waits for the conditions.
        rollbacks: the number of steps, with a delay the number of calls, that were rolled back.
    """

    def __init__(self, loop: TrainLoop, mpmd_mesh: MpmdMesh, options: dict[str, Any]) -> None:
        kept = {name: value for name, value in options.items() if not name.startswith("donate_")}
        form: Callable[[TrainLoop], Any] = OneStep if not loop.delay else lambda loop: loop
        programs: list[MpmdFunction] = []
        for each, given in ((assuming(loop), kept), (loop, options)):
            shardings = _shardings(given, assumes=given is kept, is_one_step=not loop.delay)
            programs.append(mpmd_jit_with_loop(form(each), mpmd_mesh, **(given | shardings)))
        self.assuming, self.waiting = programs
        self._loop = loop
        self.rollbacks = 0

    def __repr__(self) -> str:
        return f"optimistic({self._loop!r}): {self.rollbacks} rollbacks"

    def __call__(self, state: Any, batches: Any) -> Any:
        """Runs all steps, and returns `(state, metrics)`."""
        if self._loop.delay:
            return self._at_once(state, batches)
        before = (state, batches, no_metrics(self._loop, state, batches))
        after = self._assume(*before, number=0)
        for number in range(self._loop.steps):
            following = self._assume(*after[:3], number=number + 1)
            if not fetch(after[3])[number]:
                del following, after
                self.rollbacks += 1
                after = (*self.waiting(*before, np.int32(number)), None)
                following = self._assume(*after[:3], number=number + 1)
            before, after = after[:3], following
        return before[0], before[2]

    def _assume(self, state: Any, batches: Any, metrics: Any, number: int) -> Any:
        """Starts step `number` in the assuming program; returns None after the last step.

        Returns:
            The state, the batches, the metrics, and an array of booleans, whose entry `number` tells whether the
            conditions of this step held.
        """
        if number == self._loop.steps:
            return None
        held = np.zeros(self._loop.steps, bool)
        state, batches, (metrics, held) = self.assuming(state, batches, (metrics, held), np.int32(number))
        return state, batches, metrics, held

    def _at_once(self, state: Any, batches: Any) -> Any:
        after, (metrics, held) = self.assuming(state, batches)
        if np.all(fetch(held)):
            return after, metrics
        del after, metrics
        self.rollbacks += 1
        return self.waiting(state, batches)


def _shardings(options: dict[str, Any], *, assumes: bool, is_one_step: bool) -> dict[str, Any]:
    """Returns the sharding options of a program, given the loop's (`in_shardings`, `out_specs` and so on).

    The program of one step also takes metrics and the index of the step, and returns the batches.
    """
    found: dict[str, Any] = {}
    for name in options.keys() & {"in_shardings", "in_specs"}:
        given = options[name]
        both = (given, given) if is_sharding(given) else tuple(given)
        found[name] = (*both, None, None) if is_one_step else given
    for name in options.keys() & {"out_shardings", "out_specs"}:
        state, metrics = of_results(options[name])
        metrics = (metrics, None) if assumes else metrics
        found[name] = (state, None, metrics) if is_one_step else (state, metrics)
    return found

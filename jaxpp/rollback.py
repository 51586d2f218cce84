"""`optimistic`: a loop over optimizer steps that assumes what its steps expect, and rolls back where that was wrong."""

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
    """Compile a step of a `train_loop` twice: with the conditions of `jaxpp.expect` assumed to hold, and as it is.

    A call starts step after step in the first form, in which no mesh waits for a condition. When the next step is on
    its way it looks at the conditions of this one. Where one doesn't hold, both are dropped, this step alone runs again
    in the second form, and the next one starts anew: the results are those of the loop in every case. (Zero Bubble,
    arXiv 2401.10241, section 4: a step is validated when the next one has begun, and rolled back.)

    The state before a step is kept until its conditions are known, beside those behind it and behind the next one, so
    there are three where a step that waits has two. A call ends when its last conditions are known.

    A loop with a delay overlaps its steps in one program: there a call is rolled back as a whole.

    Args:
        loop: what `train_loop` returns; its step calls `expect`.
        mpmd_mesh: as for `mpmd_jit_with_loop`.
        options: likewise; what is donated is given away by a step that is rolled back, and else left to its owner.

    Raises:
        TypeError: `loop` is no `train_loop`, or there are static arguments.
        ValueError: when called: its step expects nothing, or what a `train_loop` refuses.
    """
    if not isinstance(loop, TrainLoop):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(
            f"{here()}optimistic: expected a loop over steps, as train_loop(step, steps=...) makes it, found "
            f"{type(loop).__name__}"
        )
    check_options(options)
    return OptimisticLoop(loop, mpmd_mesh, options)


class OptimisticLoop:
    """What `optimistic` returns; it is called like the loop.

    Attributes:
        assuming: the program that assumes what is expected: of a step, or with a delay of a call. Its metrics are
            (those of the loop, whether each step's conditions held).
        waiting: the program of the same as it is.
        rollbacks: how many steps, with a delay how many calls, ran in both.
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
        """Run all steps: `(state, metrics)`."""
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
        """What a step makes, and whether the conditions of each held; behind the last step nothing."""
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
    """Those of the loop for its program: one step also takes metrics and a number, and returns batches."""
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

"""`optimistic`: a loop over optimizer steps that assumes what its steps expect, and rolls back where that was wrong."""

from typing import Any

import numpy as np

from jaxpp.jit import MpmdFunction, mpmd_jit_with_loop
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.lowering.train_loop import TrainLoop, assuming
from jaxpp.runtime.processes.fetch import fetch


def optimistic(loop: TrainLoop, mpmd_mesh: MpmdMesh, **options: Any) -> "OptimisticLoop":
    """Compile a `train_loop` twice: with the conditions of `jaxpp.expect` assumed to hold, and as it is.

    A call runs the first program, in which no mesh waits for a condition, and then looks at the conditions of all its
    steps. Where all hold its results are those of the loop. Else they are dropped, and the second program runs all
    steps of the call again, of the arguments as they were: the results are those of the loop in every case. (Zero
    Bubble, arXiv 2401.10241, section 4, validates each step after the fact and rolls that one back; here it is a call.)

    The arguments are kept until that is known, so a state that is donated takes its memory twice. It is given away by a
    call that rolls back; another call leaves it to whoever still holds it.

    Args:
        loop: what `train_loop` returns; its step calls `expect`.
        mpmd_mesh: as for `mpmd_jit_with_loop`.
        options: likewise; donated arguments are given to the second program alone.

    Raises:
        TypeError: `loop` is no `train_loop`.
        ValueError: when called: its step expects nothing.
    """
    if not isinstance(loop, TrainLoop):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(f"optimistic: expected a train_loop, found {type(loop).__name__}")
    return OptimisticLoop(loop, mpmd_mesh, options)


class OptimisticLoop:
    """What `optimistic` returns; it is called like the loop.

    Attributes:
        assuming: the program that assumes what is expected; its metrics are (those of the loop, whether it held).
        waiting: the program of the loop as it is.
        rollbacks: how many calls ran both.
    """

    def __init__(self, loop: TrainLoop, mpmd_mesh: MpmdMesh, options: dict[str, Any]) -> None:
        kept = {name: value for name, value in options.items() if not name.startswith("donate_")}
        for name in kept.keys() & {"out_shardings", "out_specs"}:
            if isinstance(kept[name], (tuple, list)) and len(kept[name]) == 2:
                kept[name] = (kept[name][0], (kept[name][1], None))
        self.assuming: MpmdFunction = mpmd_jit_with_loop(assuming(loop), mpmd_mesh, **kept)
        self.waiting: MpmdFunction = mpmd_jit_with_loop(loop, mpmd_mesh, **options)
        self.rollbacks = 0

    def __call__(self, state: Any, batches: Any) -> Any:
        """Run all steps: `(state, metrics)`."""
        after, (metrics, held) = self.assuming(state, batches)
        if np.all(fetch(held)):
            return after, metrics
        del after, metrics
        self.rollbacks += 1
        return self.waiting(state, batches)

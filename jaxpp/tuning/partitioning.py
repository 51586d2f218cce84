"""`cuts` and `jaxpp.partition`: the layers of each stage, for a step that marks every layer."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Protocol

from jaxpp.hlo_passes.loop.number_stages import NumberStages
from jaxpp.memory.limit import Limit, limit_text
from jaxpp.runtime.execution.progress import Progress
from jaxpp.schedules import Placement
from jaxpp.schedules.errors import true_or_false, whole_number
from jaxpp.schedules.layers import layers_of_stages
from jaxpp.schedules.model.values import positive
from jaxpp.schedules.search import Partition
from jaxpp.tuning.layers import Layers


def cuts_options(cuts: Partition | Sequence[int] | None) -> dict[str, str]:
    """Returns the options of the passes for these cuts: "cuts", and for a `Partition` also "schedule".

    Raises:
        TypeError: `cuts` is neither a partition nor a sequence of whole numbers.
        ValueError: a stage has no layer, or there is no stage.
    """
    if cuts is None:
        return {}
    if isinstance(cuts, Partition):
        return {"cuts": _text(cuts.cuts), "schedule": str(cuts.schedule)}
    sizes = layers_of_stages(cuts)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"cuts: each stage has at least one layer, found {cuts!r}")
    return {"cuts": _text(sizes)}


def _text(cuts: Sequence[int]) -> str:
    return NumberStages(",".join(map(str, cuts))).cuts


class _Measurable(Protocol):
    """The function that `mpmd_jit_with_loop` returns."""

    def measure_layers(self, *args: Any) -> "Layers":
        """Returns the costs of the marked layers."""
        ...


def partition(
    step: _Measurable,
    *args: Any,
    memory_limit: Limit = None,
    chunks: int | None = 1,
    placement: str | Placement = "any",
    split_backward: bool = True,
    seconds: float = 10.0,
    seed: int = 0,
) -> Partition:
    """Finds the number of layers of each stage and a schedule, for a step that marks every layer.

    To measure the layers, it runs and traces a step in which each layer is a stage, one microbatch after the other. On
    the devices of a `jaxpp.target`, it plans this step instead. Equal layers are compiled once. `schedules.partition`
    then searches with these costs. Pass the result to the step:

        step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh, cuts=jaxpp.partition(step, *args))

    Args:
        step: the result of `mpmd_jit_with_loop`; its schedule is not used.
        args: the arguments of the step, which are not donated. `jax.ShapeDtypeStruct`s are replaced by zeros.
        memory_limit: the most bytes that each device may need at once, for all meshes or for each. The resident bytes
            of a layer (parameters, gradients and state) are estimated from the program.
        chunks: as for `schedules.partition`.
        placement: as for `schedules.partition`.
        split_backward: as for `schedules.partition`.
        seconds: as for `schedules.partition`.
        seed: as for `schedules.partition`.

    Returns:
        The cuts, the schedule, the costs of the stages in milliseconds, the predicted makespan and a lower bound.

    Raises:
        PassError: the marks don't fit, as when the step is compiled.
        ScheduleError: there are fewer layers than meshes, nothing fits the memory, or an argument is wrong.
        TypeError: `step` does not take `cuts`, or `memory_limit` is not a limit.
        ValueError: the step takes no gradients, or the number of limits is wrong.
    """
    check_step("partition", step)
    positive(seconds, "seconds")
    whole_number(seed, "seed", least=0)
    split_backward = true_or_false(split_backward, "split_backward")
    layers = step.measure_layers(*args)
    limit = limit_text(memory_limit, len(layers.shares))
    last, number = 0.0, 1
    with contextlib.closing(Progress("searching for cuts, percent", 100)) as progress:

        def show(share: float, value: float, bound: float) -> None:
            nonlocal last, number
            number, last = number + (share < last), share  # the search is repeated for a graph, or with less memory
            found = [f"{value:.4g} ms (at least {bound:.4g})"] if value < math.inf else []
            progress.report(round(100 * share), [*found, *([f"search {number}"] if number > 1 else [])])

        found = layers.partition(
            limit,
            chunks=chunks,
            placement=placement,
            split_backward=split_backward,
            seconds=seconds,
            seed=seed,
            progress=show,
        )
        progress.report(100, ())
    return found


def check_step(who: str, step: Any) -> None:
    """Checks that `step` takes `cuts`.

    Raises:
        TypeError: `step` is not a result of `mpmd_jit_with_loop`. The message begins with `who`.
    """
    if not hasattr(step, "takes_cuts"):
        raise TypeError(f"{who}: expected a step of mpmd_jit_with_loop, which is not called yet, found {step!r}")
    if not step.takes_cuts:
        raise TypeError(f"{who}: the stages of mpmd_jit_by_yield are its marks, expected one of mpmd_jit_with_loop")

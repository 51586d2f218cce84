"""`cuts` and `jaxpp.partition`: which layers of a step that marks all of them each stage has."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxpp.hlo_passes.loop.merge_stages import MergeStages
from jaxpp.layers import Layers
from jaxpp.memory_limit import Limit, limit_text
from jaxpp.schedules import Partition, Placement
from jaxpp.schedules.cost_values import positive
from jaxpp.schedules.errors import true_or_false, whole_number
from jaxpp.schedules.layers import layers_of_stages


def cuts_options(cuts: Partition | Sequence[int] | None) -> dict[str, str]:
    """The options of passes that say it: "cuts", and with a partition "schedule".

    Raises:
        TypeError: it is neither a partition nor a row of whole numbers.
        ValueError: a stage has no layer.
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
    return MergeStages(",".join(map(str, cuts))).cuts


class _Measurable(Protocol):
    """What `mpmd_jit_with_loop` makes."""

    def measure_layers(self, *args: Any) -> "Layers":
        """What each marked layer costs."""
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
    """How many layers each stage should have, and their schedule, for a step that marks every layer.

    Each layer is a stage of its own once, one microbatch after the other, to find what it costs: a step is traced, or
    planned on the devices of a `jaxpp.target`. Equal layers are compiled once. From these costs `schedules.partition`
    finds the rest; give what it returns to the step:

        step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh, cuts=jaxpp.partition(step, *args))

    Args:
        step: of `mpmd_jit_with_loop`, with any schedule: it is not used.
        args: its arguments, which are not donated; or `jax.ShapeDtypeStruct`s, for which zeros are made.
        memory_limit: the bytes that each device may need at once, for all meshes or mesh by mesh. What a layer takes at
            all times, its parameters, gradients and state, is reckoned from the program.
        chunks: as for `schedules.partition`, as is all that follows.
        placement: see there.
        split_backward: see there.
        seconds: see there.
        seed: see there.

    Returns:
        The cuts, the schedule, the costs of the stages in milliseconds, the predicted makespan and a lower bound.

    Raises:
        PassError: the marks don't fit, as when it is compiled.
        ScheduleError: there are fewer layers than meshes, nothing fits the memory, or an argument is wrong.
        TypeError, ValueError: the limit is none, or the step; or it takes no gradients.
    """
    check_step("partition", step)
    positive(seconds, "seconds")
    whole_number(seed, "seed", least=0)
    split_backward = true_or_false(split_backward, "split_backward")
    layers = step.measure_layers(*args)
    limit = limit_text(memory_limit, len(layers.shares))
    return layers.partition(
        limit, chunks=chunks, placement=placement, split_backward=split_backward, seconds=seconds, seed=seed
    )


def check_step(who: str, step: Any) -> None:
    """Refuse what is no step that marks layers.

    Raises:
        TypeError: names `who` asks for one.
    """
    if not hasattr(step, "takes_cuts"):
        raise TypeError(f"{who}: expected a step of mpmd_jit_with_loop, which is not called yet, found {step!r}")
    if not step.takes_cuts:
        raise TypeError(f"{who}: the stages of mpmd_jit_by_yield are its marks, expected one of mpmd_jit_with_loop")


def array_of(leaf: Any) -> Any:
    """The leaf; zeros where only its shape is given."""
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

"""A warning for a batch of which no device has an equal share of each microbatch, such as `PartitionSpec("data")`."""

import warnings
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, main_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.train_loop import TrainLoopAttr


class ShardedMicrobatches(Observer):
    """An observer of the passes that warns if devices hold whole microbatches instead of a part of each.

    Every device then gathers each microbatch and computes all of its examples. The results are right, but the devices
    along the axis save no time.

    names: the names of the arguments of the step.
    """

    reads_program = False

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def after(self, step: Pass, module: ir.Module) -> None:
        """Checks the arguments after `find-microbatch-loop`."""
        if not isinstance(step, FindMicrobatchLoop) or (mesh := MeshAxes.of(module)) is None:
            return
        main, loop, steps = main_of(module), MicrobatchLoop.of(module), TrainLoopAttr.of(module)
        arguments = zip(self._names, body_of(main).arguments, at.argument_attributes(main), strict=False)
        told: list[tuple[str, str]] = []
        for name, value, entry in arguments:
            has_steps = steps is not None and value.arg_number >= steps.state  # its first dimension, for the user
            axes = mesh.axes(entry[at.SHARDING]) if at.SHARDING in entry else []
            if any(axes) and (text := _told(value, axes, loop, mesh, int(has_steps))):
                told.append((name, text))
        if told:
            (name, text), *others = told
            warnings.warn(
                f"{name}{f' (and {len(others)} more)' if others else ''} is sharded over {text}",
                stacklevel=100,  # beyond the stack, because no line of the user is known here
            )


def _told(value: ir.Value, axes: Sequence[Sequence[str]], loop: MicrobatchLoop, mesh: MeshAxes, before: int) -> str:
    """Returns the rest of the warning about an argument of the step: "" if each device has a part of each microbatch.

    axes: for each dimension of the argument the axes of the mesh that shard it.
    before: the number of dimensions that the user's argument has before those of `value`.
    """
    for axis in _sliced(value, loop):
        if axes[axis]:
            spec = ", ".join([*["None"] * (axis + before + 1), _named(axes[axis])])
            return (
                f"{_named(axes[axis])} along its microbatch axis, {axis + before}: every device computes all of each "
                f"microbatch; PartitionSpec({spec}) splits the examples of each instead"
            )
    for use in value.uses:
        op = use.owner.operation
        axis = _split_axis(op) if op.name == "stablehlo.reshape" else None
        if axis is None or not axes[axis]:
            continue
        rows, devices = ir.RankedTensorType(op.results[0].type).shape[axis], mesh.count(axes[axis])
        over = f"{_named(axes[axis])} along axis {axis + before}"
        for sliced in _sliced(op.results[0], loop):
            if sliced == axis:
                return (
                    f"{over}, of which a reshape makes the microbatch axis: every device computes all of each "
                    f"microbatch; leave out the reshape, and give treduce microbatches={loop.length}: then each device "
                    "has a part of each"
                )
            if sliced == axis + 1 and rows % devices:
                return (
                    f"{over}: {devices} devices can't share the rows of a microbatch, {rows}, equally, so rows move "
                    f"between them; expected a multiple of {devices} rows for each microbatch"
                )
    return ""


def _split_axis(op: ir.Operation) -> int | None:
    """Returns the axis that a reshape splits into two, itself and the next one; None for any other reshape."""
    before, after = (list(ir.RankedTensorType(each.type).shape) for each in (op.operands[0], op.results[0]))
    axis = next((k for k, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before) - 1)
    is_split = len(after) == len(before) + 1 and after[axis + 2 :] == before[axis + 1 :]
    return axis if is_split else None


def _sliced(value: ir.Value, loop: MicrobatchLoop) -> Iterator[int]:
    """Yields the dimensions along which the loop takes microbatches of `value`."""
    for use in value.uses:
        op = use.owner.operation
        if op.block == loop.body and op.name == "stablehlo.dynamic_slice":
            yield from (dimension for dimension, start in enumerate(list(op.operands)[1:]) if start in loop.counts)


def _named(axes: Sequence[str]) -> str:
    return ", ".join(map(repr, axes))

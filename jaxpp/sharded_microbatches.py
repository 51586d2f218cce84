"""A warning for a batch of which no device has an equal share of each microbatch, such as `PartitionSpec("data")`."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, main_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.train_loop import TrainLoopAttr


@dataclass(frozen=True)
class _Taken:
    """How the loop takes its microbatches from an argument.

    Attributes:
        axis: the axis of the argument that has the microbatches, or the rows of all of them.
        rows: the rows of a microbatch, if the axis has all rows; 0 if it has the microbatches.
        is_reshaped: whether a reshape of the user makes the microbatch axis from all rows.
    """

    axis: int
    rows: int = 0
    is_reshaped: bool = False


class ShardedMicrobatches(Observer):
    """An observer of the passes that warns if devices hold whole microbatches instead of a part of each.

    Every device then gathers each microbatch and computes all of its examples. The results are right, but the devices
    along the axis save no time.

    names: the names of the arguments of the step.

    Attributes:
        advice: how `in_shardings` would shard the examples over an axis `{axis}`; "" where that is not known.
    """

    reads_program = False

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.advice = ""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Checks the arguments after `find-microbatch-loop`."""
        if not isinstance(step, FindMicrobatchLoop) or (mesh := MeshAxes.of(module)) is None:
            return
        main, loop, steps = main_of(module), MicrobatchLoop.of(module), TrainLoopAttr.of(module)
        arguments = zip(self._names, body_of(main).arguments, at.argument_attributes(main), strict=False)
        told: list[tuple[str, str]] = []
        advised: list[str] = []
        for name, value, entry in arguments:
            before = int(steps is not None and value.arg_number >= steps.state)  # its first dimension, for the user
            taken = list(_taken(value, loop))
            axes = mesh.axes(entry[at.SHARDING]) if taken and at.SHARDING in entry else []
            if any(axes) and (
                text := next(filter(None, (_told(each, axes, loop, mesh, before) for each in taken)), "")
            ):
                told.append((name, text))
            advised += [_advice(name, each, loop, before) for each in taken if each.rows or _rank(value) > 1]
        by_yield = " by in_shardings with PartitionSpec('{axis}') for it" if loop.length == 1 else ""
        self.advice = next(iter(advised), by_yield)
        if told:
            (name, text), *others = told
            warnings.warn(
                f"{name}{f' (and {len(others)} more)' if others else ''} is sharded over {text}",
                stacklevel=100,  # beyond the stack, because no line of the user is known here
            )


def _taken(value: ir.Value, loop: MicrobatchLoop) -> Iterator[_Taken]:
    """Yields the ways in which the loop takes microbatches of an argument."""
    yield from map(_Taken, _sliced(value, loop))
    for use in value.uses:
        op = use.owner.operation
        axis = _split_axis(op) if op.name == "stablehlo.reshape" else None
        if axis is None:
            continue
        for sliced in _sliced(op.results[0], loop):
            if sliced in (axis, axis + 1):
                shape = ir.RankedTensorType(op.results[0].type).shape
                yield _Taken(axis, shape[2 * axis + 1 - sliced], sliced == axis)


def _told(taken: _Taken, axes: Sequence[Sequence[str]], loop: MicrobatchLoop, mesh: MeshAxes, before: int) -> str:
    """Returns the rest of the warning about an argument of the step: "" if each device has a part of each microbatch.

    axes: for each dimension of the argument the axes of the mesh that shard it.
    before: the number of dimensions that the user's argument has before those of the module's.
    """
    axis, over = taken.axis + before, axes[taken.axis]
    if not over:
        return ""
    if not taken.rows:
        return (
            f"{_named(over)} along its microbatch axis, {axis}: every device computes all of each microbatch; "
            f"{_spec(axis + 1, _named(over))} splits the examples of each instead"
        )
    if taken.is_reshaped:
        return (
            f"{_named(over)} along axis {axis}, of which a reshape makes the microbatch axis: every device computes "
            f"all of each microbatch; leave out the reshape, and give treduce microbatches={loop.length}: then each "
            "device has a part of each"
        )
    if taken.rows % (devices := mesh.count(over)):
        return (
            f"{_named(over)} along axis {axis}: {devices} devices can't share the rows of a microbatch, {taken.rows}, "
            f"equally, so rows move between them; expected a multiple of {devices} rows for each microbatch"
        )
    return ""


def _advice(name: str, taken: _Taken, loop: MicrobatchLoop, before: int) -> str:
    """Returns how the examples of an argument of the step are sharded over an axis `{axis}`."""
    free = taken.axis if taken.rows else int(taken.axis == 0)  # beside microbatches the first axis has the examples
    spec = _spec(free + before, "'{axis}'")
    text = f" by in_shardings with {spec} for {name}"
    return f"{text} and microbatches={loop.length} in place of the reshape" if taken.is_reshaped else text


def _spec(axis: int, named: str) -> str:
    return f"PartitionSpec({', '.join([*['None'] * axis, named])})"


def _rank(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank


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

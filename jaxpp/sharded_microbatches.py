"""A warning for a batch that is sharded along its microbatch axis, for example by `PartitionSpec("data")`."""

import warnings
from collections.abc import Collection, Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, main_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import sharded_axes
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
        if not isinstance(step, FindMicrobatchLoop):
            return
        main, loop = main_of(module), MicrobatchLoop.of(module)
        counts = loop.counts
        shardings = [entry.get(at.SHARDING) for entry in at.argument_attributes(main)]
        found: dict[str, tuple[int, list[str]]] = {}
        steps = TrainLoopAttr.of(module)
        for name, argument, sharding in zip(self._names, body_of(main).arguments, shardings, strict=False):
            axes = _sharded_axis(argument, sharding, loop.body, counts) if sharding is not None else None
            if axes is not None:
                has_steps = (
                    steps is not None and argument.arg_number >= steps.state
                )  # its first dimension, for the user
                found[name] = axes[0] + has_steps, axes[1]
        if found:
            (name, (axis, mesh_axes)), *others = found.items()
            over = ", ".join(map(repr, mesh_axes))
            spec = ", ".join([*["None"] * (axis + 1), over])
            warnings.warn(
                f"{name}{f' (and {len(others)} more)' if others else ''} is sharded over {over} along its microbatch "
                f"axis, {axis}: every device computes all of each microbatch; PartitionSpec({spec}) splits the "
                "examples of each instead",
                stacklevel=100,  # beyond the stack, because no line of the user is known here
            )


def _sharded_axis(
    value: ir.Value, sharding: ir.Attribute, body: ir.Block, counts: Collection[ir.Value]
) -> tuple[int, list[str]] | None:
    """Returns the dimension along which the loop slices microbatches of `value`, and the mesh axes that shard it.

    None if the loop slices no sharded dimension.

    body: the body of the loop.
    counts: the values that count microbatches.
    """
    axes = sharded_axes(sharding)
    for use in value.uses:
        op = use.owner.operation
        if op.block == body and op.name == "stablehlo.dynamic_slice":
            for dimension, start in enumerate(list(op.operands)[1:]):
                if start in counts and axes[dimension]:
                    return dimension, [str(axis) for axis in axes[dimension]]
    return None

"""Custom calls: the function that each one names, and whether this process has it."""

from collections.abc import Iterator

from jaxlib.mlir import ir

from jaxpp.ir.functions import nested_by_name

_OF_XLA = frozenset(
    "ApproxTopK Eigh LayoutConstraint MoveToDevice MoveToHost ProductOfElementaryHouseholderReflectors Qr "
    "SPMDFullToShardShape SPMDShardToFullShape Sharding TopK annotate_device_placement "
    "xla.sdy.FuncResultSharding xla.sdy.PropagationBarrier".split()
)
"""The targets that XLA itself has on CPUs. Any other target must be registered in this process."""


def custom_calls(op: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    """Yields the target and the operation of each custom call in `op`."""
    for call in nested_by_name(op)["stablehlo.custom_call"]:
        yield ir.StringAttr(call.attributes["call_target_name"]).value, call


def calls_python(target: str) -> bool:
    """Whether a custom call of this name calls a Python function, which only the process that lowered it has."""
    return "python" in target and "callback" in target


def custom_call_targets(platform: str) -> frozenset[str]:
    """Returns the names that are registered in this process for custom calls on a platform, such as `"cpu"`."""
    from jaxlib import xla_client  # imported here, as most runs of `jaxpp-opt` do without it

    return frozenset(xla_client.custom_call_targets(platform))


def unregistered(op: ir.Operation, platform: str) -> tuple[str, ir.Operation] | None:
    """Returns the first custom call in `op` that XLA could not resolve; None where it can resolve all.

    Checks CPUs only: the compilers for GPUs and TPUs know targets of their own, and refuse unknown ones themselves.
    """
    calls = list(custom_calls(op)) if platform == "cpu" else []
    known = _OF_XLA | custom_call_targets(platform) if calls else _OF_XLA
    return next(((target, call) for target, call in calls if target not in known), None)

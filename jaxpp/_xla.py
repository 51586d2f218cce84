"""Adapts modules for XLA, where it compiles correct ones wrongly, and sets XLA's options."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from jaxlib import version
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

_SEVERAL = ("stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier", "stablehlo.while")


def xla_flags() -> dict[str, str]:
    """Returns the XLA flags that the environment sets, with their values."""
    found: dict[str, str] = {}
    for text in (os.environ.get("XLA_FLAGS", ""), os.environ.get("LIBTPU_INIT_ARGS", "")):
        if text and not text.lstrip().startswith("-"):  # the text names a file with the flags
            with contextlib.suppress(OSError), open(text, encoding="utf-8") as file:
                text = file.read()
        parts = [each.partition("=") for each in text.split()]
        found |= {flag: value if is_given else "true" for flag, is_given, value in parts}
    return found


def module_for_xla(bytecode: bytes) -> ir.Module:
    """Parses a module for XLA; turns the shardings of an operation with several results into sharding constraints.

    XLA (0.10.2, 0.12.0.1) does not keep such a list of shardings correct. It may replace an operation that does nothing
    (a slice of all, a sum with zero) by a loop's result. The loop then gets the one sharding of that operation. It may
    also merge two equal operands of a loop, and leave the list as long as it was. Both end in an error. A constraint is
    an operation of its own, and disappears in the compiled program. On the custom call of `lax.approx_max_k` XLA
    refuses any sharding.

    The gradient of a maximum over windows, `select_and_scatter`, is wrong in XLA where devices divide a dimension that
    the windows cover. Constraints make it whole along that dimension, and then divide it.
    """
    module = ir.Module.parse(bytecode)
    found: list[ir.Operation] = []
    module.operation.walk(lambda op: found.append(op) or ir.WalkResult.ADVANCE)
    for op in found:
        if (op.name in _SEVERAL or _is_approximate(op)) and len(op.results) > 1 and "sdy.sharding" in op.attributes:
            shardings = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
            del op.attributes["sdy.sharding"]
            for value, sharding in zip(list(op.results), list(shardings), strict=True):
                if isinstance(value.type, ir.RankedTensorType) and value.type.rank:
                    _constrain(value, sharding, op)
        elif op.name == "stablehlo.select_and_scatter" and "sdy.sharding" in op.attributes:
            (sharding,) = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
            del op.attributes["sdy.sharding"]
            _constrain(op.results[0], sharding, op)
            _constrain(op.results[0], _whole_windows(op, sdy.TensorShardingAttr(sharding)), op)
    return module


def _whole_windows(op: ir.Operation, sharding: sdy.TensorShardingAttr) -> sdy.TensorShardingAttr:
    """Returns the sharding of `op` without the dimensions that its windows cover."""
    sizes = ir.DenseI64ArrayAttr(op.attributes["window_dimensions"])
    whole = sdy.DimensionShardingAttr.get([], True)
    dimensions = zip(sizes, sharding.dimension_shardings, strict=True)
    kept = [whole if size > 1 else sdy.DimensionShardingAttr(dimension) for size, dimension in dimensions]
    return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, kept)


def _is_approximate(op: ir.Operation) -> bool:
    return op.name == "stablehlo.custom_call" and str(op.attributes["call_target_name"]) == '"ApproxTopK"'


def _constrain(value: ir.Value, sharding: ir.Attribute, op: ir.Operation) -> None:
    """Inserts a sharding constraint between `value`, a result of `op`, and its users."""
    constrained = sdy.sharding_constraint(value, sharding, ip=ir.InsertionPoint.after(op), loc=op.location)
    value.replace_all_uses_except(constrained, constrained.owner.operation)


NO_FMA: Final = "--xla_cpu_max_isa=AVX"
"""A flag for x86. Without it, XLA at level 0 rounds a sum of products once in one loop and twice in another.

The maximum of some values may then be equal to none of them.
"""


def quick_options() -> dict[str, int]:
    """Returns options with which XLA compiles three times as fast for CPUs. Level 0 needs `NO_FMA`."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
    if version.__version__.startswith("0.10."):  # XLA aborts where it does not know a flag
        options["xla_cpu_use_fusion_emitters"] = False
    return options


@dataclass(frozen=True)
class XlaOption:
    """An option of XLA that jaxpp sets.

    Attributes:
        name: the name of the option in `compiler_options`.
        value: the value that jaxpp sets.
        where: `devices` for programs on several devices, `processes` for programs on devices of several processes.
        reason: the reason for the value.
        source: where XLA, or a user of it, documents that.
    """

    name: str
    value: bool
    where: Literal["devices", "processes"]
    reason: str
    source: str


GPU: Final = (
    XlaOption(
        "xla_gpu_enable_latency_hiding_scheduler",
        True,
        "devices",
        "collectives of a stage run beside its products: XLA's own default, of late",
        "https://docs.nvidia.com/jax-toolbox/environment-variables",
    ),
    XlaOption(
        "xla_gpu_shard_autotuning",
        False,
        "processes",
        "else the processes of a mesh share out what is tuned, and each compile waits for all of them: they run other "
        "meshes too, compile several programs at once, and find some of them in their caches, so that one may wait "
        "for a program that another one never compiles",
        "https://github.com/openxla/xla/pull/13108",
    ),
)
"""The options for GPUs. `compiler_options` and XLA_FLAGS override them. Other platforms have none."""


def with_defaults(devices: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for a program on these devices: `given`, and those of `GPU` that the user did not set."""
    if devices[0].platform not in ("gpu", "cuda"):
        return dict(given)
    applies = {"devices": len(devices) > 1, "processes": len({device.process_index for device in devices}) > 1}
    flags = {flag.lstrip("-") for flag in xla_flags()}
    own = {option.name: option.value for option in GPU if applies[option.where] and option.name not in flags}
    return own | dict(given)

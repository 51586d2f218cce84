"""Specs of tensors: shape, dtype and sharding as plain Python data, read from types and attributes of MLIR."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp import _compat
from jaxpp.ir.errors import PassError, ProgramError

DTYPES: Mapping[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    **{
        name: np.dtype(getattr(ml_dtypes, dtype))
        for name, dtype in {
            "i2": "int2",
            "i4": "int4",
            "ui2": "uint2",
            "ui4": "uint4",
            "f4E2M1FN": "float4_e2m1fn",
            "f8E3M4": "float8_e3m4",
            "f8E4M3": "float8_e4m3",
            "f8E4M3FN": "float8_e4m3fn",
            "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
            "f8E4M3FNUZ": "float8_e4m3fnuz",
            "f8E5M2": "float8_e5m2",
            "f8E5M2FNUZ": "float8_e5m2fnuz",
            "f8E8M0FNU": "float8_e8m0fnu",
        }.items()
    },
}
"""The NumPy dtype of every MLIR element type that JAX has."""

ELEMENTS: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


class SubAxis(NamedTuple):
    """A part of a mesh axis: `size` devices, after `pre_size` more major ones (Shardy's `"data":(2)4`)."""

    name: str
    pre_size: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """The spec of a value: its global shape on one mesh, its dtype, and its sharding there.

    axes: for each dimension the mesh axes that shard it, major first.
    unreduced: mesh axes over which each device holds a summand of its own.
    memory: the kind of memory that holds it, such as "pinned_host"; "" is the memory of the devices.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[tuple[str | SubAxis, ...], ...]
    unreduced: tuple[str, ...] = ()
    memory: str = ""

    @property
    def bytes(self) -> int:
        """The bytes of the whole value; an element of less than a byte counts as one."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def device_bytes(self) -> int:
        """The bytes of the whole value in the memory of the devices: 0 if it is elsewhere."""
        return 0 if self.memory else self.bytes

    def __str__(self) -> str:
        sharded = "".join(f", {axes}" for axes in [self.axes] if any(axes))
        unreduced = f", unreduced over {self.unreduced}" if self.unreduced else ""
        memory = f" in {self.memory}" if self.memory else ""
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]{sharded}{unreduced}{memory}"


def check_arrays(values: Iterable[ir.Value], what: str) -> None:
    """Raises PassError for a value that no array holds: a token, or a tensor of dynamic shape or unknown elements.

    what: the end of the message's sentence about the value, such as "goes over a stage mark".
    """
    for value in values:
        type_ = value.type
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape and str(type_.element_type) in DTYPES:
            continue
        kind = "a dynamic shape" if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape else "a value"
        token = "; for an ordered callback's token: ordered=False" if "token" in str(type_) else ""
        raise PassError(
            f"{kind} of type {type_} {what}",
            location=value.location,
            hint=f"what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>{token}",
        )


def read_spec(type_: ir.Type, sharding: ir.Attribute | None, axis_sizes: Mapping[str, int]) -> TensorSpec:
    """Returns the spec of a tensor type with its `sdy.sharding` (None: replicated).

    A dimension keeps the first axes that divide it, so that shards are equal, and drops the others. A part of an axis
    must also divide that axis.
    Raises ProgramError for another type, a dynamic shape, or an axis that the mesh lacks.
    """
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise ProgramError(f"expected a tensor of a fixed shape, found {type_}")
    dtype = DTYPES.get(str(type_.element_type))
    if dtype is None:
        raise ProgramError(f"no array has the element type {type_.element_type}")
    shape = tuple(type_.shape)
    if sharding is None or not axis_sizes:
        return TensorSpec(shape, dtype, ((),) * len(shape))
    if not sdy.TensorShardingAttr.isinstance(sharding):
        raise ProgramError(f"expected #sdy.sharding, found {sharding}")
    dimensions = sharded_axes(sharding)
    if len(dimensions) != len(shape):
        raise ProgramError(f"a sharding of {len(dimensions)} dimensions on {type_}")
    axes = tuple(_dividing(extent, names, axis_sizes) for extent, names in zip(shape, dimensions, strict=True))
    unreduced = tuple(sdy.AxisRefAttr(axis).name for axis in sdy.TensorShardingAttr(sharding).unreduced_axes)
    for axis in unreduced:
        _check_axis(axis, axis_sizes)
    return TensorSpec(shape, dtype, axes, tuple(axis for axis in unreduced if axis_sizes[axis] > 1))


def sharded_axes(sharding: ir.Attribute) -> list[list[str | SubAxis]]:
    """Returns for each dimension of an `#sdy.sharding` the axes, and parts of axes, that shard it, major first."""
    dimensions = map(sdy.DimensionShardingAttr, sdy.TensorShardingAttr(sharding).dimension_shardings)
    return [[_axis(axis) for axis in dimension.axes] for dimension in dimensions]


def _axis(axis: ir.Attribute) -> str | SubAxis:
    axis = sdy.AxisRefAttr(axis)
    if axis.sub_axis_info is None:
        return axis.name
    part = sdy.SubAxisInfoAttr(axis.sub_axis_info)
    return SubAxis(axis.name, part.pre_size, part.size)


def _dividing(extent: int, axes: Sequence[str | SubAxis], axis_sizes: Mapping[str, int]) -> tuple[str | SubAxis, ...]:
    """Returns the longest prefix of `axes` whose sizes divide `extent`; axes of size 1 shard nothing."""
    kept: list[str | SubAxis] = []
    for axis in axes:
        name = axis if isinstance(axis, str) else axis.name
        _check_axis(name, axis_sizes)
        size = axis_sizes[name] if isinstance(axis, str) else axis.size
        if extent % size or (isinstance(axis, SubAxis) and axis_sizes[name] % (axis.pre_size * size)):
            break
        extent //= size
        if size > 1:
            kept.append(axis)
    return tuple(kept)


def _check_axis(name: str, axis_sizes: Mapping[str, int]) -> None:
    if name not in axis_sizes:
        raise ProgramError(f'a sharding names the axis "{name}"; the mesh has {", ".join(axis_sizes)}')


def tensor_text(spec: TensorSpec) -> str:
    """Returns the type of `spec` as MLIR writes it: `tensor<4x2xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in spec.shape)}{ELEMENTS[spec.dtype]}>"


def sharding_text(spec: TensorSpec, mesh: str) -> str:
    """Returns the sharding of `spec` as the text of a closed `#sdy.sharding` over the mesh symbol `mesh`."""

    def axis_text(axis: str | SubAxis) -> str:
        return f'"{axis}"' if isinstance(axis, str) else f'"{axis.name}":({axis.pre_size}){axis.size}'

    dimensions = ", ".join("{" + ", ".join(map(axis_text, axes)) + "}" for axes in spec.axes)
    unreduced = ", unreduced={" + ", ".join(map(axis_text, spec.unreduced)) + "}" if spec.unreduced else ""
    return f"#sdy.sharding<@{mesh}, [{dimensions}]{unreduced}>"


def read_constant(op: ir.Operation) -> np.ndarray[Any, Any]:
    """Returns the elements of a `stablehlo.constant` of any element type, bit by bit. Equal elements take memory once.

    The bindings have no NumPy type for some elements: the reference interpreter evaluates those.
    Raises ProgramError for elements that the module does not hold itself (`dense_resource`).
    """
    type_ = ir.RankedTensorType(op.results[0].type)
    dtype, shape = DTYPES[str(type_.element_type)], tuple(type_.shape)
    if shape and is_splat_constant(op):
        return np.broadcast_to(read_constant(resized_splat(op, ())), shape)
    if dtype.kind == "c":
        whole = np.empty(shape, dtype)
        half = np.dtype(f"f{dtype.itemsize // 2}")
        whole.real, whole.imag = (_evaluate(op, f"stablehlo.{part}", half) for part in ("real", "imag"))
        return whole
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise ProgramError(f"a constant is {attribute}, expected dense<...>", location=op.location)
    if dtype.type.__module__ == "numpy":
        return np.array(attribute).reshape(shape)
    bits: int = getattr(type_.element_type, "width")  # noqa: B009  # of integers and floats, which have no common class
    if bits >= 8:
        return _evaluate(op, "stablehlo.bitcast_convert", np.dtype(f"u{bits // 8}")).view(dtype)
    is_integer = isinstance(type_.element_type, ir.IntegerType)
    return _evaluate(op, "stablehlo.convert", np.dtype("i4" if is_integer else "f4")).astype(dtype)


def is_splat_constant(op: ir.Operation) -> bool:
    """Whether `op` is a constant of equal elements."""
    if op.name != "stablehlo.constant":
        return False
    if isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType):
        return constant_text(op).startswith(" stablehlo.constant dense<(")  # jaxlib can't read its attribute
    attribute = op.attributes["value"]
    return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat


def resized_splat(op: ir.Operation, shape: Sequence[int]) -> ir.Operation:
    """Returns a constant of another shape, in no block, of the element of `op`, whose elements are all equal."""
    element = ir.RankedTensorType(op.results[0].type).element_type
    text, type_ = constant_text(op).rpartition(" : ")[0], f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
    with op.context:
        return ir.Operation.parse(f"%0 ={text} : {type_} {op.location}").operation


def constant_text(op: ir.Operation) -> str:
    """Returns the value and the type of a `stablehlo.constant` as text, which the bindings give for all types."""
    copy = op.clone(ip=False).operation
    for name in [*copy.attributes]:
        if name != "value":
            del copy.attributes[name]
    return str(copy.get_asm(use_local_scope=True, assume_verified=True)).partition("=")[2]


def _evaluate(op: ir.Operation, operation: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the result of `operation` on a constant, as the reference interpreter computes it."""
    type_ = op.results[0].type
    result = tensor_text(TensorSpec(tuple(ir.RankedTensorType(type_).shape), dtype, ()))
    with op.context:
        module = ir.Module.parse(
            f"func.func @main() -> {result} {{\n %c = {constant_text(op)}\n"
            f" %r = {operation} %c : ({type_}) -> {result}\n return %r : {result}\n}}"
        )
    return np.array(_compat.evaluate_constants(module)[0])

"""The attributes that jaxpp puts on ops, functions and values, and small readers and writers for them."""

from collections.abc import Iterable

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

KIND = "jaxpp.kind"
STAGE = "jaxpp.stage"
MICROBATCH = "jaxpp.microbatch"
MESH = "jaxpp.mesh"
MESHES = "jaxpp.meshes"
LAST_USE = "jaxpp.last_use"
ARGUMENT = "jaxpp.argument"
RESULT = "jaxpp.result"
FEEDS = "jaxpp.feeds"
LOOP = "jaxpp.microbatch_loop"
SHARDING = "sdy.sharding"
DONOR = "jax.buffer_donor"
ALIAS = "tf.aliasing_output"


def i64(value: int) -> ir.IntegerAttr:
    """A 64-bit integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def i64s(values: Iterable[int]) -> ir.DenseI64ArrayAttr:
    """An `array<i64: ...>` attribute."""
    return ir.DenseI64ArrayAttr.get(list(values))


def integer(op: ir.Operation, name: str) -> int | None:
    """The integer attribute `name` of `op`; None when it has none."""
    attribute = op.attributes.get(name)
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def integers(op: ir.Operation, name: str) -> list[int]:
    """The `array<i64: ...>` attribute `name` of `op`; empty when it has none."""
    attribute = op.attributes.get(name)
    return list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []


def byte_size(type_: ir.Type) -> int:
    """Bytes of a ranked tensor of static shape (a sub-byte element counts as one byte); 0 for anything else."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    element = type_.element_type
    width = element.element_type.width * 2 if isinstance(element, ir.ComplexType) else getattr(element, "width", 8)
    count = 1
    for size in type_.shape:
        count *= size
    return count * max(1, width // 8)


def value_sharding(value: ir.Value) -> ir.Attribute | None:
    """The `#sdy.sharding` of a value, wherever its defining op or function keeps it; None when it has none."""
    if isinstance(value, ir.BlockArgument):
        parent = value.owner.owner.operation
        if parent.name == "func.func":
            return argument_attribute(parent, value.arg_number, SHARDING)
        return _per_value(parent.attributes.get(SHARDING), value.arg_number)
    op = value.owner.operation
    if op.name in ("sdy.sharding_constraint", "sdy.reshard"):
        return op.attributes["sharding"]
    if op.name == "sdy.manual_computation":
        return _per_value(op.attributes["out_shardings"], value.result_number)
    return _per_value(op.attributes.get(SHARDING), value.result_number)


def _per_value(attribute: ir.Attribute | None, index: int) -> ir.Attribute | None:
    if attribute is None or not sdy.TensorShardingPerValueAttr.isinstance(attribute):
        return None
    return list(sdy.TensorShardingPerValueAttr(attribute).shardings)[index]


def argument_attribute(function: ir.Operation, index: int, name: str) -> ir.Attribute | None:
    """Attribute `name` of argument `index` of a func.func; None when it has none."""
    return _entry(function, "arg_attrs", index).get(name)


def result_attribute(function: ir.Operation, index: int, name: str) -> ir.Attribute | None:
    """Attribute `name` of result `index` of a func.func; None when it has none."""
    return _entry(function, "res_attrs", index).get(name)


def _entry(function: ir.Operation, table: str, index: int) -> dict[str, ir.Attribute]:
    attribute = function.attributes.get(table)
    if attribute is None:
        return {}
    return {named.name: named.attr for named in ir.ArrayAttr(attribute)[index]}


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """A dictionary of attributes for each argument of a func.func."""
    count = len(function.regions[0].blocks[0].arguments)
    return _table(function, "arg_attrs", count)


def result_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """A dictionary of attributes for each result of a func.func."""
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    return _table(function, "res_attrs", count)


def _table(function: ir.Operation, table: str, count: int) -> list[dict[str, ir.Attribute]]:
    attribute = function.attributes.get(table)
    if attribute is None:
        return [{} for _ in range(count)]
    return [{named.name: named.attr for named in entry} for entry in ir.ArrayAttr(attribute)]


def set_tables(
    function: ir.Operation,
    arguments: list[dict[str, ir.Attribute]] | None = None,
    results: list[dict[str, ir.Attribute]] | None = None,
) -> None:
    """Replace the argument and result attributes of a func.func."""
    for name, table in (("arg_attrs", arguments), ("res_attrs", results)):
        if table is not None:
            function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in table])

"""The attributes that jaxpp puts on ops, functions and values, and small readers and writers for them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from math import inf
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp._system import setting
from jaxpp.ir.values import defining_op

KIND = "jaxpp.kind"
STAGE = "jaxpp.stage"
MICROBATCH = "jaxpp.microbatch"
SLICE = "jaxpp.slice"
APART = "jaxpp.apart"
MESH = "jaxpp.mesh"
MESHES = "jaxpp.meshes"
MESH_SIZES = "jaxpp.mesh_sizes"
LAST_USE = "jaxpp.last_use"
SUMS = "jaxpp.sums"
NUMBER = "jaxpp.number"
FEEDS = "jaxpp.feeds"
BLOCKS = "jaxpp.blocks"
BYTES = "jaxpp.bytes"
LOOP = "jaxpp.microbatch_loop"
TRAIN_LOOP = "jaxpp.train_loop"
BOUNDARY = "jaxpp.boundary"
LOST_MARKS = "jaxpp.lost_marks"
TASK = "jaxpp.task"
OPERATIONS = "jaxpp.operations"
PER_RUN = "jaxpp.per_run"
DEVICES = "jaxpp.devices"
PLACED = "jaxpp.placed"
OURS = frozenset(value for name, value in list(globals().items()) if name.isupper() and value.startswith("jaxpp."))
"""All attributes of jaxpp. A module may have no other attribute whose name begins with `jaxpp.`."""
PARTITIONS = "mhlo.num_partitions"
SHARDING = "sdy.sharding"
DONOR = "jax.buffer_donor"
MEMORY = "mhlo.memory_kind"
ALIAS = "tf.aliasing_output"
SHARD_MAP = "sdy.manual_computation"  # an operation


def is_ours(name: str) -> bool:
    """Whether an attribute of this name belongs to jaxpp. Such attributes do not change what a module computes."""
    return name.startswith("jaxpp.")


def i64(value: int) -> ir.IntegerAttr:
    """Returns a 64-bit integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def i64s(values: Iterable[int]) -> ir.DenseI64ArrayAttr:
    """Returns an `array<i64: ...>` attribute."""
    return ir.DenseI64ArrayAttr.get(list(values))


def dictionary(attribute: ir.Attribute) -> dict[str, ir.Attribute]:
    """Returns the entries of a dictionary attribute."""
    # jaxlib's iterators over attributes end in a C++ exception. Finding the attribute of an entry by its name is ten
    # times as fast as reading its `attr`.
    entries = ir.DictAttr(attribute)
    return {(name := entries[number].name): entries[name] for number in range(len(entries))}


def plain(attribute: ir.Attribute | None) -> Any:
    """Returns an attribute as Python data: an `int`, `str` or `dict`, a `list` of numbers, or a `tuple` of others.

    An attribute of another kind, such as one without a value, stays an attribute: no boolean is taken for a number.
    """
    if isinstance(attribute, ir.IntegerAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return numbers(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(map(plain, attribute))
    if isinstance(attribute, ir.DictAttr):
        return {name: plain(entry) for name, entry in dictionary(attribute).items()}
    return attribute


def attribute_of(value: Any) -> ir.Attribute:
    """Returns the attribute that `plain` reads as `value`."""
    if isinstance(value, Mapping):
        return ir.DictAttr.get({name: attribute_of(entry) for name, entry in value.items()})
    if isinstance(value, tuple):
        return ir.ArrayAttr.get([attribute_of(entry) for entry in value])
    if isinstance(value, list):
        return i64s(value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return i64(value) if isinstance(value, int) else value


def note_bytes(op: ir.Operation, **numbers: int) -> None:
    """Adds entries to `jaxpp.bytes` of a module or a function, unless all `numbers` are 0."""
    if any(numbers.values()):
        op.attributes[BYTES] = attribute_of(noted_bytes(op) | numbers)


def write_bytes(op: ir.Operation, **numbers: int) -> None:
    """Replaces entries of `jaxpp.bytes`; an entry of 0 is not written, nor is an attribute without entries."""
    noted = {name: number for name, number in (noted_bytes(op) | numbers).items() if number}
    if noted:
        op.attributes[BYTES] = attribute_of(noted)
    elif BYTES in op.attributes:
        del op.attributes[BYTES]


def noted_bytes(op: ir.Operation) -> dict[str, int]:
    """Returns the entries of `jaxpp.bytes` of a module or a function."""
    return plain(op.attributes.get(BYTES)) or {}


def numbers(attribute: ir.Attribute) -> list[int]:
    """Returns the numbers of an `array<i64: ...>`."""
    array = ir.DenseI64ArrayAttr(attribute)
    return [array[position] for position in range(len(array))]


def same(one: ir.Attribute | None, other: ir.Attribute | None) -> bool:
    """Whether two attributes are equal, or both absent; jaxlib can't compare an attribute with None."""
    return one == other if one is not None and other is not None else one is other


def integer(op: ir.Operation, name: str) -> int | None:
    """Returns the integer attribute `name` of `op`; None when `op` has none."""
    attribute = op.attributes.get(name)
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def integers(op: ir.Operation, name: str) -> list[int]:
    """Returns the numbers of the `array<i64: ...>` attribute `name` of `op`; empty when `op` has none."""
    attribute = op.attributes.get(name)
    return numbers(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []


def several(op: ir.Operation, name: str) -> list[int] | None:
    """Returns the numbers of an attribute of `op` that is a number or `array<i64: ...>`; None when `op` has none."""
    attribute = op.attributes.get(name)
    if attribute is None:
        return None
    return [attribute.value] if isinstance(attribute, ir.IntegerAttr) else integers(op, name)


def one_or_several(values: Sequence[int]) -> ir.Attribute:
    """Returns the attribute that `several` reads: a number where there is one, otherwise `array<i64: ...>`."""
    return i64(values[0]) if len(values) == 1 else i64s(values)


def is_text(attribute: ir.Attribute | None) -> bool:
    """Whether an attribute is a string."""
    return isinstance(attribute, ir.StringAttr)


def is_number(attribute: ir.Attribute | None, least: int = 0, below: float = inf) -> bool:
    """Whether an attribute is an integer, at least `least` and below `below`."""
    return isinstance(attribute, ir.IntegerAttr) and least <= attribute.value < below


def found(entry: Mapping[str, ir.Attribute] | ir.OpAttributeMap, name: str) -> str:
    """Describes the attribute `name` for a message: `jaxpp.stage = 3 : i64`, or `no jaxpp.stage`."""
    return f"{name} = {entry[name]}" if name in entry else f"no {name}"


def value_sharding(value: ir.Value, lists: dict[ir.Attribute, list[ir.Attribute]] | None = None) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a value, from its defining op or its function; None when it has none.

    A loop has one attribute for the shardings of all its values, which is slow to read. `lists` caches the parts.
    """
    op = defining_op(value)
    if op is None:
        argument = ir.BlockArgument(value)
        parent = argument.owner.owner.operation
        if parent.name == "func.func":
            table = parent.attributes.get("arg_attrs")
            entry = ir.DictAttr(ir.ArrayAttr(table)[argument.arg_number]) if table is not None else {}
            return entry[SHARDING] if SHARDING in entry else None
        return _per_value(parent.attributes.get(SHARDING), argument.arg_number, lists)
    number = ir.OpResult(value).result_number
    if op.name in ("sdy.sharding_constraint", "sdy.reshard"):
        return op.attributes["sharding"]
    if op.name == SHARD_MAP:
        return _per_value(op.attributes["out_shardings"], number, lists)
    return _per_value(op.attributes.get(SHARDING), number, lists)


def _per_value(
    attribute: ir.Attribute | None, index: int, lists: dict[ir.Attribute, list[ir.Attribute]] | None
) -> ir.Attribute | None:
    if attribute is None:
        return None
    found = lists.get(attribute) if lists is not None else None
    if found is None:
        if not sdy.TensorShardingPerValueAttr.isinstance(attribute):
            return None
        found = sdy.TensorShardingPerValueAttr(attribute).shardings
        if lists is not None:
            lists[attribute] = found
    return found[index]


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """Returns a dictionary of attributes for each argument of a func.func."""
    count = len(function.regions[0].blocks[0].arguments)
    return _table(function, "arg_attrs", count)


def result_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """Returns a dictionary of attributes for each result of a func.func."""
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    return _table(function, "res_attrs", count)


def _table(function: ir.Operation, table: str, count: int) -> list[dict[str, ir.Attribute]]:
    attribute = function.attributes.get(table)
    if attribute is None:
        return [{} for _ in range(count)]
    tables = _TABLES.get()
    entries = tables.get(attribute) if tables is not None else None
    if entries is None:
        said = list(ir.ArrayAttr(attribute))
        known = {entry: dictionary(entry) for entry in dict.fromkeys(said)}  # most are equal: empty, or one sharding
        entries = [known[entry] for entry in said]
        if tables is not None:
            tables[attribute] = entries
    return [entry.copy() for entry in entries]


_TABLES: ContextVar[dict[ir.Attribute, list[dict[str, ir.Attribute]]] | None] = ContextVar("tables", default=None)


def tables_read_once() -> AbstractContextManager[None]:
    """Caches what `argument_attributes` and `result_attributes` read, as several passes read the same attributes.

    The cache must not outlive the context of the module, which its attributes would keep alive.
    """
    return setting(_TABLES, {})


def set_tables(
    function: ir.Operation,
    arguments: list[dict[str, ir.Attribute]] | None = None,
    results: list[dict[str, ir.Attribute]] | None = None,
) -> None:
    """Replaces the argument and result attributes of a func.func."""
    for name, table in (("arg_attrs", arguments), ("res_attrs", results)):
        if table is not None:
            function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in table])

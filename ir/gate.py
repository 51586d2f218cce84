"""Checks a module that others may have made: refuses attributes and shardings that jaxpp would silently ignore."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.custom_calls import custom_calls
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import name_of, nested

_Form: TypeAlias = tuple[str, type[ir.Attribute] | UnionType]
_NUMBER, _LIST = ("a number", ir.IntegerAttr), ("array<i64: ...>", ir.DenseI64ArrayAttr)
_TEXT, _UNIT, _DICT = ("a string", ir.StringAttr), ("no value", ir.UnitAttr), ("a dictionary", ir.DictAttr)
_EITHER = ("a number or array<i64: ...>", ir.IntegerAttr | ir.DenseI64ArrayAttr)
_ANY = ("", ir.Attribute)
_ROWS: Sequence[tuple[str, _Form, Sequence[str]]] = (
    ("module", _ANY, (at.TRAIN_LOOP, at.MESH_SIZES, at.LOST_MARKS)),
    ("module", _DICT, (at.OPERATIONS,)),
    ("module function", _DICT, (at.BYTES,)),
    ("module operation argument result", _EITHER, (at.MESHES,)),
    ("function", _TEXT, (at.KIND,)),
    ("function", _LIST, (at.SUMS,)),
    ("function operation", _NUMBER, (at.MESH,)),
    ("function", _NUMBER, (at.STAGE,)),
    ("argument result", _EITHER, (at.NUMBER,)),
    ("argument result", _LIST, (at.BLOCKS,)),
    ("argument result", _NUMBER, (at.TASK,)),
    ("argument result", _TEXT, (at.MEMORY,)),
    ("result", _NUMBER, (at.FEEDS,)),
    ("operation result", _UNIT, (at.PER_RUN,)),
    ("operation", _ANY, (at.LOOP, at.BOUNDARY)),
    ("operation", _DICT, (at.PLACED,)),
    ("operation", _EITHER, (at.STAGE, at.MICROBATCH, at.SLICE)),
    ("operation", _NUMBER, (at.APART, at.DEVICES)),
    ("operation", _LIST, (at.LAST_USE,)),
    ("operation", _TEXT, (at.TASK,)),
)
RULES: dict[str, dict[str, _Form]] = {}
"""For each attribute the places where it may stand, and its form there.

The reader of an attribute checks its value, and its form where any form is allowed here.
"""
for _places, _form, _names in _ROWS:
    for _name in _names:
        RULES.setdefault(_name, {}).update(dict.fromkeys(_places.split(), _form))

_KEYS = {
    at.LOOP: {"length", "schedule", "stages", "indices", "starts", "steps", "slices", "inferred"},
    at.TRAIN_LOOP: {"steps", "state", "delay", "schedule"},
    at.PLACED: {"kind", "meshes", "axes"},
}
"""The entries of attributes that are dictionaries. The reader of `jaxpp.boundary` checks its entries itself."""

LOWER_WITH_SHARDY = 'lower it with Shardy, jax.config.update("jax_use_shardy_partitioner", True)'
GSPMD_SHARDING = "mhlo.sharding"
_GSPMD = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_ANNOTATIONS = (GSPMD_SHARDING, "mhlo.spmd_output_sharding", "mhlo.spmd_parameters_shardings")
_FRONTEND = "mhlo.frontend_attributes"
_CONSTANTS = ("stablehlo.constant", "sdy.constant")


def check_module(module: ir.Module, *, gspmd: bool = False) -> None:
    """Raises PassError for an unknown attribute of jaxpp, and for a sharding that is not in Shardy's dialect.

    It also refuses what jaxlib can't read: locations, and complex numbers outside of constants.

    gspmd: whether the module may have shardings of GSPMD, for `import-shardings`.
    """
    for op in (module.operation, *nested(module.operation)):
        for place, what, entry in _entries(op):
            for name in entry:
                _check_readable(op, entry, name)
                if name in _ANNOTATIONS and not gspmd:
                    raise foreign(op, f"a sharding of GSPMD ({name})")
                _check_name(op, what, name)
                if name in RULES:
                    _check_rule(op, place, what, entry, name)
        for name, known in _KEYS.items():
            _check_keys(op, name, known)
        frontend = op.attributes.get(_FRONTEND)
        if isinstance(frontend, ir.DictAttr) and any(key.startswith("xla.sdy.") for key in at.dictionary(frontend)):
            raise foreign(op, "shardings as XLA takes them (xla.sdy.* in mhlo.frontend_attributes)")
    for target, call in custom_calls(module.operation):
        if target in _GSPMD and not gspmd:
            raise foreign(call, f"a sharding of GSPMD (custom call @{target})")


_Entry: TypeAlias = ir.OpAttributeMap | Mapping[str, ir.Attribute]


def _entries(op: ir.Operation) -> Iterator[tuple[str, str, _Entry]]:
    """Yields the kind of place where attributes stand, the name of the place in messages, and the attributes."""
    is_function = op.name == "func.func"
    place = "function" if is_function else "module" if op.name == "builtin.module" else "operation"
    yield place, f"a {op.name}", op.attributes
    if is_function:
        for kind, table in (("argument", "arg_attrs"), ("result", "res_attrs")):
            for number, entry in enumerate(ir.ArrayAttr(op.attributes[table]) if table in op.attributes else ()):
                yield kind, f"{kind} {number} of @{name_of(op)}", at.dictionary(entry)


def _check_readable(op: ir.Operation, entry: _Entry, name: str) -> None:
    try:
        if name != "value" or op.name not in _CONSTANTS:
            _read(entry[name])
    except TypeError:
        raise PassError(
            f"jaxlib can't read the attribute '{name}' of {op.name}",
            location=op.location,
            hint="leave it out: a location, or complex numbers that are no constant",
        ) from None


def _read(attribute: ir.Attribute) -> None:
    """Reads what is inside of an attribute."""
    if isinstance(attribute, ir.DictAttr):
        for each in at.dictionary(attribute).values():
            _read(each)
    elif isinstance(attribute, ir.ArrayAttr):
        for each in attribute:
            _read(each)


def _check_rule(op: ir.Operation, place: str, what: str, entry: _Entry, name: str) -> None:
    if place not in RULES[name]:
        raise PassError(f"{what} has {name}, expected on: {', '.join(RULES[name])}", location=op.location)
    expected, kind = RULES[name][place]
    if not isinstance(entry[name], kind):
        raise PassError(f"{what} has {at.found(entry, name)}, expected {expected}", location=op.location)


def _check_name(op: ir.Operation, what: str, name: str) -> None:
    prefix = name.partition(".")[0]
    is_near = prefix != "jaxpp" and "." in name and difflib.get_close_matches(prefix, ["jaxpp"], cutoff=0.85)
    if name in at.OURS or not (at.is_ours(name) or is_near):
        return
    near = difflib.get_close_matches(name.partition(".")[2], [known.partition(".")[2] for known in at.OURS], 1)
    raise PassError(
        f"{what} has an unknown attribute {name}",
        location=op.location,
        hint=f"did you mean jaxpp.{near[0]}?" if near else "docs/ir.md lists all attributes of jaxpp",
    )


def _check_keys(op: ir.Operation, name: str, known: set[str]) -> None:
    found = op.attributes.get(name)
    entries = at.dictionary(found) if isinstance(found, ir.DictAttr) else {}
    if strange := sorted(entries.keys() - known):
        near = difflib.get_close_matches(strange[0], known, 1)
        raise PassError(
            f"{name} has an unknown entry '{strange[0]}'",
            location=op.location,
            hint=f"did you mean '{near[0]}'?" if near else f"it may have {', '.join(sorted(known))}",
        )


def foreign(op: ir.Operation, what: str) -> PassError:
    """Returns the error for a sharding that is not Shardy's."""
    return PassError(
        f"{what}, expected sdy.sharding: XLA would shard by it, jaxpp would not",
        location=op.location,
        hint=f"{LOWER_WITH_SHARDY}, or begin with the pass import-shardings",
    )

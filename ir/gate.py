"""Checks a module that somebody else may have made: what jaxpp would leave out of account in silence is refused."""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.custom_calls import custom_calls
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import name_of, nested

_NUMBERS = (
    *(
        at.STAGE,
        at.MICROBATCH,
        at.SLICE,
        at.APART,
        at.FUSED,
        at.PART,
        at.MESH,
        at.ARGUMENT,
        at.RESULT,
        at.FEEDS,
        at.LAYER,
    ),
    *(at.ROWS_SENT, at.ROWS_PADDED, at.PEAK_BYTES, at.PEAK_HOST_BYTES, at.PEAK_ACTIVATIONS, at.DEVICES),
)
_LISTS = (at.SLICES, at.STAGES, at.MICROBATCHES, at.LAST_USE, at.SUMS, at.BLOCKS, at.BLOCK)
_FORMS: Mapping[str, tuple[str, type[ir.Attribute] | UnionType]] = {
    **dict.fromkeys(_NUMBERS, ("a number", ir.IntegerAttr)),
    **dict.fromkeys(_LISTS, ("array<i64: ...>", ir.DenseI64ArrayAttr)),
    **dict.fromkeys((at.KIND, at.TASK), ("a string", ir.StringAttr)),
    **dict.fromkeys((at.UNIT, at.GATHER, at.SCATTER), ("no value", ir.UnitAttr)),
    **dict.fromkeys((at.OPERATIONS, at.ONCE_PER_STEP), ("a dictionary", ir.DictAttr)),
    at.MESHES: ("a number or array<i64: ...>", ir.IntegerAttr | ir.DenseI64ArrayAttr),
    at.MEMORY: ("a string", ir.StringAttr),
}
"""What each attribute is. Who reads one says which values it may have, and checks those that are not here."""

_KEYS = {
    at.LOOP: {"length", "schedule", "stages", "indices", "starts", "steps", "slices"},
    at.TRAIN_LOOP: {"steps", "state", "delay", "schedule"},
}
"""The entries of attributes that are dictionaries. Who reads `jaxpp.boundary` checks them there."""

_GSPMD = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_ANNOTATIONS = ("mhlo.sharding", "mhlo.spmd_output_sharding", "mhlo.spmd_parameters_shardings")
_FRONTEND = "mhlo.frontend_attributes"


def check_module(module: ir.Module) -> None:
    """Raises PassError for an unknown attribute of jaxpp, and for a sharding that is not in Shardy's dialect."""
    for op in (module.operation, *nested(module.operation)):
        for what, entry in _entries(op):
            for name in entry:
                _check_name(op, what, name)
                if name in _FORMS and not isinstance(entry[name], _FORMS[name][1]):
                    message = f"{what} has {at.found(entry, name)}, expected {_FORMS[name][0]}"
                    raise PassError(message, location=op.location)
        for name, known in _KEYS.items():
            _check_keys(op, name, known)
        frontend = op.attributes.get(_FRONTEND)
        if isinstance(frontend, ir.DictAttr) and any(key.startswith("xla.sdy.") for key in at.dictionary(frontend)):
            raise _foreign(op, "shardings as XLA takes them (xla.sdy.* in mhlo.frontend_attributes)")
    for target, call in custom_calls(module.operation):
        if target in _GSPMD:
            raise _foreign(call, f"a sharding of GSPMD (custom call @{target})")


def _entries(op: ir.Operation) -> Iterator[tuple[str, ir.OpAttributeMap | Mapping[str, ir.Attribute]]]:
    """Yields whose attributes they are, as messages say it, and these."""
    yield f"a {op.name}", op.attributes
    if op.name == "func.func":
        for kind, table in (("argument", "arg_attrs"), ("result", "res_attrs")):
            for number, entry in enumerate(ir.ArrayAttr(op.attributes[table]) if table in op.attributes else ()):
                yield f"{kind} {number} of @{name_of(op)}", at.dictionary(entry)


def _check_name(op: ir.Operation, what: str, name: str) -> None:
    if name in _ANNOTATIONS:
        raise _foreign(op, f"a sharding of GSPMD ({name})")
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


def _foreign(op: ir.Operation, what: str) -> PassError:
    return PassError(
        f"{what}, expected sdy.sharding: XLA would shard by it, jaxpp would not",
        location=op.location,
        hint='lower it with Shardy: jax.config.update("jax_use_shardy_partitioner", True)',
    )

"""Copies arguments in host memory to the devices when these need them, and results back."""

from collections.abc import Iterator
from itertools import count

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, functions, program_order, terminator
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.outlining import copy_function
from jaxpp.ir.values import defining_op

Entry = dict[str, ir.Attribute]


def copy_host_state(module: ir.Module) -> None:
    """Adds the copies of arguments in host memory, and of results there, to the mesh functions."""
    numbers = count()
    for mesh, function in enumerate(mesh_functions(module)):
        _copy_on(module, mesh, function, numbers)


def _copy_on(module: ir.Module, mesh: int, function: ir.Operation, numbers: Iterator[int]) -> None:
    """Adds the copies of one mesh. numbers: those for the names of copies, each of which has its own."""
    block, taken = body_of(function), functions(module)

    def copy(kind: str, base: str, value: ir.Value, tables: tuple[Entry, Entry], ip: ir.InsertionPoint) -> ir.Value:
        """Calls a new function that returns `value` unchanged, in another memory; returns the result of the call."""
        # A task of a user's kind may have such a name.
        name = next(each for number in numbers if (each := f"{base}_{number}") not in taken)
        source, target = tables
        made = copy_function(module, name, [value.type], {at.KIND: ir.StringAttr.get(kind)}, [source], [target])
        return call(made, [value], {at.MESH: at.i64(mesh)}, ip, ir.Location.unknown()).results[0]

    end = terminator(block)
    stored = {number: entry for number, entry in enumerate(at.result_attributes(function)) if at.MEMORY in entry}
    entries = zip(block.arguments, at.argument_attributes(function), strict=True)
    here: dict[ir.Value, Entry] = {value: entry for value, entry in entries if at.MEMORY in entry}
    for number, entry in stored.items():
        value = end.operands[number]
        if value not in here:
            op = defining_op(value)
            ip = ir.InsertionPoint.at_block_begin(block) if op is None else ir.InsertionPoint.after(op)
            end.operands[number] = copy("offload", "to_host", value, (_elsewhere(entry), _kept(entry)), ip)
    for value, entry in here.items():
        uses = [(use.owner.operation, use.operand_number) for use in value.uses]
        uses = [(op, number) for op, number in uses if op != end or number not in stored]
        if uses:
            ip = ir.InsertionPoint(min((op for op, _ in uses), key=program_order))
            loaded = copy("reload", "to_devices", value, (_kept(entry), _elsewhere(entry)), ip)
            for op, number in uses:
                op.operands[number] = loaded


def _kept(entry: Entry) -> Entry:
    """Returns the sharding and the memory from the attributes of a mesh function's argument or result."""
    return {name: entry[name] for name in (at.SHARDING, at.MEMORY) if name in entry}


def _elsewhere(entry: Entry) -> Entry:
    """Returns the sharding only: that memory is the memory of the devices."""
    return {name: entry[name] for name in (at.SHARDING,) if name in entry}

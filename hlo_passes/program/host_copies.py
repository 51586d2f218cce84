"""Copies arguments in host memory to the devices when these need them, and results back."""

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, functions, program_order, terminator
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.outlining import copy_function
from jaxpp.ir.values import defining_op

Entry = dict[str, ir.Attribute]


def copy_host_state(module: ir.Module) -> bool:
    """Adds the copies of arguments in host memory, and of results there, to the mesh functions.

    Returns whether it added any.
    """
    count = 0
    for mesh, function in enumerate(mesh_functions(module)):
        copies = _Copies(module, mesh, function, count)
        copies.add()
        count = copies.count
    return count > 0


class _Copies:
    """The copies of one mesh.

    Attributes:
        count: the index in the name of the module's next copy.
    """

    def __init__(self, module: ir.Module, mesh: int, function: ir.Operation, count: int) -> None:
        self._module, self._mesh, self._function, self.count = module, mesh, function, count
        self._block = body_of(function)

    def add(self) -> None:
        arguments, results = at.argument_attributes(self._function), at.result_attributes(self._function)
        end = terminator(self._block)
        stored = [(number, entry) for number, entry in enumerate(results) if at.MEMORY in entry]
        here: dict[ir.Value, Entry] = {
            value: entry for value, entry in zip(self._block.arguments, arguments, strict=True) if at.MEMORY in entry
        }
        for number, entry in stored:
            value = end.operands[number]
            if value not in here:
                op = defining_op(value)
                ip = ir.InsertionPoint.at_block_begin(self._block) if op is None else ir.InsertionPoint.after(op)
                end.operands[number] = self._copy("to_host", value, _elsewhere(entry), _kept(entry), ip)
        back = {number for number, _ in stored}
        for value, entry in here.items():
            uses = [(use.owner.operation, use.operand_number) for use in value.uses]
            uses = [(op, number) for op, number in uses if op != end or number not in back]
            if uses:
                ip = ir.InsertionPoint(min((op for op, _ in uses), key=program_order))
                loaded = self._copy("to_devices", value, _kept(entry), _elsewhere(entry), ip)
                for op, number in uses:
                    op.operands[number] = loaded

    def _copy(self, name: str, value: ir.Value, source: Entry, target: Entry, ip: ir.InsertionPoint) -> ir.Value:
        """Calls a new function that returns `value` unchanged, in another memory; returns the result of the call."""
        taken = functions(self._module)
        while f"{name}_{self.count}" in taken:  # a task of a user's kind may have this name
            self.count += 1
        name = f"{name}_{self.count}"
        self.count += 1
        kind: Entry = {at.KIND: ir.StringAttr.get("offload" if at.MEMORY in target else "reload")}
        function = copy_function(self._module, name, [value.type], kind, [source], [target])
        return call(function, [value], {at.MESH: at.i64(self._mesh)}, ip, ir.Location.unknown()).results[0]


def _kept(entry: Entry) -> Entry:
    """Returns the sharding and the memory from the attributes of a mesh function's argument or result."""
    return {name: entry[name] for name in (at.SHARDING, at.MEMORY) if name in entry}


def _elsewhere(entry: Entry) -> Entry:
    """Returns the sharding only: that memory is the memory of the devices."""
    return {name: entry[name] for name in (at.SHARDING,) if name in entry}

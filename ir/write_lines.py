"""Writes the lines of the meshes as mesh functions: the text of a program (docs/ir.md, section 6)."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, create, functions, operations
from jaxpp.ir.mesh_functions import TASK
from jaxpp.ir.mesh_lines import Border, Literal, MeshLine, MeshLines
from jaxpp.ir.program import Call, Receive, Send, TaskName


def write_lines(module: ir.Module, program: MeshLines) -> None:
    """Writes the lines that `module` lacks or has in an older form, and the peaks of all lines."""
    with module.context, ir.Location.unknown():
        writer = None  # made only where it is needed: it parses an attribute for each channel
        for line in program.lines:
            if line.function is None or line.is_changed:
                writer = writer or _Writer(module, program)
                line.function, line.is_changed = writer.write(line), False
            at.write_bytes(line.function, peak=line.peak, host_peak=line.host_peak)


def _last_use(each: Call | Send) -> tuple[int, ...]:
    """Returns the positions of the operands that the instruction frees."""
    operands = each.operands if isinstance(each, Call) else (each.operand,)
    return tuple([position for position, register in enumerate(operands) if register in each.frees])


class _Writer:
    """Writes mesh functions. All but the first call of a function are clones, which take half as long as new ones."""

    def __init__(self, module: ir.Module, program: MeshLines) -> None:
        self._module, self._known = module, functions(module)
        channels = [each.channel for line in program.lines for each in line.sequence if isinstance(each, Send)]
        texts = [f"#stablehlo.channel_handle<handle = {number}, type = 1>" for number in sorted(channels)]
        # Parsing each attribute by itself takes three times as long.
        parsed = list(ir.ArrayAttr(ir.Attribute.parse(f"[{', '.join(texts)}]")))
        self._handles = dict(zip(sorted(channels), parsed, strict=True))
        self._before = next(iter(self._known.values()), None)
        calls = [each for line in program.lines for each in line.sequence if isinstance(each, Call)]
        self._task_names = TASK if any(task.slice for each in calls for task in each.tasks) else TASK[:2]
        self._first: dict[tuple[object, ...], ir.Operation] = {}
        self._received: dict[ir.Attribute, ir.Attribute] = {}
        self._token_type = ir.Type.parse("!stablehlo.token")

    def write(self, line: MeshLine) -> ir.Operation:
        """Writes the function of one mesh, or a new body if there is one; returns the function."""
        function = line.function or self._function(line)
        block = body_of(function)
        for op in reversed(operations(block)):
            op.erase()
        self._values: list[ir.Value] = list(block.arguments)
        self._ip = ir.InsertionPoint(block)
        self._token: ir.Value = stablehlo.create_token(ip=self._ip)
        for each, location in zip(line.sequence, line.locations, strict=False):  # the last two are no instructions
            if isinstance(each, Literal):
                op = each.op.clone(self._ip).operation
                self._values.append(op.results[0])
            elif isinstance(each, Call):
                self._call(line, each, location)
            else:
                self._transfer(line, each, location)
        func.return_([self._values[register] for register in line.returned], ip=self._ip, loc=line.locations[-2])
        return function

    def _function(self, line: MeshLine) -> ir.Operation:
        inputs, outputs = ([border.type for border in each] for each in (line.arguments, line.results))
        attributes = {at.MESH: at.i64(line.mesh)}
        function = create(
            self._module, line.name, inputs, outputs, attributes, visibility="public", before=self._before
        )
        at.set_tables(function, list(map(_entry, line.arguments)), list(map(_entry, line.results)))
        return function

    def _call(self, line: MeshLine, each: Call, location: ir.Location) -> None:
        operands = [self._values[register] for register in each.operands]
        attributes = self._task(each.tasks) | {at.MESH: at.i64(line.mesh)}
        last_use = _last_use(each)
        if last_use:
            attributes[at.LAST_USE] = at.i64s(last_use)
        key = each.function, *attributes
        first = self._first.get(key)
        if first is None:
            op = self._first[key] = call(self._known[each.function], operands, attributes, self._ip, location)
        else:
            op = self._clone(first, operands, attributes, location)
        self._values += op.results

    def _clone(
        self,
        first: ir.Operation,
        operands: Sequence[ir.Value],
        attributes: dict[str, ir.Attribute],
        location: ir.Location,
    ) -> ir.Operation:
        """Clones `first` with other operands, and with other values of its attributes."""
        op = first.clone(self._ip).operation
        places, said, op.location = op.operands, op.attributes, location
        for position, value in enumerate(operands):
            places[position] = value
        for name, attribute in attributes.items():
            said[name] = attribute
        return op

    def _task(self, tasks: Sequence[TaskName]) -> dict[str, ir.Attribute]:
        """Returns the attributes of a call that name its tasks."""
        if not tasks:
            return {}
        numbers = zip(*[(task.stage, task.microbatch, task.slice) for task in tasks], strict=True)
        return {name: at.one_or_several(each) for name, each in zip(self._task_names, numbers, strict=False)}

    def _transfer(self, line: MeshLine, each: Send | Receive, location: ir.Location) -> None:
        """Writes a send or a receive."""
        attributes = {"channel_handle": self._handles[each.channel]}
        if isinstance(each, Send):
            pair, operands, types = (line.mesh, each.destination), [self._values[each.operand]], list[ir.Type]()
            if each.frees:
                attributes[at.LAST_USE] = at.i64s((0,))
        else:
            pair, operands = (each.source, line.mesh), list[ir.Value]()
            type_, sharding = line.received[each.result]
            types = [type_]
            if sharding is not None:
                attributes[at.SHARDING] = self._sharding(sharding)
        key = (*pair, isinstance(each, Send), *attributes, *types)
        first = self._first.get(key)
        if first is None:
            attributes["source_target_pairs"] = ir.Attribute.parse(f"dense<[[{pair[0]}, {pair[1]}]]> : tensor<1x2xi64>")
            name = "stablehlo.send" if isinstance(each, Send) else "stablehlo.recv"
            types, operands = [*types, self._token_type], [*operands, self._token]
            op = self._first[key] = ir.Operation.create(name, types, operands, attributes, ip=self._ip, loc=location)
        else:
            op = self._clone(first, [*operands, self._token], attributes, location)
        *values, self._token = op.results
        self._values += values

    def _sharding(self, sharding: ir.Attribute) -> ir.Attribute:
        """Returns the sharding of a receive: one entry for the value, one for the token."""
        if sharding not in self._received:
            text = str(sharding).removeprefix("#sdy.sharding")
            mesh = text[1:].split(",")[0]
            self._received[sharding] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{text}, <{mesh}, []>]>")
        return self._received[sharding]


def _entry(border: Border) -> dict[str, ir.Attribute]:
    """Returns the attributes of an argument or a result."""
    entry = {
        at.NUMBER: border.numbers,
        at.SHARDING: border.sharding,
        at.DONOR: ir.BoolAttr.get(True) if border.donated else None,
        at.MEMORY: border.memory,
    }
    return {name: attribute for name, attribute in entry.items() if attribute is not None}

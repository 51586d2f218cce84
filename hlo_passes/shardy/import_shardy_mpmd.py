"""`import-shardy-mpmd`: a module that Shardy partitioned becomes a placed program."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.shardy.mesh_tensors import (
    HOST,
    MESH_SHAPE,
    TOPOLOGY,
    MeshTensor,
    Topology,
    TypeReader,
    on_one_mesh,
    per_value,
    put_on_one_mesh,
    refused,
    topology_of,
    write_meshes,
)
from jaxpp.ir import attributes as at
from jaxpp.ir import build
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    blocks_of,
    body_of,
    call,
    callee,
    create,
    functions,
    main_of,
    nested,
    operations,
    set_results,
    terminator,
)
from jaxpp.ir.kinds import FRAGMENT
from jaxpp.ir.mesh_functions import TASK
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.values import defining_op, is_used

_ONLY_BORDERS = "only arguments and results of @main can be in the memory of the host"
_MOST_ITERATIONS = 1 << 16
_NONE: Mapping[str, ir.Attribute] = {}
_REDUCTIONS = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply", "or": "or", "and": "and"}


@dataclass(frozen=True)
class ImportShardyMpmd(Pass):
    """Imports a module that Shardy has partitioned into fragments (dialect `mpmd`), as a program placed on meshes.

    Each fragment becomes a call of a function on its mesh. A transfer disappears: the fragments that use its result
    read its operand, and `insert-transfers` sends the value. If a transfer changes the sharding, the receiving mesh
    calls a function that reshards. Calls of `mpmd` functions are inlined, and loops (`mpmd.for`) unrolled. Mesh k of
    the program is the k-th mesh of the topology. Its axes are those of all meshes, with size 1 where it lacks one.

    A named computation becomes a call if `assignment` has a mesh for its name. docs/shardy-mpmd.md lists the other
    operations, and the modules that the pass refuses.

    Options:
        assignment: the meshes of named computations, such as `f@m1 g@m2`.

    Preconditions: `@main` has a topology. Each operation of `@main` is of the `mpmd` dialect, or a constant.

    ```mlir
    %1 = mpmd.fragment<mesh="m1", origin=["f"]> (%0)     ==>   %1 = call @f_0(%0) {jaxpp.mesh = 0}
           (%x: tensor<4xf32>) {                               %3 = call @g_0(%1) {jaxpp.mesh = 1}
      %y = stablehlo.negate %x                                 func.func private @f_0(%x) {
      mpmd.return %y }                                           %y = stablehlo.negate %x
    %2 = mpmd.transfer %1                                        return %y }
    %3 = mpmd.fragment_call<mesh="m2", origin=[]> @g_0(%2)
    ```
    """

    assignment: str = ""

    def __post_init__(self) -> None:
        for word in self.assignment.split():
            if word.count("@") != 1 or not all(word.split("@")):
                raise ValueError(f"assignment has '{word}', expected COMPUTATION@MESH")

    def run(self, module: ir.Module) -> None:
        """Replaces `@main`. Raises PassError for an operation, type or attribute that can't be imported."""
        main = main_of(module)
        topology = topology_of(main)
        assigned = {name: mesh for name, _, mesh in (word.partition("@") for word in self.assignment.split())}
        for name, mesh in assigned.items():
            if mesh not in topology:
                message = f"computation '{name}' is assigned to mesh '{mesh}', which the topology does not have"
                raise PassError(message, location=main.location, hint=f"the meshes are {', '.join(topology)}")
        write_meshes(module, topology)
        for function in functions(module).values():
            put_on_one_mesh(function)
        _Importer(module, main, topology, assigned).run()


class _Importer:
    """Builds the new `@main`, and the functions that it calls."""

    def __init__(self, module: ir.Module, main: ir.Operation, topology: Topology, assigned: Mapping[str, str]) -> None:
        self._module = module
        self._main = main
        self._types = TypeReader(module, topology)
        self._number = {name: number for number, name in enumerate(topology)}
        self._assigned = assigned
        self._shardings = Shardings(module)
        self._functions = functions(module)
        self._imported: dict[tuple[object, ...], ir.Operation] = {}
        """The functions of the program, by what they were made of and the shardings around them."""
        self._values: dict[ir.Value, ir.Value] = {}
        """The new values, by the old ones."""
        self._homes: dict[ir.Value, list[int]] = {}
        """The meshes of each new value but constants: the one that makes it, or those that an argument is on."""
        self._local: set[ir.Value] = set()
        """The arguments of the new `@main` whose types name no mesh. They are on all meshes that use them."""
        self._ip = ir.InsertionPoint(main)
        """The end of the new `@main`."""
        self._names: Counter[str] = Counter()
        """How many names of functions begin with each word."""
        self._calls: list[str] = []
        """The functions that are being inlined."""

    def run(self) -> None:
        """Replaces `@main`, and erases the functions that only operations of `mpmd` call."""
        old = body_of(self._main)
        inputs = [self._types.read(value.type, self._main, host=True) for value in old.arguments]
        values = terminator(old).operands
        outputs = [self._types.read(value.type, self._main, host=True) for value in values]
        types = [each.type for each in inputs], [each.type for each in outputs]
        new = create(self._module, "main.imported", *types, {}, visibility="public", before=self._main)
        entries = self._arguments(inputs, new)
        self._ip = ir.InsertionPoint(body_of(new))
        self._block(old)
        results = [self._values[value] for value in values]
        set_results(new, results)
        for argument, entry in zip(body_of(new).arguments, entries, strict=True):
            entry[at.MESHES] = at.i64s(sorted(set(self._homes[argument])) or [0])
        homes = [
            self._number[tensor.mesh] if tensor.mesh else min(self._homes.get(value) or [0])
            for value, tensor in zip(results, outputs, strict=True)
        ]
        memories = [entry.get(at.MEMORY) for entry in at.result_attributes(self._main)]
        in_memory = map(_in_memory, outputs, memories)
        at.set_tables(
            new, entries, [{at.MESHES: at.i64s([home])} | each for home, each in zip(homes, in_memory, strict=True)]
        )
        self._main.erase()
        new.attributes["sym_name"] = ir.StringAttr.get("main")
        for function in functions(self._module).values():
            if TOPOLOGY in function.attributes or MESH_SHAPE in function.attributes:
                function.erase()

    def _arguments(self, inputs: Sequence[MeshTensor], new: ir.Operation) -> list[dict[str, ir.Attribute]]:
        """Notes the arguments of the new `@main`; returns their attributes."""
        entries = at.argument_attributes(self._main)
        arguments = body_of(self._main).arguments, body_of(new).arguments
        for tensor, entry, old, value in zip(inputs, entries, *arguments, strict=True):
            self._values[old] = value
            self._homes[value] = [self._number[tensor.mesh]] if tensor.mesh else []
            if not tensor.mesh:
                self._local.add(value)
            own, memory = entry.pop(at.SHARDING, None), entry.pop(at.MEMORY, None)
            sharding = on_one_mesh(own) if tensor.sharding is None and own is not None else tensor.sharding
            entry |= self._types.boundary(sharding, tensor.type, self._main) | _in_memory(tensor, memory)
        at.set_tables(new, arguments=entries)
        return entries

    def _block(self, block: ir.Block) -> None:
        """Imports the operations of `@main`, of a called function, or of a loop; not the return."""
        for op in operations(block)[:-1]:
            if op.name not in _HANDLERS:
                hint = "put it into a fragment, or into a named computation that has a mesh"
                raise PassError(f"a {op.name} on no mesh", location=op.location, hint=hint)
            _HANDLERS[op.name](self, op)

    def fragment(self, op: ir.Operation) -> None:
        """Imports a fragment as a call of a function."""
        name = "_".join(map(_named, ir.ArrayAttr(op.attributes["origin"])))
        given = per_value(op.attributes.get("in_shardings"), len(op.operands))
        returned = per_value(op.attributes.get("out_shardings"), len(op.results))
        self._outline(op, name, self._mesh_of(op), given, returned)

    def _mesh_of(self, op: ir.Operation) -> str:
        mesh = ir.StringAttr(op.attributes["mesh_name"]).value
        if mesh not in self._number:
            raise refused(op, f"is on mesh '{mesh}', which the topology does not have", "name a mesh that it has")
        return mesh

    def named_computation(self, op: ir.Operation) -> None:
        """Imports a computation as a fragment on the mesh that it is assigned to."""
        origin = mpmd.UserOriginAttr(op.attributes["origin"])
        name = str(origin.user_name)
        if name not in self._assigned:
            hint = f"give it one: import-shardy-mpmd{{assignment={name}@MESH}}"
            raise PassError(f"named computation '{name}' has no mesh", location=op.location, hint=hint)
        none = [None] * max(len(op.operands), len(op.results))
        self._outline(op, _named(origin), self._assigned[name], none[: len(op.operands)], none[: len(op.results)])

    def _outline(
        self,
        op: ir.Operation,
        name: str,
        mesh: str,
        given: Sequence[ir.Attribute | None],
        returned: Sequence[ir.Attribute | None],
    ) -> None:
        """Makes a function of the region of `op`, and calls it; `given` and `returned` are shardings inside of it."""
        block = body_of(op)
        if self._is_constant(op, block):
            return
        for inner in nested(op):
            if inner.name.startswith("mpmd.") and inner.name != "mpmd.return":
                raise refused(inner, f"is inside of a {op.name}", "inline it")
        key = (op.results[0] if len(op.results) else name, *self._boundary(op))  # a loop comes here several times
        if key not in self._imported:
            self._imported[key] = self._function_of(block, self._new_function(name, op), op, given, returned)
        self._run(op, self._imported[key], self._number[mesh])

    def _function_of(
        self,
        block: ir.Block,
        function: ir.Operation,
        op: ir.Operation,
        given: Sequence[ir.Attribute | None],
        returned: Sequence[ir.Attribute | None],
    ) -> ir.Operation:
        """Fills a new function with a copy of the block of `op`; returns the function."""
        values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, body_of(function).arguments, strict=True))
        with ir.InsertionPoint(body_of(function)) as ip:
            for value, sharding in zip(block.arguments, given, strict=True):
                values[value] = self._types.constrained(values[value], sharding, op)
            for inner in operations(block)[:-1]:
                build.clone(inner, values, ip)
            pairs = zip(terminator(block).operands, returned, strict=True)
            results = [self._types.constrained(values[value], sharding, op) for value, sharding in pairs]
        set_results(function, results)
        return function

    def _unique(self, base: str) -> str:
        """Returns the name of a new function."""
        while True:
            name = f"{base}_{self._names[base]}"
            self._names[base] += 1
            if name not in self._functions:
                return name

    def _new_function(self, name: str, op: ir.Operation) -> ir.Operation:
        """Makes an empty function for the operands and results of `op`."""
        base = re.sub(r"\W+", "_", name) or FRAGMENT
        unique = self._unique(base)
        borders = op.operands, op.results
        inputs, outputs = ([self._types.read(value.type, op).type for value in values] for values in borders)
        function = create(self._module, unique, inputs, outputs, {at.KIND: ir.StringAttr.get(FRAGMENT)})
        self._functions[unique] = function
        return function

    def _is_constant(self, op: ir.Operation, block: ir.Block) -> bool:
        """Imports a fragment that only makes a constant as this constant, which each mesh makes where it is used."""
        first, *others = operations(block)
        if first.name != "stablehlo.constant" or len(others) != 1 or len(op.operands):
            return False
        self.constant(first)
        self._values |= dict.fromkeys(op.results, self._values[first.results[0]])
        return True

    def constant(self, op: ir.Operation) -> None:
        """Imports a constant."""
        build.clone(op, self._values, self._ip)

    def fragment_call(self, op: ir.Operation) -> None:
        """Imports a call of a function on a mesh."""
        name = callee(op)
        function = self._functions[name]
        blocks = blocks_of(function)
        if len(blocks) != 1 or name == "main":
            raise refused(op, f"calls @{name}, which has {len(blocks)} blocks", "call a function of one block")
        if self._is_constant(op, blocks[0]):
            return
        key = (name, *self._boundary(op))
        if key not in self._imported:
            self._imported[key] = self._own_function(name)
        attributes = {name: op.attributes[name] for name in TASK if name in op.attributes}
        self._run(op, self._imported[key], self._number[self._mesh_of(op)], attributes)

    def _own_function(self, name: str) -> ir.Operation:
        """Returns a function of the program for a function of Shardy: itself the first time, then copies."""
        function = self._functions[name]
        if MESH_SHAPE not in function.attributes:
            function, unique = function.clone(ir.InsertionPoint(self._module.body)).operation, self._unique(name)
            function.attributes["sym_name"] = ir.StringAttr.get(unique)
            self._functions[unique] = function
            return function
        del function.attributes[MESH_SHAPE]
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        if at.KIND not in function.attributes:
            function.attributes[at.KIND] = ir.StringAttr.get(FRAGMENT)
        return function

    def _boundary(self, op: ir.Operation) -> tuple[tuple[ir.Attribute | None, ...], tuple[ir.Attribute | None, ...]]:
        """Returns the closed shardings of the new operands and of the results of `op`."""
        operands = [self._values[value] for value in op.operands]
        tensors = [self._types.read(value.type, op) for value in op.results]
        given = [self._types.boundary(self._shardings.of(value), value.type, op) for value in operands]
        returned = [self._types.boundary(each.sharding, each.type, op) for each in tensors]
        return tuple(each.get(at.SHARDING) for each in given), tuple(each.get(at.SHARDING) for each in returned)

    def _run(
        self, op: ir.Operation, function: ir.Operation, mesh: int, attributes: Mapping[str, ir.Attribute] = _NONE
    ) -> None:
        """Calls `function` on a mesh in place of `op`, with the shardings of the operands and results."""
        tables = at.argument_attributes(function), at.result_attributes(function)
        at.set_tables(function, *map(_table, tables, self._boundary(op)))
        operands = [self._values[value] for value in op.operands]
        made = call(function, operands, {**attributes, at.MESH: at.i64(mesh)}, self._ip, op.location)
        self._values |= zip(op.results, made.results, strict=True)
        self._homes |= {value: [mesh] for value in made.results}
        for operand in operands:
            self._use(operand, mesh)

    def _use(self, value: ir.Value, mesh: int) -> None:
        """Notes that `mesh` uses `value`."""
        if value in self._local:
            self._homes[value].append(mesh)

    def pass_on(self, op: ir.Operation) -> None:
        """Imports an operation that returns its operand."""
        self._values[op.results[0]] = self._values[op.operands[0]]

    def assign(self, op: ir.Operation) -> None:
        """Imports the result, on a mesh, as its local operand."""
        self._use(self._values[op.operands[0]], self._number[self._types.read(op.results[0].type, op).mesh])
        self.pass_on(op)

    def transfer(self, op: ir.Operation) -> None:
        """Imports a transfer as its operand, unless it changes the sharding: then the receiving mesh reshards."""
        source, target = (self._types.read(value.type, op, host=True) for value in (op.operands[0], op.results[0]))
        is_argument = defining_op(self._values[op.operands[0]]) is None
        if source.memory and not is_argument:
            raise refused(op, f"takes a value of @main from the memory '{source.memory}'", _ONLY_BORDERS)
        if target.memory and any(use.owner.operation.name != "func.return" for use in op.results[0].uses):
            raise refused(op, f"puts a value of @main into the memory '{target.memory}'", _ONLY_BORDERS)
        found = self._shardings.of(self._values[op.operands[0]])
        wanted = self._types.boundary(target.sharding, target.type, op).get(at.SHARDING)
        if at.same(found, wanted) or target.memory:
            self.pass_on(op)
            return
        key = ("", target.type, found, wanted)
        if key not in self._imported:
            self._imported[key] = self._new_function("reshard", op)
            set_results(self._imported[key], list(body_of(self._imported[key]).arguments))
        self._run(op, self._imported[key], self._number[target.mesh])

    def reduce(self, op: ir.Operation) -> None:
        """Imports a reduction over meshes as a function on the mesh of its first operand."""
        kind = str(op.attributes["reduction"]).partition("<")[2].rstrip(">")
        if len(op.operands) == 1:
            self.pass_on(op)
            return
        mesh = next((home[0] for value in op.operands if (home := self._homes.get(self._values[value]))), 0)
        function = self._new_function(f"reduce_{kind}", op)
        ip = ir.InsertionPoint(body_of(function))
        operator = f"stablehlo.{_REDUCTIONS[kind]}"
        set_results(function, [build.combine(operator, list(body_of(function).arguments), ip, op.location)])
        self._run(op, function, mesh)

    def inline_call(self, op: ir.Operation) -> None:
        """Inlines a call."""
        name = callee(op)
        function = self._functions[name]
        if name in self._calls or name == "main" or len(blocks_of(function)) != 1:
            raise refused(op, f"calls @{name}, which is recursive or has no single block", "inline it")
        self._calls.append(name)
        results = self._inline(body_of(function), [self._values[value] for value in op.operands])
        self._values |= zip(op.results, results, strict=True)
        self._calls.pop()

    def unroll(self, op: ir.Operation) -> None:
        """Unrolls a loop."""
        block = body_of(op)
        values = [self._values[value] for value in op.operands]
        *_, index = block.arguments
        iterations = ir.IntegerAttr(op.attributes["iterations"]).value
        if iterations > _MOST_ITERATIONS:
            raise refused(op, f"has {iterations:,} iterations, at most {_MOST_ITERATIONS:,} are unrolled", "run fewer")
        for number in range(iterations):
            if is_used(index):
                self._values[index] = build.constant(index.type, number, ip=self._ip, loc=op.location)
            values = self._inline(block, values)
        self._values |= zip(op.results, values, strict=True)

    def _inline(self, block: ir.Block, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Imports the operations of a block for these arguments; returns what the block returns."""
        self._values |= zip(block.arguments, arguments, strict=False)  # the last one of a loop counts iterations
        self._block(block)
        return [self._values[value] for value in terminator(block).operands]


_HANDLERS: Mapping[str, Callable[[_Importer, ir.Operation], None]] = {
    "mpmd.fragment": _Importer.fragment,
    "mpmd.fragment_call": _Importer.fragment_call,
    "mpmd.named_computation": _Importer.named_computation,
    "mpmd.transfer": _Importer.transfer,
    "mpmd.assign": _Importer.assign,
    "mpmd.unassign": _Importer.pass_on,
    "mpmd.broadcast": _Importer.pass_on,
    "mpmd.named_tensor": _Importer.pass_on,
    "mpmd.reduce": _Importer.reduce,
    "mpmd.call": _Importer.inline_call,
    "mpmd.for": _Importer.unroll,
    "stablehlo.constant": _Importer.constant,
}


def _named(origin: ir.Attribute) -> str:
    """Returns a name for a computation of the user, or for its transpose."""
    found = mpmd.UserOriginAttr(origin)
    return f"{found.user_name}_bwd" if found.transpose_count % 2 else str(found.user_name)


def _table(
    entries: Sequence[Mapping[str, ir.Attribute]], shardings: Sequence[ir.Attribute | None]
) -> list[dict[str, ir.Attribute]]:
    """Returns the attributes of arguments or results: those of jaxpp in `entries`, and their shardings."""
    kept = [{name: each for name, each in entry.items() if at.is_ours(name)} for entry in entries]
    return [
        entry if sharding is None else entry | {at.SHARDING: sharding}
        for entry, sharding in zip(kept, shardings, strict=True)
    ]


def _in_memory(tensor: MeshTensor, memory: ir.Attribute | None) -> dict[str, ir.Attribute]:
    """Returns the attributes of an argument or a result for the memory that its type or an attribute names."""
    host = ir.StringAttr.get(HOST)
    return {at.MEMORY: host} if tensor.memory or at.same(memory, host) else {}

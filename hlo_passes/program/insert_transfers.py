"""`insert-transfers`: one function per mesh, with a send and a recv for each value that crosses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.stacks import Stacks
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, call, create, main_of, operations, terminator
from jaxpp.ir.mesh_functions import meshes_of
from jaxpp.ir.phases import check_placed
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.values import defining_op


@dataclass(frozen=True)
class InsertTransfers(Pass):
    """Cuts `@main` into one function `@mesh_k` per mesh: the calls of that mesh in order, sends and receives.

    A value is sent right after it is made, and received right before its first use; once per value and destination.
    Constants (the microbatch index among them) are made where they are used. Each value and hop has a channel number
    of its own. Sends don't wait; the token chain of a mesh keeps its order. An argument or result whose
    `mhlo.memory_kind` is the memory of the host is copied to the devices right before its first use, or from them as
    soon as it is made, by functions that return their argument as it is. Of a stack each mesh takes and returns one
    block: `jaxpp.block = array<i64: 1, 4>` is the second of four.

    Preconditions: `infer-placement` ran.

    ```mlir
    func.func public @main(%w0, %w1, %x) {                ==>   func.func public @mesh_0(%w0, %x) {
      %a = call @forward_0(%w0, %x) {jaxpp.mesh = 0}              %a = call @forward_0(%w0, %x) {jaxpp.mesh = 0}
      %b = call @forward_1(%w1, %a) {jaxpp.mesh = 1}              "stablehlo.send"(%a, %t) {handle = 0, [[0, 1]]} }
                                                                func.func public @mesh_1(%w1) {
                                                                  %a, %t = "stablehlo.recv"(%t0) {handle = 0, [[0, 1]]}
                                                                  %b = call @forward_1(%w1, %a) {jaxpp.mesh = 1} }
    ```
    """

    name: ClassVar[str] = "insert-transfers"

    def run(self, module: ir.Module) -> None:
        """Replace `@main` by the functions of the meshes. Raises PassError for what is on no mesh."""
        main = main_of(module)
        cut = _Cut(module, main, check_placed(module))
        for op in operations(body_of(main))[:-1]:
            cut.place(op)
        cut.finish()


class _Cut:
    """The functions of the meshes while they grow."""

    def __init__(self, module: ir.Module, main: ir.Operation, meshes: int) -> None:
        self._main = main
        self._module = module
        self._shardings = Shardings(module)
        self._meshes = meshes
        self._arguments = list(body_of(main).arguments)
        self._argument_table = at.argument_attributes(main)
        self._argument_meshes = _meshes(self._argument_table)
        self._result_table = at.result_attributes(main)
        self._result_meshes = _meshes(self._result_table)
        self._stacks = Stacks.of(main)
        self._joins = self._stacks.joins
        self._local: list[dict[ir.Value, ir.Value]] = [{} for _ in range(self._meshes)]
        self._hosted: list[dict[ir.Value, ir.Value]] = [{} for _ in range(self._meshes)]
        """The arguments of each mesh that are in another memory, from which nothing has read them so far."""
        self._copies = 0
        self._home: dict[ir.Value, int] = {}
        self._constants: dict[ir.Value, ir.Operation] = {}
        self._sent: dict[ir.Value, ir.Operation] = {}
        self._channel = 0
        self._pairs: dict[tuple[int, int], ir.Attribute] = {}
        self._recv_sharding: dict[ir.Attribute, ir.Attribute] = {}
        self._token = ir.Type.parse("!stablehlo.token")
        self._unknown = ir.Location.unknown()
        self.blocks: list[ir.Block] = []
        self._tokens: list[ir.Value] = []
        """The first of each mesh, which all its sends and receives take until they are threaded."""
        for mesh in range(self._meshes):
            block = self._function(mesh)
            self.blocks.append(block)
            self._tokens.append(self._make("stablehlo.create_token", [], [], {}, ir.InsertionPoint(block)).results[0])

    def _function(self, mesh: int) -> ir.Block:
        here = [number for number, meshes in enumerate(self._argument_meshes) if mesh in meshes]
        blocks = [self._block_on(mesh, number) for number in here]
        types = [self._type(number, block) for number, block in zip(here, blocks, strict=True)]
        function = create(
            self._module,
            f"mesh_{mesh}",
            types,
            [],
            {at.MESH: at.i64(mesh)},
            visibility="public",
            before=self._main,
        )
        block = body_of(function)
        entries: list[dict[str, ir.Attribute]] = []
        for number, cut, argument in zip(here, blocks, block.arguments, strict=True):
            value = self._arguments[number]
            entry: dict[str, ir.Attribute] = {at.ARGUMENT: at.i64(number)}
            if cut is not None:
                entry[at.BLOCK] = at.i64s([cut, len(self._stacks.arguments[value])])
                value = self._slice(value, cut)
            if at.MEMORY in self._argument_table[number]:
                entry[at.MEMORY] = self._argument_table[number][at.MEMORY]
                self._hosted[mesh][value] = argument
            else:
                self._local[mesh][value] = argument
            self._home.setdefault(value, mesh)
            sharding = self._shardings.of(value)
            if sharding is not None:
                entry[at.SHARDING] = sharding
            if at.DONOR in self._argument_table[number] or at.ALIAS in self._argument_table[number]:
                entry[at.DONOR] = ir.BoolAttr.get(True)
            entries.append(entry)
        at.set_tables(function, arguments=entries)
        return block

    def _block_on(self, mesh: int, number: int) -> int | None:
        """Which block of argument `number` a mesh has; None when the argument is no stack."""
        homes = self._stacks.arguments.get(self._arguments[number])
        return None if homes is None else homes.index(mesh)

    def _type(self, number: int, block: int | None) -> ir.Type:
        type_ = ir.RankedTensorType(self._arguments[number].type)
        if block is None:
            return type_
        rows, *rest = type_.shape
        count = len(self._stacks.arguments[self._arguments[number]])
        return ir.RankedTensorType.get([rows // count, *rest], type_.element_type)

    def _slice(self, argument: ir.Value, block: int) -> ir.Value:
        """What stands in `@main` for a block of `argument`: the argument itself if nobody uses the block."""
        for use in argument.uses:
            if self._stacks.slices[use.owner.operation] == block:
                return use.owner.operation.results[0]
        return argument

    def place(self, op: ir.Operation) -> None:
        """Move one operation of `@main` to its mesh, or to each of its meshes."""
        name = op.name
        if name == "stablehlo.constant":
            self._constants[op.results[0]] = op
            return
        if name != "func.call" and (op in self._stacks.slices or op in self._joins):
            return
        meshes = meshes_of(op)
        if not meshes:
            raise PassError(f"a {name} on no mesh", location=op.location, hint="run infer-placement first")
        values, results = list(op.operands), list(op.results)
        for mesh in (*meshes[1:], meshes[0]):
            operands = [self.local(value, mesh) for value in values]
            here = op
            if mesh == meshes[0]:
                self.blocks[mesh].append(op)
            else:
                here = op.clone(ir.InsertionPoint(self.blocks[mesh]))
            self._local[mesh].update(zip(results, here.results, strict=True))
            settled = here.operands
            for number, (old, new) in enumerate(zip(values, operands, strict=True)):
                if old is not new and old != new:
                    settled[number] = new
            if at.MESHES in here.attributes:
                del here.attributes[at.MESHES]
                here.attributes[at.MESH] = at.i64(mesh)
        self._home.update(dict.fromkeys(results, meshes[0]))

    def local(self, value: ir.Value, mesh: int) -> ir.Value:
        """What stands for `value` on `mesh`, sent there now if it isn't there yet."""
        found = self._local[mesh].get(value)
        if found is None:
            if value in self._hosted[mesh]:
                found = self._load(value, mesh)
            elif value in self._constants:
                found = self._constants[value].clone(ir.InsertionPoint(self.blocks[mesh])).results[0]
            else:
                found = self._transfer(value, mesh)
            self._local[mesh][value] = found
        return found

    def _transfer(self, value: ir.Value, target: int) -> ir.Value:
        if value not in self._home:
            op = defining_op(value)
            what, where = ("an argument of @main", self._main) if op is None else ("a value", op)
            raise PassError(f"{what} that mesh {target} needs is on no mesh", location=where.location)
        source = self._home[value]
        here = self.local(value, source)
        attributes: dict[str, ir.Attribute] = {
            "channel_handle": stablehlo.ChannelHandle.get(self._channel, 1),
            "source_target_pairs": self._pair(source, target),
        }
        self._channel += 1
        after = self._sent.get(here) or defining_op(here) or defining_op(self._tokens[source])
        assert after is not None  # a token has its operation
        ip = ir.InsertionPoint.after(after)
        self._sent[here] = self._make("stablehlo.send", [], [here, self._tokens[source]], attributes, ip)
        sharding = self._shardings.of(value)
        if sharding is not None:
            attributes[at.SHARDING] = self._received(sharding)
        ip = ir.InsertionPoint(self.blocks[target])
        return self._make("stablehlo.recv", [value.type], [self._tokens[target]], attributes, ip).results[0]

    def _load(self, value: ir.Value, mesh: int) -> ir.Value:
        """Copy an argument into the memory of the devices, where they are in their sequence."""
        argument = self._hosted[mesh][value]
        table = at.argument_attributes(self.blocks[mesh].owner.operation)
        memory = table[ir.BlockArgument(argument).arg_number][at.MEMORY]
        return self._copy(argument, self._shardings.of(value), mesh, ir.InsertionPoint(self.blocks[mesh]), load=memory)

    def _stored(self, value: ir.Value, mesh: int, memory: ir.Attribute) -> ir.Value:
        """`value` in another memory: copied there as soon as it is made, or the argument that was there already."""
        hosted = self._hosted[mesh].get(value)
        if hosted is not None:
            return hosted
        here = self.local(value, mesh)
        op = defining_op(here)
        ip = ir.InsertionPoint(self.blocks[mesh]) if op is None else ir.InsertionPoint.after(op)
        return self._copy(here, self._shardings.of(value), mesh, ip, store=memory)

    def _copy(
        self,
        value: ir.Value,
        sharding: ir.Attribute | None,
        mesh: int,
        ip: ir.InsertionPoint,
        *,
        load: ir.Attribute | None = None,
        store: ir.Attribute | None = None,
    ) -> ir.Value:
        """Call a function that returns `value` as it is, out of or into another memory."""
        name = f"{'store' if load is None else 'load'}_{self._copies}"
        self._copies += 1
        kind = ir.StringAttr.get("after" if load is None else "before")
        function = create(self._module, name, [value.type], [value.type], {at.KIND: kind}, before=self._main)
        entries = [
            {name: said for name, said in ((at.SHARDING, sharding), (at.MEMORY, memory)) if said is not None}
            for memory in (load, store)
        ]
        at.set_tables(function, entries[:1], entries[1:])
        body = body_of(function)
        ir.Operation.create("func.return", operands=list(body.arguments), ip=ir.InsertionPoint(body), loc=self._unknown)
        return call(name, [value.type], [value], {at.MESH: at.i64(mesh)}, ip, self._unknown).results[0]

    def _make(
        self,
        name: str,
        types: Sequence[ir.Type],
        operands: Sequence[ir.Value],
        attributes: dict[str, ir.Attribute],
        ip: ir.InsertionPoint,
    ) -> ir.Operation:
        """An operation whose last result is a token."""
        return ir.Operation.create(name, [*types, self._token], operands, attributes, ip=ip, loc=self._unknown)

    def _pair(self, source: int, target: int) -> ir.Attribute:
        if (source, target) not in self._pairs:
            self._pairs[source, target] = ir.Attribute.parse(f"dense<[[{source}, {target}]]> : tensor<1x2xi64>")
        return self._pairs[source, target]

    def _received(self, sharding: ir.Attribute) -> ir.Attribute:
        """The sharding of a recv: one entry for the value, one for the token."""
        if sharding not in self._recv_sharding:
            text = str(sharding).removeprefix("#sdy.sharding")
            mesh = text[1:].split(",")[0]
            parsed = ir.Attribute.parse(f"#sdy.sharding_per_value<[{text}, <{mesh}, []>]>")
            self._recv_sharding[sharding] = parsed
        return self._recv_sharding[sharding]

    def finish(self) -> None:
        """Return the results of each mesh, thread its tokens, and erase `@main`."""
        returned = list(terminator(body_of(self._main)).operands)
        for mesh, block in enumerate(self.blocks):
            here = [number for number, meshes in enumerate(self._result_meshes) if mesh in meshes]
            entries: list[dict[str, ir.Attribute]] = []
            values: list[ir.Value] = []
            for number in here:
                entry: dict[str, ir.Attribute] = {at.RESULT: at.i64(number)}
                value = returned[number]
                join = self._stacks.results.get(number)
                if join is not None:
                    cut = join.homes.index(mesh)
                    entry[at.BLOCK] = at.i64s([cut, len(join.homes)])
                    value = join.op.operands[cut]
                memory = self._result_table[number].get(at.MEMORY)
                if memory is not None:
                    entry[at.MEMORY] = memory
                values.append(self.local(value, mesh) if memory is None else self._stored(value, mesh, memory))
                sharding = self._shardings.of(value)
                if sharding is not None:
                    entry[at.SHARDING] = sharding
                entries.append(entry)
            function = block.owner.operation
            types = ir.FunctionType.get([a.type for a in block.arguments], [value.type for value in values])
            function.attributes["function_type"] = ir.TypeAttr.get(types)
            at.set_tables(function, results=entries)
            ir.Operation.create("func.return", operands=values, ip=ir.InsertionPoint(block), loc=ir.Location.unknown())
        for block in self.blocks:
            _thread_tokens(block)
        self._main.erase()


def _meshes(entries: Sequence[dict[str, ir.Attribute]]) -> list[list[int]]:
    """The meshes that have each argument, or return each result."""
    return [list(ir.DenseI64ArrayAttr(entry[at.MESHES])) for entry in entries]


def _thread_tokens(block: ir.Block) -> None:
    """Let each send and receive take the token of the one before it."""
    first, *others = operations(block)
    token = first.results[0]
    for op in others:
        name = op.name
        if name == "stablehlo.send":
            op.operands[1] = token
            token = op.results[0]
        elif name == "stablehlo.recv":
            op.operands[0] = token
            token = op.results[1]

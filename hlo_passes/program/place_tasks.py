"""`place-tasks`: gives each call of a step of explicit tasks its mesh."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.build import replace
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, callee, main_of, operations, terminator
from jaxpp.ir.kinds import ARGUMENT, FRAGMENT, PLACED, TASK, TRANSFER
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.values import defining_op

_CONSTRAINT = "sdy.sharding_constraint"
_HINT = "put it into a function, and call that as mpmd.task(function, out_shardings=...)"


class _Placed(NamedTuple):
    """The notes on a barrier (`jaxpp.lowering.placing`)."""

    kind: str
    meshes: list[int]
    axes: tuple[tuple[tuple[str, ...], ...], ...]


class PlaceTasks(Pass):
    """Turns a step of explicit tasks (`jaxpp.experimental.mpmd`) into a placed program.

    Lowering has noted the meshes in `jaxpp.placed`, on barriers: of the arguments, of the results of each task, and of
    the results of transfers. The pass reads these notes, and erases the barriers. Each call gets `jaxpp.mesh`. Each
    argument and result of `@main` gets `jaxpp.meshes`. A function that is called with other shardings is copied.

    A task takes only values of its own mesh, constants aside. A transfer keeps the sharding of its value.

    Preconditions: `@main` has calls, constants, and barriers with `jaxpp.placed`.

    ```mlir
    %0 = optimization_barrier %x {jaxpp.placed = {kind = "argument", meshes = [0]}}
    %1 = call @f(%0)                                                          ==>   %1 = call @f(%x) {jaxpp.mesh = 0}
    %2 = optimization_barrier %1 {jaxpp.placed = {kind = "task", meshes = [0]}}     %4 = call @g(%1) {jaxpp.mesh = 1}
    %3 = optimization_barrier %2 {jaxpp.placed = {kind = "transfer", meshes = [1]}}
    %4 = call @g(%3)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Rewrites `@main`. Raises PassError for an operation outside of tasks, or a value of another mesh."""
        _Tasks(module).run()


class _Tasks:
    """The tasks of one module."""

    def __init__(self, module: ir.Module) -> None:
        self._module, self._main = module, main_of(module)
        self._meshes = at.integer(module.operation, at.MESHES) or 0
        self._shardings, self._axes = Shardings(module), MeshAxes.written_for(module)
        self._mesh: dict[ir.Value, int] = {}
        """The mesh of each value that a task may take."""
        self._sharding: dict[ir.Value, ir.Attribute | None] = {}
        """The sharding of each of these values, and of the results of calls."""
        self._root: dict[ir.Value, ir.Value] = {}
        """The argument or the result of a call that each value stands for."""
        self._named: dict[tuple[object, ...], str] = {}
        """The function for each called name, with the shardings of operands and results."""

    def run(self) -> None:
        """Rewrites `@main`."""
        if not self._meshes:
            raise PassError(f"the module has no {at.MESHES}", location=self._main.location)
        *ops, _ = operations(body_of(self._main))
        for op in ops:
            if at.PLACED in op.attributes:
                self._note(op)
            elif op.name == _CONSTRAINT:
                self._constrain(op)
            elif op.name not in ("func.call", "stablehlo.constant"):
                raise PassError(f"a {op.name} outside of tasks", location=op.location, hint=_HINT)
        for op in ops:
            if op.name == "func.call":
                self._place(op)
        self._set_borders()
        for op in reversed(ops):
            if at.PLACED in op.attributes or op.name == _CONSTRAINT:
                replace(op, [self._root[value] for value in op.results])

    def _note(self, op: ir.Operation) -> None:
        """Notes the meshes and the shardings of the results of a barrier."""
        placed = _read(op, self._meshes)
        meshes = placed.meshes
        if placed.kind == TASK:
            meshes = [self._mesh_of_task(op, meshes[0])] * len(meshes)
        for number, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
            own = self._sharding[operand] if operand in self._sharding else self._default(operand)
            self._sharding[result] = own if placed.kind == ARGUMENT else self._of_axes(op, placed.axes[number], result)
            if placed.kind == TRANSFER and operand not in self._mesh:
                raise PassError("a transfer of a value that is on no mesh", location=op.location, hint=_HINT)
            if placed.kind == TRANSFER and not at.same(own, self._sharding[result]):
                raise PassError(
                    f"a transfer of a value with the sharding {own} to {self._sharding[result]}",
                    location=op.location,
                    hint="transfer it as it is, and change its sharding in a task",
                )
            self._root[result], self._mesh[result] = self._root.get(operand, operand), meshes[number]
            if placed.kind == TASK:
                self._sharding[self._root[result]] = self._sharding[result]

    def _of_axes(self, op: ir.Operation, axes: Sequence[Sequence[str]], value: ir.Value) -> ir.Attribute | None:
        """Returns the sharding of a value over these axes; None on meshes of one device."""
        rank, known = ir.RankedTensorType(value.type).rank, self._axes.sizes
        if len(axes) > rank or not {axis for names in axes for axis in names} <= {*known}:
            what = f"a sharding over {axes}, expected at most {rank} dimensions, and of the axes {', '.join(known)}"
            raise PassError(what, location=op.location)
        if self._axes.partitions == 1:
            return None
        return self._axes.attribute([*axes, *[()] * (rank - len(axes))])

    def _default(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the sharding of an argument of `@main`; replicated for another value."""
        if defining_op(value) is None:
            return self._shardings.of(value)
        return self._shardings.closed(None, ir.RankedTensorType(value.type).rank)

    def _mesh_of_task(self, op: ir.Operation, mesh: int) -> int:
        """Returns the mesh of the task whose results `op` notes, and writes it on the call."""
        made = [self._root.get(value, value) for value in op.operands]
        call = defining_op(made[0])
        if call is None or call.name != "func.call" or list(call.results) != made:
            raise PassError(f"{at.PLACED} of a task, not on all results of one call", location=op.location)
        name = callee(call)
        found = [self._mesh[value] for value in call.operands if value in self._mesh]
        mesh = min(found, default=-1) if mesh < 0 else mesh
        if mesh < 0:
            hint = "give it mesh=, or NamedShardings as out_shardings"
            raise PassError(f"task '{name}' takes no value that has a mesh", location=call.location, hint=hint)
        for number, value in enumerate(call.operands):
            if self._mesh.get(value, mesh) != mesh:
                raise PassError(
                    f"task '{name}' on mesh {mesh} takes a value of mesh {self._mesh[value]}, as array {number}",
                    location=call.location,
                    hint="transfer it first: mpmd.transfer(value, out_shardings=...).done()",
                )
        call.attributes[at.MESH] = at.i64(mesh)
        return mesh

    def _constrain(self, op: ir.Operation) -> None:
        """Passes on a value that has this sharding.

        JAX constrains keys that it returns. With explicit axes it constrains the results of each call, before the
        barrier of the task, which has the same sharding.
        """
        (operand,), (result,) = op.operands, op.results
        root = self._root.get(operand, operand)
        if operand in self._mesh:
            sharding = self._shardings.closed(op.attributes["sharding"], ir.RankedTensorType(result.type).rank)
            if not at.same(sharding, self._sharding[operand]):
                raise PassError(f"a {op.name} outside of tasks", location=op.location, hint=_HINT)
            self._mesh[result], self._sharding[result] = self._mesh[operand], sharding
        elif defining_op(root) is None:
            raise PassError(f"a {op.name} outside of tasks", location=op.location, hint=_HINT)
        self._root[result] = root

    def _place(self, op: ir.Operation) -> None:
        """Lets a call take the values themselves, and its function have their shardings."""
        if at.MESH not in op.attributes:
            raise PassError(f"a call of @{callee(op)} outside of tasks", location=op.location, hint=_HINT)
        given, returned = (tuple(map(self._border, values)) for values in (op.operands, op.results))
        for number, value in enumerate(op.operands):
            op.operands[number] = self._root.get(value, value)
        key = (callee(op), given, returned)
        if key not in self._named:
            self._named[key] = self._function(callee(op), given, returned)
        op.attributes["callee"] = ir.FlatSymbolRefAttr.get(self._named[key])

    def _border(self, value: ir.Value) -> ir.Attribute | None:
        return self._sharding[value] if value in self._sharding else self._default(value)

    def _function(
        self, name: str, given: Sequence[ir.Attribute | None], returned: Sequence[ir.Attribute | None]
    ) -> str:
        """Gives a function its shardings, or a copy of it if it has others already; returns its name."""
        table = ir.SymbolTable(self._module.operation)
        function = table[name].operation
        if name in self._named.values():
            numbers = (f"{name}_{number}" for number in itertools.count(1))
            function = function.clone(ir.InsertionPoint(self._module.body)).operation
            name = next(each for each in numbers if each not in table)
            function.attributes["sym_name"] = ir.StringAttr.get(name)
        function.attributes[at.KIND] = ir.StringAttr.get(FRAGMENT)
        tables = at.argument_attributes(function), at.result_attributes(function)
        for entries, shardings in zip(tables, (given, returned), strict=True):
            for entry, sharding in zip(entries, shardings, strict=True):
                if sharding is not None:
                    entry[at.SHARDING] = sharding
        at.set_tables(function, *tables)
        return name

    def _set_borders(self) -> None:
        """Writes the meshes of the arguments and results of `@main`."""
        arguments, results = at.argument_attributes(self._main), at.result_attributes(self._main)
        homes = {self._root[value]: mesh for value, mesh in reversed(self._mesh.items())}  # not those of transfers
        for value, entry in zip(body_of(self._main).arguments, arguments, strict=True):
            entry[at.MESHES] = at.i64s([homes.get(value, 0)])
        for value, entry in zip(terminator(body_of(self._main)).operands, results, strict=True):
            entry[at.MESHES] = at.i64s([self._mesh.get(value, 0)])
            if (sharding := self._border(value)) is not None:
                entry[at.SHARDING] = sharding
        at.set_tables(self._main, arguments, results)


def _read(op: ir.Operation, count: int) -> _Placed:
    """Returns the notes on a barrier. Raises PassError unless they have what each result needs."""
    found: Any = at.plain(op.attributes[at.PLACED])
    kind, meshes, axes = (found.get(name) if isinstance(found, dict) else None for name in _Placed._fields)
    results = len(op.results)
    least = -1 if kind == TASK else 0
    if (
        op.name == "stablehlo.optimization_barrier"
        and kind in PLACED
        and isinstance(meshes, list)
        and len(meshes) == results
        and all(least <= mesh < count for mesh in meshes)
        and isinstance(axes, tuple)
        and len(axes) == (0 if kind == ARGUMENT else results)
        and all(isinstance(row, tuple) and all(_are_names(names) for names in row) for row in axes)
    ):
        return _Placed(kind, meshes, axes)
    what = f"{op.name} has {at.found(op.attributes, at.PLACED)}"
    expected = f"a barrier with a kind, a mesh below {count} for each result, and their axes"
    raise PassError(f"{what}; expected {expected}", location=op.location)


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)

"""`export-shardy-mpmd`: a placed program becomes a module of Shardy's `mpmd` dialect."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.shardy.mesh_tensors import (
    HOST,
    MESH_SHAPE,
    TOPOLOGY,
    MeshTensor,
    mesh_shape,
    refused,
    topology_attribute,
)
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, create, main_of, name_of, set_results, terminator
from jaxpp.ir.kinds import BACKWARDS, operations_of
from jaxpp.ir.mesh_functions import TASK, tasks_of_call
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.program_form import check_form
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.steps import MainLine, Step
from jaxpp.ir.tensors import read_spec
from jaxpp.ir.values import defining_op


@dataclass(frozen=True)
class ExportShardyMpmd(Pass):
    """Exports a placed program as fragments on a topology of meshes, as Shardy partitions programs (dialect `mpmd`).

    Mesh k becomes the mesh `mk` of the topology. Each call becomes a `mpmd.fragment_call` on its mesh; a call on
    several meshes becomes one on each. A value that another mesh needs is transferred there once, before its first use.
    A constant becomes a call of a function that makes it.

    An argument or result that several meshes hold is on the first of them in the new module. Stages are user origins,
    `"stage_0"` for a forward and `"stage_0"(1)` for a backward, and microbatches are call counters. The attributes
    `jaxpp.*` of functions and tasks stay, so that `import-shardy-mpmd` brings the tasks back.

    Preconditions: `infer-placement` ran. No argument or result is stored as blocks. No task calls a function of the
    user, or copies residuals to the memory of the host.

    ```mlir
    %1 = call @f(%0) {jaxpp.mesh = 0, ...}   ==>   %1 = mpmd.fragment_call<mesh="m0", origin=["stage_0"]> @f(%0)
    %2 = call @g(%1) {jaxpp.mesh = 1, ...}         %2 = mpmd.transfer %1
                                                   %3 = mpmd.fragment_call<mesh="m1", origin=["stage_1"]> @g(%2)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Replaces `@main`. Raises PassError for a program that can't be exported."""
        line = main_of_phase(module, placed=True)
        check_form(module, line.meshes)
        _Exporter(module, line).run(line)
        for name in (at.MESHES, at.MESH_SIZES):
            if name in module.operation.attributes:
                del module.operation.attributes[name]


class _Exporter:
    """Builds the new `@main`."""

    def __init__(self, module: ir.Module, line: MainLine) -> None:
        self._module = module
        self._main = main_of(module)
        self._shardings = Shardings(module)
        self._meshes = MeshAxes.of_each(module, line.meshes)
        self._axes = [dict(each.named) or {"devices": each.partitions} for each in self._meshes]
        self._operations = operations_of(module)
        self._made: dict[ir.Value, dict[int, ir.Value]] = {}
        """The new values of each old one, by their meshes; the mesh that makes it comes first."""
        self._constants: dict[ir.Value, ir.Operation] = {}
        self._on_host: dict[ir.Value, ir.Value] = {}
        """The new arguments in the memory of the host, by the old ones."""
        self._functions: dict[tuple[str, ir.Attribute], str] = {}
        """The names of functions, by their old names and the shapes of the meshes that run them."""
        self._number = 0
        """The number of functions that make constants."""
        self._ip = ir.InsertionPoint(self._main)
        """The end of the new `@main`."""

    def run(self, line: MainLine) -> None:
        """Replaces `@main`."""
        old = body_of(self._main)
        arguments, results = at.argument_attributes(self._main), at.result_attributes(self._main)
        returned = terminator(old).operands
        inputs = [self._border(*each) for each in zip(old.arguments, arguments, strict=True)]
        outputs = [self._border(*each) for each in zip(returned, results, strict=True)]
        types = [each.mesh_type for each in inputs], [each.mesh_type for each in outputs]
        topology = topology_attribute({f"m{mesh}": axes for mesh, axes in enumerate(self._axes)})
        new = create(
            self._module, "main.exported", *types, {TOPOLOGY: topology}, visibility="public", before=self._main
        )
        self._ip = ir.InsertionPoint(body_of(new))
        for value, tensor, argument in zip(old.arguments, inputs, body_of(new).arguments, strict=True):
            if tensor.memory:
                self._on_host[value] = argument
            else:
                self._made[value] = {int(tensor.mesh[1:]): argument}
        for step in line.steps:
            self._step(step)
        set_results(new, [self._result(*each) for each in zip(returned, outputs, strict=True)])
        at.set_tables(new, list(map(_theirs, arguments)), list(map(_theirs, results)))
        self._main.erase()
        new.attributes["sym_name"] = ir.StringAttr.get("main")

    def _border(self, value: ir.Value, entry: dict[str, ir.Attribute]) -> MeshTensor:
        """Returns the tensor of an argument or a result of `@main`."""
        if at.BLOCKS in entry:
            raise PassError(
                "an argument or result of @main is stored as blocks on several meshes, which is not exported",
                location=self._main.location,
                hint="leave out split-stacks",
            )
        mesh = (at.numbers(entry[at.MESHES]) or [0])[0]
        return self._tensor(value, mesh, HOST if at.MEMORY in entry else "")

    def _tensor(self, value: ir.Value, mesh: int, memory: str = "") -> MeshTensor:
        """Returns the tensor of a value on a mesh, which shards only the dimensions that its sizes divide."""
        sharding, axes = self._shardings.of(value), self._meshes[mesh]
        if sharding is not None:
            dimensions = read_spec(value.type, sharding, axes.sizes).axes
            sharding = axes.attribute([[axis for axis in names if isinstance(axis, str)] for names in dimensions])
        return MeshTensor(f"m{mesh}", value.type, sharding, memory)

    def _result(self, value: ir.Value, tensor: MeshTensor) -> ir.Value:
        argument = self._on_host.get(value)
        if tensor.memory and argument is not None and argument.type == tensor.mesh_type:
            return argument
        found = self._on(value, int(tensor.mesh[1:]))
        return self._transfer(found, tensor) if tensor.memory else found

    def _step(self, step: Step) -> None:
        if step.function is None:
            if step.name != "stablehlo.constant":
                raise refused(step.op, "is in @main, which is not exported", "leave out split-stacks")
            self._constants[step.results[0]] = step.op
            return
        entries = (*at.argument_attributes(step.function), *at.result_attributes(step.function))
        if step.kind in self._operations or any(at.MEMORY in entry for entry in entries):
            what = "calls a function of the user" if step.kind in self._operations else "copies to or from the host"
            raise PassError(
                f"the task of kind '{step.kind}' {what}, which is not exported",
                location=step.op.location,
                hint="take it out of the schedule",
            )
        for mesh in step.meshes:
            self._call(step, step.function, mesh)

    def _call(self, step: Step, function: ir.Operation, mesh: int) -> None:
        """Calls the function of `step` on a mesh."""
        operands = [self._on(value, mesh) for value in step.operands]
        attributes = {name: step.attributes[name] for name in TASK if name in step.attributes}
        tasks = tasks_of_call(step.op, step.kind)
        origin = [mpmd.UserOriginAttr.get(f"stage_{each.stage}", int(each.kind in BACKWARDS)) for each in tasks]
        if len(tasks) == 1:
            counter = ir.IntegerType.get_unsigned(32)
            attributes["call_counter"] = ir.IntegerAttr.get(counter, tasks[0].microbatch)
        tensors = [self._tensor(value, mesh) for value in step.results]
        name = self._function(step.callee, function, mesh)
        results = self._fragment_call(name, mesh, operands, tensors, step.op.location, origin, attributes)
        for value, result in zip(step.results, results, strict=True):
            self._made.setdefault(value, {})[mesh] = result

    def _fragment_call(
        self,
        name: str,
        mesh: int,
        operands: Sequence[ir.Value],
        tensors: Sequence[MeshTensor],
        location: ir.Location,
        origin: Sequence[ir.Attribute] = (),
        attributes: "dict[str, ir.Attribute] | None" = None,
    ) -> Sequence[ir.Value]:
        entries = {
            "callee": ir.FlatSymbolRefAttr.get(name),
            "mesh_name": ir.StringAttr.get(f"m{mesh}"),
            "origin": ir.ArrayAttr.get(list(origin)),
            **(attributes or {}),
        }
        types = [each.mesh_type for each in tensors]
        made = ir.Operation.create("mpmd.fragment_call", types, list(operands), entries, ip=self._ip, loc=location)
        return made.results

    def _function(self, name: str, function: ir.Operation, mesh: int) -> str:
        """Returns the name of `function` for a mesh of this shape: each shape has a function of its own."""
        shape = mesh_shape(self._axes[mesh])
        if (name, shape) not in self._functions:
            copies = sum(known == name for known, _ in self._functions)
            if copies:
                function = function.clone(ip=ir.InsertionPoint(self._module.body)).operation
                function.attributes["sym_name"] = ir.StringAttr.get(f"{name}_on_shape_{copies}")
            function.attributes[MESH_SHAPE] = shape
            self._functions[name, shape] = name_of(function)
        return self._functions[name, shape]

    def _on(self, value: ir.Value, mesh: int) -> ir.Value:
        """Returns the new value of `value` on a mesh; makes or transfers it there the first time."""
        made = self._made.setdefault(value, {})
        if mesh not in made:
            tensor = self._tensor(value, mesh)
            if value in self._constants:
                made[mesh] = self._constant(self._constants[value], mesh, tensor)
            elif made or value in self._on_host:
                made[mesh] = self._transfer(next(iter(made.values()), None) or self._on_host[value], tensor)
            else:
                raise PassError("a value is on no mesh", location=(defining_op(value) or self._main).location)
        return made[mesh]

    def _transfer(self, value: ir.Value, tensor: MeshTensor) -> ir.Value:
        location = ir.Location.unknown()
        made = ir.Operation.create("mpmd.transfer", [tensor.mesh_type], [value], ip=self._ip, loc=location)
        return made.results[0]

    def _constant(self, op: ir.Operation, mesh: int, tensor: MeshTensor) -> ir.Value:
        """Makes a constant on a mesh, by a call of a function."""
        key = f"constant: {op.attributes['value']}"
        shape = mesh_shape(self._axes[mesh])
        if (key, shape) not in self._functions:
            function = create(self._module, f"constant_{self._number}", [], [op.results[0].type], {MESH_SHAPE: shape})
            copy = op.clone(ir.InsertionPoint(body_of(function))).operation
            set_results(function, list(copy.results))
            self._functions[key, shape] = name_of(function)
            self._number += 1
        return self._fragment_call(self._functions[key, shape], mesh, [], [tensor], op.location)[0]


def _theirs(entry: dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """Returns the attributes of an argument or a result without those that its type has, and those of jaxpp."""
    return {name: each for name, each in entry.items() if not at.is_ours(name) and name not in (at.SHARDING, at.MEMORY)}

"""`propagate-shardings`: runs Shardy's propagation over the whole module, before any pass cuts it."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import remake, replace, sharded
from jaxpp.ir.functions import body_of, functions, main_of, nested, terminator
from jaxpp.ir.loop import entries
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import latest_task, set_task
from jaxpp.ir.tensors import constant_text
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import defining_op

_RULE = "sdy.sharding_rule"
_CONSTRAINT = "sdy.sharding_constraint"
_RESHARDS = ("sdy.reshard", _CONSTRAINT)
_AS_INPUT = {"sdy.constant": "stablehlo.constant", "sdy.reshard": _CONSTRAINT}


class PropagateShardings(Pass):
    """Gives every value of the module its `sdy.sharding`, so that the values that later passes cut out have theirs.

    It runs Shardy's own `sdy-propagation-pipeline`. Then it turns `sdy.constant` and `sdy.reshard` back into
    `stablehlo.constant` and `sdy.sharding_constraint`, so that the module is again valid input of Shardy. It removes
    constraints that their operand already meets. A module for submeshes of one device (`mhlo.num_partitions = 1`) has
    nothing to propagate and stays as it is.

    A result of `@main` in another sharding than the user asked for gets a constraint before the `return`. Shardy leaves
    that to XLA, which never sees `@main`. In a `jaxpp.train_loop` each argument of the state has the sharding of the
    result that replaces it in the next step.

    A value then crosses a stage mark in the sharding with the fewest bytes per device. Between meshes of one size, each
    device sends its shard to the device at the same position of the next mesh. A value that is replicated over an axis
    is therefore sent once for each device of that axis. Suppose that a stage ends with a value in one sharding, and the
    next begins with a constraint to another. The sender reshards if the receiver wants smaller shards. The receiver
    reshards (gathers) if it wants larger ones.

    Shardy merges equal operations. `jaxpp.slice` and `jaxpp.apart` keep it from merging operations of different slices
    of the sequence, so that slices stay alike. The pass removes both attributes, also if there is one device.

    Preconditions: there is a `@main` (Shardy ends the process without one).

    ```mlir
    %0 = stablehlo.tanh %x   ==>   %0 = stablehlo.tanh %x
                                     {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}

    %0 = sdy.sharding_constraint %x <@mesh, [{}]>           ==>   %1 = optimization_barrier %x   // in shards
      : tensor<8xf32>            // %x: <@mesh, [{"data"}]>       %2 = sdy.sharding_constraint %1 <@mesh, [{}]>
    %1 = optimization_barrier %0 {jaxpp.boundary = ...}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Annotates `module`. Raises PassError when there is no `@main`."""
        main_of(module)
        if MeshAxes.written_for(module).partitions > 1:
            _propagate(module)
        loop = next((op for op in body_of(main_of(module)).operations if at.LOOP in op.attributes), None)
        if loop is not None and "slices" in entries(loop.operation):
            _forget_slices(module)


def _propagate(module: ir.Module) -> None:
    ruled = _give_rules(module)
    _group_state(module)
    module.operation.verify()
    shardy = _shardy(len(functions(module)) == 1)
    shardy.enable_verifier(False)  # it would check the module after each of 35 passes: 3/4 of their time
    shardy.run(module.operation)
    for op in nested(main_of(module)):
        if ruled and _RULE in op.attributes:
            del op.attributes[_RULE]
        name = op.name
        if name in _RESHARDS:
            if at.TASK not in op.attributes:  # the Shardy of JAX 0.12 makes new ones around a callback
                set_task(op, latest_task(op.operands))
            if at.same(at.value_sharding(op.operands[0]), op.attributes["sharding"]):
                replace(op, op.operands)
                continue
        if name in _AS_INPUT:
            as_input(op)
    _reshard_results(module)
    _place_reshards(module)


def _shardy(is_one_function: bool) -> PassManager:
    """Returns Shardy's pipeline; for one function without its searches for dead functions, a seventh of the time."""
    whole = PassManager.parse("builtin.module(sdy-propagation-pipeline)")
    if not is_one_function:
        return whole
    text = str(whole)
    for name in ("symbol-dce", "sdy-save-module"):  # the latter writes files on demand, and can't be parsed
        text = text.replace(f"{name},", "")
    try:
        return PassManager.parse(text)
    except ValueError:  # a later version may print a pipeline that it can't parse
        return whole


def _reshard_results(module: ir.Module) -> None:
    """Constrains results of `@main` that have another sharding than the user asked for; for a stack, each of its
    blocks.
    """
    mesh, main = MeshAxes.of(module), main_of(module)
    end = terminator(body_of(main))
    for number, entry in enumerate(at.result_attributes(main)):
        value = end.operands[number]
        if mesh is None or at.SHARDING not in entry:
            continue
        wanted = mesh.axes(entry[at.SHARDING])
        if list(mesh.read(value)) == list(wanted):
            continue
        sharding, stack = mesh.attribute(wanted), defining_op(value) if at.BLOCKS in entry else None
        user, places = (end, [number]) if stack is None else (stack, range(len(stack.operands)))
        for place in places:
            part, ip = user.operands[place], ir.InsertionPoint(user)
            user.operands[place] = sharded(sdy.sharding_constraint(part, sharding, ip=ip, loc=end.location), sharding)
        if stack is not None:
            sharded(value, sharding)


def _place_reshards(module: ir.Module) -> None:
    """Moves the constraints next to the marks of `@main`."""
    mesh = MeshAxes.of(module)
    if mesh is not None:
        for mark in [op for op in nested(main_of(module)) if boundary.is_mark(op)]:
            for number in range(len(mark.operands)):
                _place(mesh, mark, number)


def _place(mesh: MeshAxes, mark: ir.Operation, number: int) -> None:
    """Chooses the sharding in which operand `number` of `mark` crosses it."""
    value, crossing = mark.operands[number], mark.results[number]
    if not isinstance(value.type, ir.RankedTensorType):
        return
    source, behind = _source(value), mesh.read(crossing)
    users = [(use.owner.operation, use.operand_number) for use in crossing.uses]
    constrained = bool(users) and all(op.name == _CONSTRAINT for op, _ in users)
    choices = [
        mesh.read(value),
        mesh.read(source),
        behind,
        *(mesh.read(op.results[0]) for op, _ in users if constrained),
    ]
    best = min(choices, key=lambda each: mesh.bytes_per_device(value.type, each))
    if best == mesh.read(source):
        mark.operands[number] = source
        if source != value:
            value.owner.erase()
    elif best != mesh.read(value):
        mark.operands[number] = _constraint(mesh, value, best, mark, ir.InsertionPoint(mark))
    if best == behind:
        return
    found = [mesh.attribute(mesh.read(result)) for result in mark.results]
    found[number] = mesh.attribute(best)
    mark.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get(found)
    if not constrained and users:
        wanted = _constraint(mesh, crossing, behind, mark, ir.InsertionPoint.after(mark))
        for user, place in users:
            user.operands[place] = wanted


def _source(value: ir.Value) -> ir.Value:
    """Returns the operand of the constraint that makes `value`, if only the mark uses `value`; otherwise `value`."""
    op = defining_op(value)
    if op is None or op.name != _CONSTRAINT or len(list(value.uses)) > 1:
        return value
    return op.operands[0]


def _constraint(
    mesh: MeshAxes, value: ir.Value, dimensions: Sequence[tuple[str, ...]], mark: ir.Operation, place: ir.InsertionPoint
) -> ir.Value:
    sharding = mesh.attribute(dimensions)
    return sharded(sdy.sharding_constraint(value, sharding, ip=place, loc=mark.location), sharding, value)


def _group_state(module: ir.Module) -> None:
    """Gives the state of a loop over steps the same sharding at both ends of a step, as results become arguments.

    If the user asked for a sharding of a result (`out_shardings`), the argument gets it too.
    """
    loop, main = TrainLoopAttr.of(module), main_of(module)
    if loop is None:
        return
    body = body_of(main)
    arguments, results = at.argument_attributes(main), at.result_attributes(main)
    for number in range(loop.state):
        if at.SHARDING in results[number]:
            arguments[number][at.SHARDING] = results[number][at.SHARDING]
        for value in (body.arguments[number], terminator(body).operands[number]):
            sdy.ShardingGroupOp(value, number, ip=ir.InsertionPoint(terminator(body)))
    at.set_tables(main, arguments)


def _forget_slices(module: ir.Module) -> None:
    """Removes the attributes that kept Shardy from merging equal operations of several slices."""
    for op in nested(main_of(module)):
        for name in (at.SLICE, at.APART):
            if name in op.attributes:
                del op.attributes[name]


def _give_rules(module: ir.Module) -> bool:
    """Gives elementwise CHLO operations (erf, square...) a sharding rule, as Shardy stops at them; True if there are
    any.
    """
    found = False
    for op in nested(module.operation):
        if op.name.startswith("chlo.") and _RULE not in op.attributes and len(op.results) == 1:
            types = [value.type for value in (*op.operands, *op.results)]
            if isinstance(types[0], ir.RankedTensorType) and all(
                isinstance(type_, ir.RankedTensorType) and type_.shape == types[0].shape for type_ in types
            ):
                names = [f"z_{i}" if i > 17 else chr(ord("i") + i) for i in range(types[0].rank)]
                one = "[" + ", ".join(names) + "]"
                sizes = ", ".join(f"{name}={size}" for name, size in zip(names, types[0].shape, strict=True))
                arguments = ", ".join([one] * len(op.operands))
                rule = f"#sdy.op_sharding_rule<({arguments})->({one}) {{{sizes}}}>"
                op.attributes[_RULE] = ir.Attribute.parse(rule)
                found = True
    return found


def as_input(op: ir.Operation) -> None:
    """Replaces `op`, if only Shardy's propagation writes such operations, by one that both Shardy and XLA read."""
    name = _AS_INPUT.get(op.name)
    if name is None:
        return
    if op.name == "sdy.constant" and isinstance(op.results[0].type.element_type, ir.ComplexType):
        # jaxlib can't read the attribute of complex numbers
        made = ir.Operation.parse(f"%0 ={constant_text(op).replace(op.name, name, 1)} {op.location}").operation
        ir.InsertionPoint(op).insert(made)
        for each in op.attributes:
            if each != "value":
                made.attributes[each] = op.attributes[each]
    else:
        made = remake(op, name=name)
    replace(op, made.results)

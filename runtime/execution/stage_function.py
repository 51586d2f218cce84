"""Makes a separate module for one stage function of the program, ready to compile."""

from collections.abc import Mapping

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import bytecode, clone_alone, name_of, nested
from jaxpp.ir.ops import traits
from jaxpp.ir.program import Function
from jaxpp.ir.shardings import MeshAxes, manual_axes
from jaxpp.ir.tensors import TensorSpec, sharding_text, tensor_text


def compile_unit(module: ir.Module, op: ir.Operation, function: Function, axes: MeshAxes) -> bytes:
    """Returns the bytecode of a separate module for `function`, the func.func `op` of `module`, on a mesh of `axes`.

    Its `@main` is `op`, with every sharding closed and without `jaxpp.*` attributes.
    Raises ProgramError for a shard_map over an axis that has another size on the mesh.
    """
    name = name_of(op)
    unit = ir.Module.create()
    unit.operation.attributes["sym_name"] = ir.StringAttr.get(name)
    for key in (at.PARTITIONS, "mhlo.num_replicas"):
        if key in module.operation.attributes:
            unit.operation.attributes[key] = module.operation.attributes[key]
    main = clone_alone(module, name, unit)
    if not axes.own:
        _resize(unit, name, axes)
    for key in list(main.attributes):
        if at.is_ours(key):
            del main.attributes[key]
    at.set_tables(
        main,
        _closed(at.argument_attributes(op), function.arguments, axes.name),
        _closed(at.result_attributes(op), function.results, axes.name),
    )
    if not unit.operation.verify():
        raise ProgramError(f"@{name} does not verify as a module of its own")
    return bytecode(unit.operation)


def reshard_unit(function: Function, axes: MeshAxes) -> bytes:
    """Returns the bytecode of a separate module for `function`, which returns its argument in another sharding."""
    (found,), (wanted,) = function.arguments, function.results
    sizes = ", ".join(f'"{axis}"={size}' for axis, size in axes.named)
    tensor = tensor_text(found)
    counts = f"{at.PARTITIONS} = {axes.partitions} : i32, mhlo.num_replicas = 1 : i32"
    module = ir.Module.parse(
        f"module @{function.name} attributes {{{counts}}} {{\n"
        f"sdy.mesh @mesh = <[{sizes}]>\n"
        f"func.func public @main(%a: {tensor} {{{at.SHARDING} = {sharding_text(found, 'mesh')}}})"
        f" -> ({tensor} {{{at.SHARDING} = {sharding_text(wanted, 'mesh')}}}) {{ return %a : {tensor} }}\n}}"
    )
    return bytecode(module.operation)


def _resize(unit: ir.Module, name: str, axes: MeshAxes) -> None:
    """Rewrites `unit` for a mesh with other sizes than those for which it was traced.

    Shardings over a part of an axis are dropped, as such a part depends on the size of the axis. XLA chooses then.
    """
    own = MeshAxes.written_for(unit).sizes
    partitions = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), axes.partitions)
    unit.operation.attributes[at.PARTITIONS] = partitions
    for top in unit.body.operations:
        if top.operation.name == "sdy.mesh":
            sizes = ", ".join(f'"{axis}"={size}' for axis, size in axes.named)
            top.operation.attributes["mesh"] = ir.Attribute.parse(f"#sdy.mesh<[{sizes}]>")
    for op in nested(unit.operation):
        if op.name == at.SHARD_MAP:
            _check_manual(op, name, own, axes.sizes)
        elif op.name == "sdy.sharding_constraint" and _has_part(op.attributes["sharding"]):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif at.SHARDING in op.attributes and _has_part(op.attributes[at.SHARDING]):
            del op.attributes[at.SHARDING]


def _check_manual(op: ir.Operation, name: str, traced: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Raises ProgramError for a shard_map whose axes have other sizes on the mesh than those it was traced for."""
    over = [axis for axis in manual_axes(op) if traced[axis] != sizes[axis]]
    if not over and not any(traits(inner).collective for inner in nested(op)):
        return
    what = f"over {over[0]!r}" if over else "with collectives"
    axes = over or [axis for axis, size in sizes.items() if traced[axis] != size]
    found = ", ".join(f"{axis!r} has {traced[axis]} devices" for axis in axes)
    wanted = ", ".join(str(sizes[axis]) for axis in axes)
    raise ProgramError(
        f"a shard_map {what} was traced for a mesh where {found}; @{name} is to run on one where it has "
        f"{wanted}; give the meshes of a shard_map one size",
        location=op.location,
    )


def _has_part(sharding: ir.Attribute) -> bool:
    """Whether a sharding names a part of an axis, as `"data":(1)2` does."""
    return '":(' in str(sharding)


def _closed(
    attributes: list[dict[str, ir.Attribute]], specs: tuple[TensorSpec, ...], mesh: str
) -> list[dict[str, ir.Attribute]]:
    """Returns the attributes without jaxpp's, and with the sharding that the runtime expects."""
    closed: list[dict[str, ir.Attribute]] = []
    for attrs, spec in zip(attributes, specs, strict=True):
        kept = {key: value for key, value in attrs.items() if not at.is_ours(key) and key != at.SHARDING}
        if mesh:
            kept[at.SHARDING] = ir.Attribute.parse(sharding_text(spec, mesh))
        closed.append(kept)
    return closed

"""One stage function of the program module as a module of its own, ready to compile."""

import hashlib
import io
import re
from collections.abc import Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.runtime.program import Function
from jaxpp.runtime.sizes import Sizes
from jaxpp.runtime.values import ELEMENTS, ProgramError, TensorSpec, integer, read_spec, sharding_text

_COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "reduce_scatter",
    )
)


def read_function(module: ir.Module, op: ir.Operation, sizes: Sizes) -> Function:
    """Read the func.func `op` of `module`, for a mesh of these sizes.

    Raises ProgramError for types that no array has, and for a shard_map over an axis that has another size there.
    """
    name = ir.StringAttr(op.attributes["sym_name"]).value
    type_ = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
    arg_attrs = _attributes(op, "arg_attrs", len(type_.inputs))
    res_attrs = _attributes(op, "res_attrs", len(type_.results))
    arguments = tuple(_specs(type_.inputs, arg_attrs, sizes.axes))
    results = tuple(_specs(type_.results, res_attrs, sizes.axes))
    donating = ("tf.aliasing_output", "jax.buffer_donor")
    return Function(
        name=name + sizes.suffix,
        kind=ir.StringAttr(op.attributes["jaxpp.kind"]).value if "jaxpp.kind" in op.attributes else "",
        stage=ir.IntegerAttr(op.attributes["jaxpp.stage"]).value if "jaxpp.stage" in op.attributes else None,
        arguments=arguments,
        results=results,
        donates=tuple(i for i, attrs in enumerate(arg_attrs) if any(name in attrs for name in donating)),
        bytecode=_compile_unit(module, op, name, arguments, results, sizes),
        argument_parts=_parts(arg_attrs),
        result_parts=_parts(res_attrs),
    )


def _parts(attributes: list[dict[str, ir.Attribute]]) -> tuple[int, ...]:
    """What `jaxpp.part` says of each argument or result; empty for a function of one task."""
    parts = [attrs["jaxpp.part"] for attrs in attributes if "jaxpp.part" in attrs]
    return tuple(map(integer, parts)) if len(parts) == len(attributes) else ()


def reshard_function(found: TensorSpec, wanted: TensorSpec, sizes: Sizes) -> Function:
    """The function that returns its argument in another sharding."""
    name = "reshard_" + hashlib.blake2b(f"{found} {wanted} {sizes}".encode(), digest_size=6).hexdigest()
    axes = ", ".join(f'"{axis}"={size}' for axis, size in sizes.named)
    tensor = f"tensor<{''.join(f'{size}x' for size in found.shape)}{ELEMENTS[found.dtype]}>"
    counts = f"mhlo.num_partitions = {sizes.partitions} : i32, mhlo.num_replicas = 1 : i32"
    module = ir.Module.parse(
        f"module @{name} attributes {{{counts}}} {{\n"
        f"sdy.mesh @mesh = <[{axes}]>\n"
        f"func.func public @main(%a: {tensor} {{sdy.sharding = {sharding_text(found, 'mesh')}}})"
        f" -> ({tensor} {{sdy.sharding = {sharding_text(wanted, 'mesh')}}}) {{ return %a : {tensor} }}\n}}"
    )
    return Function(name, "reshard", None, (found,), (wanted,), (), _bytecode(module))


def _attributes(op: ir.Operation, name: str, count: int) -> list[dict[str, ir.Attribute]]:
    if name not in op.attributes:
        return [{} for _ in range(count)]
    return [{item.name: item.attr for item in ir.DictAttr(each)} for each in ir.ArrayAttr(op.attributes[name])]


def _specs(
    types: list[ir.Type], attributes: list[dict[str, ir.Attribute]], axis_sizes: Mapping[str, int]
) -> list[TensorSpec]:
    return [
        read_spec(type_, attrs.get("sdy.sharding"), axis_sizes) for type_, attrs in zip(types, attributes, strict=True)
    ]


def _compile_unit(
    module: ir.Module,
    op: ir.Operation,
    name: str,
    arguments: tuple[TensorSpec, ...],
    results: tuple[TensorSpec, ...],
    sizes: Sizes,
) -> bytes:
    """The bytecode of a module whose `@main` is `op`, with every sharding closed and every `jaxpp.*` left out."""
    unit = ir.Module.create()
    unit.operation.attributes["sym_name"] = ir.StringAttr.get(name)
    for key in ("mhlo.num_partitions", "mhlo.num_replicas"):
        if key in module.operation.attributes:
            unit.operation.attributes[key] = module.operation.attributes[key]
    tops = {ir.StringAttr(top.operation.attributes["sym_name"]).value: top.operation for top in module.body.operations}
    meshes = [top for top in tops.values() if top.name == "sdy.mesh"]
    with ir.InsertionPoint(unit.body):
        for mesh in meshes:
            mesh.clone()
        main = op.clone()
        for callee in _reachable(op, tops):
            callee.clone()
    if not sizes.own:
        _resize(unit, name, sizes)
    main.attributes["sym_name"] = ir.StringAttr.get("main")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    for key in [key for key in main.attributes if str(_name(key)).startswith("jaxpp.")]:
        del main.attributes[_name(key)]
    mesh = ir.StringAttr(meshes[0].attributes["sym_name"]).value if meshes else None
    for key, specs in (("arg_attrs", arguments), ("res_attrs", results)):
        main.attributes[key] = _closed(_attributes(op, key, len(specs)), specs, mesh)
    if not unit.operation.verify():
        raise ProgramError(f"@{name} does not verify as a module of its own")
    return _bytecode(unit)


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _resize(unit: ir.Module, name: str, sizes: Sizes) -> None:
    """Rewrite `unit` for a mesh of other sizes than those for which it was written.

    What is sharded over a part of an axis is left to XLA: such a part depends on the size of the axis.
    """
    own = Sizes.of(unit).axes
    partitions = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), sizes.partitions)
    unit.operation.attributes["mhlo.num_partitions"] = partitions
    for top in unit.body.operations:
        if top.operation.name == "sdy.mesh":
            axes = ", ".join(f'"{axis}"={size}' for axis, size in sizes.named)
            top.operation.attributes["mesh"] = ir.Attribute.parse(f"#sdy.mesh<[{axes}]>")
    inner: list[ir.Operation] = []
    unit.operation.walk(lambda op: inner.append(op) or ir.WalkResult.ADVANCE)
    for op in inner:
        if op.name == "sdy.manual_computation":
            _check_manual(op, name, own, sizes.axes)
        elif op.name == "sdy.sharding_constraint" and _has_part(op.attributes["sharding"]):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif "sdy.sharding" in op.attributes and _has_part(op.attributes["sdy.sharding"]):
            del op.attributes["sdy.sharding"]


def _check_manual(op: ir.Operation, name: str, traced: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Refuse a shard_map that was traced for what the mesh is not: its axes, or the devices its collectives name."""
    manual = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    over = [axis for axis in (manual[number] for number in range(len(manual))) if traced[axis] != sizes[axis]]
    collectives: list[str] = []
    op.walk(lambda each: collectives.append(each.name) or ir.WalkResult.ADVANCE)
    if not over and _COLLECTIVES.isdisjoint(collectives):
        return
    source = re.search(r'"([^"]+)":(\d+):\d', str(op.location))  # a file, or a cell of a notebook
    where = f"{source[1]}:{source[2]}: error: " if source else ""
    what = f"over {over[0]!r}" if over else "with collectives"
    axes = over or [axis for axis, size in sizes.items() if traced[axis] != size]
    found = ", ".join(f"{axis!r} has {traced[axis]} devices" for axis in axes)
    wanted = ", ".join(str(sizes[axis]) for axis in axes)
    raise ProgramError(
        f"{where}a shard_map {what} was traced for a mesh where {found}; @{name} is to run on one where it has "
        f"{wanted}; give the meshes of a shard_map one size"
    )


def _has_part(sharding: ir.Attribute) -> bool:
    """Whether a sharding names a part of an axis, as `"data":(1)2` does."""
    return '":(' in str(sharding)


def _name(key: str | ir.NamedAttribute) -> str:
    return key if isinstance(key, str) else key.name


def _reachable(op: ir.Operation, tops: Mapping[str, ir.Operation]) -> list[ir.Operation]:
    """The functions that `op` refers to, directly or not, by a call or otherwise."""
    found: dict[str, ir.Operation] = {}
    pending = [op]

    def visit(inner: ir.Operation) -> ir.WalkResult:
        if inner.name == "stablehlo.constant":  # refers to nothing, and jaxlib can't read complex ones
            return ir.WalkResult.ADVANCE
        for attribute in inner.attributes.values():
            for name in _symbols(attribute):
                if name in tops and tops[name].name == "func.func" and name not in found:
                    found[name] = tops[name]
                    pending.append(tops[name])
        return ir.WalkResult.ADVANCE

    while pending:
        pending.pop().walk(visit)
    return list(found.values())


def _symbols(attribute: ir.Attribute) -> list[str]:
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return [attribute.value]
    if isinstance(attribute, ir.ArrayAttr):
        return [name for entry in attribute for name in _symbols(entry)]
    return []


def _closed(attributes: list[dict[str, ir.Attribute]], specs: tuple[TensorSpec, ...], mesh: str | None) -> ir.ArrayAttr:
    """The argument or result attributes without `jaxpp.*`, and with the sharding that the runtime counts on."""
    closed: list[ir.Attribute] = []
    for attrs, spec in zip(attributes, specs, strict=True):
        kept = {key: value for key, value in attrs.items() if not key.startswith("jaxpp.") and key != "sdy.sharding"}
        if mesh is not None:
            kept["sdy.sharding"] = ir.Attribute.parse(sharding_text(spec, mesh))
        closed.append(ir.DictAttr.get(kept))
    return ir.ArrayAttr.get(closed)

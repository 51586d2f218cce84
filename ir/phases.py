"""Checks what a pass takes for granted of the phase before it (docs/ir.md): a module edited by hand may break it."""

from collections.abc import Iterator

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, callee, functions, kind_and_stage, main_of, operations

_MOST_MESHES = 1 << 16


def broken(phase: int, what: str, op: ir.Operation) -> PassError:
    """The error of a `verify-*` pass for a promise of docs/ir.md about `phase`, which is that of its section."""
    hint = f"the pass before this one broke a promise of docs/ir.md, section {phase}"
    return PassError(f"phase {phase}: {what}", location=op.location, hint=hint)


def check_tasks(module: ir.Module, block: ir.Block) -> None:
    """Check phase 3: every function that `block` calls is a task, with a kind and a stage. Raises PassError."""
    called: set[tuple[str, int]] = set()
    for op, function in _calls(module, block):
        for name, is_right in ((at.KIND, at.is_text), (at.STAGE, at.is_number)):
            if not is_right(function.attributes.get(name)):
                found = at.found(function.attributes, name)
                raise PassError(
                    f"the loop calls @{callee(op)}, which is no task: {found}",
                    location=op.location,
                    hint="run outline-stages first",
                )
        if not at.same(op.attributes.get(at.STAGE), function.attributes[at.STAGE]):
            found = at.found(op.attributes, at.STAGE)
            expected = function.attributes[at.STAGE]
            raise PassError(f"the call of @{callee(op)} has {found}, expected {expected}", location=op.location)
        task = kind_and_stage(function)
        if task in called:
            raise PassError(f"the loop has a second {task[0]} of stage {task[1]}", location=op.location)
        called.add(task)


def check_unrolled(module: ir.Module) -> int:
    """Check phase 4: each call in `@main` is on one mesh. Returns the number of meshes. Raises PassError."""
    main = main_of(module)
    meshes = _meshes(module, "unroll-microbatches")
    for op, _ in _calls(module, body_of(main)):
        if not at.is_number(op.attributes.get(at.MESH), below=meshes):
            raise _misplaced(op, op.attributes, f"the call of @{callee(op)}", "unroll-microbatches", meshes)
    return meshes


def check_placed(module: ir.Module) -> int:
    """Check phase 5: calls, arguments and results are on meshes. Returns the number of meshes. Raises PassError."""
    main = main_of(module)
    meshes = _meshes(module, "infer-placement")
    for op, _ in _calls(module, body_of(main)):
        if not (
            at.is_number(op.attributes.get(at.MESH), below=meshes) or _are_meshes(op.attributes.get(at.MESHES), meshes)
        ):
            raise _misplaced(op, op.attributes, f"the call of @{callee(op)}", "infer-placement", meshes)
    for kind, table in (("argument", at.argument_attributes(main)), ("result", at.result_attributes(main))):
        for number, entry in enumerate(table):
            if not _are_meshes(entry.get(at.MESHES), meshes, least=0 if kind == "argument" else 1):
                raise _misplaced(main, entry, f"{kind} {number} of @main", "infer-placement", meshes)
    return meshes


def _meshes(module: ir.Module, made_by: str) -> int:
    meshes = at.integer(module.operation, at.MESHES)
    if meshes is None or not 0 < meshes <= _MOST_MESHES:
        found = at.found(module.operation.attributes, at.MESHES)
        raise PassError(f"{found}, expected the number of meshes", hint=f"run {made_by} first")
    return meshes


def _calls(module: ir.Module, block: ir.Block) -> Iterator[tuple[ir.Operation, ir.Operation]]:
    """The calls in `block`, each with its function. Raises PassError for a function that can't be called."""
    by_name = functions(module)
    checked: dict[ir.Attribute, ir.Operation] = {}
    for op in operations(block):
        if op.name == "func.call":
            symbol = op.attributes["callee"]
            function = checked.get(symbol)
            if function is None:
                name = callee(op)
                function = checked[symbol] = by_name[name]
                _check_callee(function, name, op)
            yield op, function


def _check_callee(function: ir.Operation, name: str, op: ir.Operation) -> None:
    blocks = len(function.regions[0].blocks)
    if blocks != 1:
        raise PassError(f"call of @{name}, which has {blocks} blocks, expected one", location=op.location)
    if name == "main":
        raise PassError("@main calls itself", location=op.location, hint="recursion can't be lowered")
    if at.KIND in function.attributes and not at.is_text(function.attributes[at.KIND]):
        found = at.found(function.attributes, at.KIND)
        raise PassError(f"@{name} has {found}, expected the name of a kind", location=function.location)


def _misplaced(
    op: ir.Operation, entry: "ir.OpAttributeMap | dict[str, ir.Attribute]", what: str, made_by: str, meshes: int
) -> PassError:
    found = " and ".join(at.found(entry, name) for name in (at.MESH, at.MESHES) if name in entry) or "no mesh"
    return PassError(
        f"{what} has {found}; the meshes are 0 to {meshes - 1}", location=op.location, hint=f"run {made_by} first"
    )


def _are_meshes(attribute: ir.Attribute | None, meshes: int, least: int = 1) -> bool:
    """Whether it is a list of at least so many meshes, each once."""
    if not isinstance(attribute, ir.DenseI64ArrayAttr) or not at.are_numbers(attribute, meshes):
        return False
    return len(set(attribute)) == len(attribute) >= least

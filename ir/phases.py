"""Checks the promises of a phase (docs/ir.md) that a pass relies on: a module edited by hand may break them."""

from collections.abc import Iterable, Mapping

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, callee, functions, kind_and_stage, main_of, operations
from jaxpp.ir.kinds import AROUND
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.steps import MainLine, Step, handed
from jaxpp.ir.values import is_used
from jaxpp.schedules.model.kinds import KIND_NAME

_MOST_MESHES = 1 << 16
_MADE_BY = {False: "unroll-microbatches", True: "infer-placement"}


def broken(phase: int, what: str, op: ir.Operation) -> PassError:
    """Returns the error of a `verify-*` pass for a broken promise of docs/ir.md, in the section with number `phase`."""
    hint = f"the pass before this one broke a promise of docs/ir.md, section {phase}"
    return PassError(f"phase {phase}: {what}", location=op.location, hint=hint)


def check_tasks(module: ir.Module, block: ir.Block) -> None:
    """Checks phase 3: every function that `block` calls is a task, with a kind and a stage. Raises PassError."""
    called: set[tuple[str, int, int | None]] = set()
    function_of = _Callees(module)
    for op in operations(block):
        if op.name != "func.call":
            continue
        function, _ = function_of(callee(op), op)
        for name, is_right in ((at.KIND, _is_kind), (at.STAGE, at.is_number)):
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
        task = (*kind_and_stage(function), at.integer(op, at.SLICE))
        if task in called:
            raise PassError(f"the loop has a second {task[0]} of stage {task[1]}", location=op.location)
        called.add(task)


def tasks_of(module: ir.Module, block: ir.Block) -> dict[tuple[str, int], ir.Operation]:
    """Returns the calls of tasks in `block` by (kind, stage)."""
    by_name = functions(module)
    return {kind_and_stage(by_name[callee(op)]): op for op in operations(block) if op.name == "func.call"}


def _is_kind(attribute: ir.Attribute | None) -> bool:
    return isinstance(attribute, ir.StringAttr) and KIND_NAME.fullmatch(attribute.value) is not None


def main_of_phase(module: ir.Module, *, placed: bool) -> MainLine:
    """Checks phase 4, or phase 5 if `placed`. Raises as `read_main`. Returns the line of `@main`."""
    line = handed(module, MainLine)
    return line if line is not None and line.placed == placed else read_main(module, placed=placed)


def read_main(module: ir.Module, *, placed: bool) -> MainLine:
    """Reads `@main`. Each call must be on one mesh. If `placed`, it may be on several, and borders must be on meshes.

    Raises PassError for a call, an argument or a result on no mesh, or a call of a function that can't be called.
    """
    main = main_of(module)
    line = main_line(module, map(Step.of, operations(body_of(main))[:-1]), placed=placed)
    tables = (("argument", at.argument_attributes(main)), ("result", at.result_attributes(main)))
    for kind, table in tables if placed else ():
        for number, entry in enumerate(table):
            least = 1 if kind == "result" or is_used(body_of(main).arguments[number]) else 0
            if not _are_meshes(entry.get(at.MESHES), line.meshes, least):
                raise _misplaced(main, entry, f"{kind} {number} of @main", _MADE_BY[True], line.meshes)
    return line


def main_line(module: ir.Module, steps: Iterable[Step], *, placed: bool) -> MainLine:
    """Returns `@main` of these steps; finds the functions and meshes that its calls lack. Raises as `read_main`."""
    made_by, meshes, steps = _MADE_BY[placed], _meshes(module, _MADE_BY[placed]), list(steps)
    function_of = _Callees(module)
    for step in steps:
        if step.name != "func.call" or step.function is not None:
            continue
        step.function, step.kind = function_of(step.callee, step.op)
        if step.task is None:
            _check_named(step.op, step.kind)
        mesh = step.attributes.get(at.MESH)
        if isinstance(mesh, ir.IntegerAttr) and 0 <= (number := mesh.value) < meshes:
            step.meshes = (number,)
        elif placed and _are_meshes(step.attributes.get(at.MESHES), meshes):
            step.meshes = at.integers(step.op, at.MESHES)
        else:
            raise _misplaced(step.op, step.attributes, f"the call of @{step.callee}", made_by, meshes)
    return MainLine(meshes, steps, placed)


def _check_named(op: ir.Operation, kind: str) -> None:
    """Raises PassError for a call of a task of this kind that does not name its stage and microbatch."""
    if kind and kind not in AROUND and not tasks_of_call(op, kind):
        raise PassError(
            f"the call of @{callee(op)}, which is a {kind}, has neither {at.STAGE} nor {at.MICROBATCH}",
            location=op.location,
            hint="run unroll-microbatches, which writes them",
        )


def _meshes(module: ir.Module, made_by: str) -> int:
    meshes = at.integer(module.operation, at.MESHES)
    if meshes is None or not 0 < meshes <= _MOST_MESHES:
        found = at.found(module.operation.attributes, at.MESHES)
        raise PassError(f"{found}, expected the number of meshes", hint=f"run {made_by} first")
    return meshes


class _Callees:
    """Finds the functions of calls and their kinds. Raises PassError for a function that can't be called."""

    def __init__(self, module: ir.Module) -> None:
        self._by_name = functions(module)
        self._checked: dict[str, tuple[ir.Operation, str]] = {}

    def __call__(self, name: str, op: ir.Operation) -> tuple[ir.Operation, str]:
        if name not in self._checked:
            function = self._by_name[name]
            _check_callee(function, name, op)
            self._checked[name] = function, kind_and_stage(function)[0]
        return self._checked[name]


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
    op: ir.Operation, entry: "ir.OpAttributeMap | Mapping[str, ir.Attribute]", what: str, made_by: str, meshes: int
) -> PassError:
    found = " and ".join(at.found(entry, name) for name in (at.MESH, at.MESHES) if name in entry) or "no mesh"
    return PassError(
        f"{what} has {found}; the meshes are 0 to {meshes - 1}", location=op.location, hint=f"run {made_by} first"
    )


def _are_meshes(attribute: ir.Attribute | None, meshes: int, least: int = 1) -> bool:
    """Whether an attribute is a list of at least `least` meshes, each once."""
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        return False
    numbers = at.numbers(attribute)
    return len(set(numbers)) == len(numbers) >= least and all(0 <= number < meshes for number in numbers)

"""The stage marks of the microbatch loop: checks of their positions, and the numbers of the stages that they end."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.build import replace
from jaxpp.ir.counted import trips
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import blocks_of, loop_body, nested, operands_with_captures, operations
from jaxpp.ir.tensors import check_arrays


def check_marks(main: ir.Operation, ops: Iterable[ir.Operation], loop: ir.Operation) -> Marks:
    """Returns the stage marks among `ops`, the operations of `main`, in program order.

    Raises:
        PassError: when a mark is not directly in the body of `loop`, has an unknown form, or takes values that are not
            arrays.
    """
    body = loop_body(loop)
    marks: list[tuple[ir.Operation, boundary.Boundary]] = []
    for op in ops:
        if at.BOUNDARY not in op.attributes:
            continue
        kind = "unit" if isinstance(op.attributes[at.BOUNDARY], ir.UnitAttr) else "stage"
        if not boundary.is_any_mark(op):
            raise PassError(
                f"{at.BOUNDARY} on a {op.name}",
                location=op.location,
                hint=f"a {kind} mark is a stablehlo.optimization_barrier",
            )
        if op.block != body:
            parent = op.parent.operation if op.parent is not None else main
            while (
                parent.name == at.SHARD_MAP and parent.parent is not None
            ):  # the message names the construct that kept `unroll-loops` from splitting this
                parent = parent.parent.operation
            where = "outside of the microbatch loop" if parent == main else f"inside a {_construct(parent)}"
            raise PassError(
                f"a {kind} mark {where}",
                location=op.location,
                hint="marks must stand directly in the function that treduce maps over the microbatches"
                if kind == "stage"
                else "put unit marks between two of these",
            )
        check_arrays(op.operands, f"goes over a {kind} mark")
        if kind == "stage":
            marks.append((op, boundary.read(op)))
    return marks


def _construct(op: ir.Operation) -> str:
    names = {"stablehlo.while": "scan or while loop", "stablehlo.case": "conditional", "stablehlo.if": "conditional"}
    return names.get(op.name, op.name)


def count_marks(block: ir.Block) -> int:
    """Returns the number of forward marks, one in a loop once for each iteration."""
    count = 0
    for op in operations(block):
        if boundary.is_mark(op):
            count += boundary.read(op).phase == "forward"
        elif any(map(boundary.is_mark, nested(op))):
            count += (trips(op) or 1) * sum(map(count_marks, blocks_of(op)))
    return count


def marked_stages(marks: Marks) -> list[int]:
    """Returns the number that each stage's mark carries, in the order of the forward.

    Where only the gradient is used, JAX drops the forward mark of the last stage. Its backward mark then counts.
    """
    forward = [mark.stage for _, mark in marks if mark.phase == "forward"]
    last = next((mark.stage for _, mark in marks if mark.phase == "backward"), None)
    return forward if last is None or last in forward else [*forward, last]


def stages_of(marks: Marks, loop: ir.Operation, count: int) -> list[int] | None:
    """Returns the stage, of `count`, that each of `marked_stages` ends; None where the marks don't fit.

    Usually each mark ends a stage of its own. There may be more marks, if the longest chain of dependent forward marks
    has `count` or `count - 1` of them. Then a model is applied to several inputs of a microbatch (a siamese network),
    and all applications go through the stages together.
    """
    found = len(marked_stages(marks))
    if found in (count - 1, count):
        return list(range(found))
    before = _marks_before(loop)
    if len(set(before)) not in (count - 1, count):
        return None
    return before + [count - 1] * (found - len(before))


def _marks_before(loop: ir.Operation) -> list[int]:
    """Returns for each forward mark the number of marks on the longest chain of values that leads to it.

    Raises PassError if a forward mark depends on a backward mark.
    """
    ops = operations(loop_body(loop))
    known: dict[ir.Value, int] = {}
    found: list[int] = []
    for op in ops[:-1]:
        behind = max((known.get(value, 0) for value in operands_with_captures(op)), default=0)
        if boundary.is_mark(op):
            forward = boundary.read(op).phase == "forward"
            if forward and behind >= len(ops):
                raise marked_twice(op)
            found += [behind] * forward
            behind = behind + 1 if forward else len(ops)
        known.update((result, behind) for result in op.results)
    return found


def check_one_pass(marks: Marks, loop: ir.Operation) -> None:
    """Raises PassError for a forward mark that depends on a backward mark: a schedule has one pass per microbatch."""
    phases = [mark.phase for _, mark in marks]
    if "backward" in phases and "forward" in phases[phases.index("backward") :]:
        _marks_before(loop)


def number_marks(marks: Marks, numbers: Sequence[int | None]) -> Marks:
    """Writes `numbers` on the forward marks, in program order; each backward mark gets the number of its forward mark.

    Drops the marks whose number is None. Returns the others.

    A layer that is traced once and called several times leaves marks of one number on different stages. Their order
    tells them apart: the backward meets the stages in the reverse order of the forward.

    Raises PassError for a backward mark without a forward mark.
    """
    stages = marked_stages(marks)
    above, number = len(stages), 0
    kept: Marks = []
    for op, mark in marks:
        if mark.phase == "forward":
            stage, number = number, number + 1
        else:
            stage = _below(above, stages, mark.stage)
            if stage is None:  # a second backward through one forward: of another loss, or row of a Jacobian
                stage = _below(len(stages), stages, mark.stage)
            if stage is None:
                raise PassError(
                    f"the backward mark of stage {mark.stage} has no forward mark before it", location=op.location
                )
            above = stage
        number_of_stage = numbers[stage]
        if number_of_stage is None:
            replace(op, op.operands)
        else:
            written = dataclasses.replace(mark, stage=number_of_stage)
            boundary.write(op, written)
            kept.append((op, written))
    return kept


def _below(above: int, stages: Sequence[int], number: int) -> int | None:
    return next((i for i in reversed(range(above)) if stages[i] == number), None)


def marked_twice(again: ir.Operation) -> PassError:
    """Returns the error for a forward mark after a backward mark, or a mark that JAX recomputes."""
    return PassError(
        "a stage mark stands behind the backward: in a second pass over a microbatch, in a second derivative, or "
        "inside jax.checkpoint",
        location=again.location,
        hint="run the first pass as a step of its own, and give its gradients to this step: docs/recipes.md, "
        "'Two passes'; put jax.checkpoint around what stands between two marks",
    )


def computed_again(marks: Marks) -> ir.Operation | None:
    """Returns a forward mark that follows a backward mark and has the number of an earlier forward mark."""
    seen: set[int] = set()
    backward = False
    for op, mark in marks:
        if mark.phase == "backward":
            backward = True
        elif backward and mark.stage in seen:
            return op
        else:
            seen.add(mark.stage)
    return None

"""Stages as a graph: which stage reads which other, and which values of the microbatch each can make itself."""

from collections.abc import Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.ir import boundary
from jaxpp.ir.functions import has_side_effect, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.tasks import StageTask, copy_into, task_inside, task_of
from jaxpp.ir.values import closure, defining_op

Reads = tuple[tuple[int, ...], ...]
"""For each stage the stages whose results it reads, all of them earlier ones."""


def stage_reads(loop: MicrobatchLoop) -> Reads:
    """Returns the stages that each stage reads, in the form of `Placement.after`.

    An operation before several marks belongs to the first of these stages, and the others read that stage. If it needs
    only the microbatch, each stage can make it instead. The last stage comes after all stages that no other stage
    reads, as any operation after the last mark may use their results.
    """
    numbered = Numbered(operations(loop.body)[:-1])
    of_batch, maker = made_of_batch(loop, numbered), dict[int, int]()
    found: list[set[int]] = [set() for _ in range(loop.stages)]
    marks = [(boundary.read(op), number) for number, op in enumerate(numbered.ops) if boundary.is_mark(op)]
    for stage, number in sorted((mark.stage, number) for mark, number in marks if mark.phase == "forward"):
        waiting = [number]
        while waiting:
            each = waiting.pop()
            if each in maker:
                found[stage].add(maker[each])
            elif each not in of_batch:
                maker[each] = stage
                waiting += numbered.makers[each]
    *others, last = found
    last |= set(range(len(others))).difference(*others)
    return tuple(tuple(sorted(read - {stage})) for stage, read in enumerate(found))


def made_of_batch(loop: MicrobatchLoop, numbered: Numbered) -> set[int]:
    """Returns the operations that need only microbatches, their index and constants: no weights and no mark.

    This function can't know which values have a gradient. A floating-point value from outside of the loop that is read
    whole therefore counts as a weight. Keys of random generators are integers.
    """
    counts, carried = set(loop.counts), loop.carried
    found: set[int] = set()
    for number, op in enumerate(numbered.ops):
        values = numbered.operands[number]
        if boundary.is_mark(op) or has_side_effect(op):
            continue
        if op.name == "stablehlo.dynamic_slice" and any(value in counts for value in op.operands[1:]):
            values = [value for value in values if value != op.operands[0] or value in carried]
        made = all(
            numbered.producers[value] in found
            if value in numbered.producers
            else value not in carried and not _is_weight(value)
            for value in values
        )
        if made:
            found.add(number)
            if op.name != "stablehlo.dynamic_slice" and any(value in counts for value in values):
                counts.update(op.results)
    return found


def copy_to_readers(loop: MicrobatchLoop, made: Sequence[ir.Operation], before: Mapping[int, set[int]]) -> None:
    """Copies operations of the microbatch into each reading stage that does not come after the stage that has them.

    Args:
        loop: the loop.
        made: the operations, in program order.
        before: the stages before each stage.
    """
    for op in reversed(made):
        task = task_of(op)
        if task is None:
            continue
        users = [task_inside(use.owner.operation, loop.body) for result in op.results for use in result.uses]
        for stage in dict.fromkeys(user.stage for user in users if user is not None):
            if stage != task.stage and task.stage not in before.get(stage, ()):
                copy_into(StageTask.forward(stage), op, [StageTask.backward(stage)])


def _is_weight(value: ir.Value) -> bool:
    """Whether a value from outside of the loop is floating-point and computed from an argument."""
    if not isinstance(ir.RankedTensorType(value.type).element_type, ir.FloatType):
        return False

    def operands(each: ir.Value) -> Iterable[ir.Value]:
        op = defining_op(each)
        return () if op is None else op.operands

    return any(defining_op(each) is None for each in closure([value], operands))

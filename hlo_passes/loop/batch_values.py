"""What is made of the microbatch alone, and read by stages of a graph none of which comes after the other."""

from collections.abc import Collection, Iterable, Mapping

from jaxlib.mlir import ir

from jaxpp.ir import boundary
from jaxpp.ir.functions import has_side_effect, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.tasks import StageTask, set_task, task_inside, task_of
from jaxpp.ir.values import closure, defining_op


def made_of_batch(loop: MicrobatchLoop, numbered: Numbered) -> set[int]:
    """The operations of the loop's body that need microbatches, their index and constants, but no weights and no mark.

    Where something has a gradient is unknown here: what is read whole, as the loop found it, and is of floating point
    counts as a weight. Keys of generators are integers.
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


def copy_to_readers(loop: MicrobatchLoop, made: Collection[ir.Operation], before: Mapping[int, set[int]]) -> None:
    """Let each stage make these values of the microbatch for itself, if it does not come after the stage that does.

    before: the stages before each.
    """
    for op in reversed(operations(loop.body)):
        task = task_of(op) if op in made else None
        if task is None:
            continue
        copies: dict[int, ir.Operation] = {}
        for result in op.results:
            for use in list(result.uses):
                user = task_inside(use.owner.operation, loop.body)
                if user is None or user.stage == task.stage or task.stage in before.get(user.stage, ()):
                    continue
                if user.stage not in copies:
                    copies[user.stage] = op.clone(ir.InsertionPoint.after(op)).operation
                    set_task(copies[user.stage], StageTask.forward(user.stage))
                use.owner.operands[use.operand_number] = copies[user.stage].results[ir.OpResult(result).result_number]


def _is_weight(value: ir.Value) -> bool:
    """Whether a value from outside of the loop is of floating point, and made of an argument."""
    if not isinstance(ir.RankedTensorType(value.type).element_type, ir.FloatType):
        return False

    def operands(each: ir.Value) -> Iterable[ir.Value]:
        op = defining_op(each)
        return () if op is None else op.operands

    return any(defining_op(each) is None for each in closure([value], operands))

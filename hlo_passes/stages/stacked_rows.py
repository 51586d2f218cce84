"""Makes the loops of a forward stack the fewest bytes for the loops of its backward, by a minimum cut."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.cut import divide, without_long_chains
from jaxpp.hlo_passes.stages.loop_stacks import LoopStacks, Microbatch
from jaxpp.ir.build import erase_dead
from jaxpp.ir.counted import is_counted
from jaxpp.ir.functions import operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import StageTask, task_of
from jaxpp.ir.values import byte_size


def stack_less(loop: MicrobatchLoop, mesh: MeshAxes | None) -> None:
    """Makes the loops of each forward stack the fewest bytes from which its backward can make the values that it reads.

    Nested loops are one flow problem, in which a value costs its bytes in all trips. A value of the outer loop may be
    rematerialised for the inner loop, and counts once however many operations need it. Loops in sequence are treated
    from the last to the first, because a later loop may read the stacks of an earlier one.
    """
    changed = False
    for op in reversed(operations(loop.body)):
        task = task_of(op) if is_counted(op) else None
        if task is not None and not task.is_backward:
            outside = Microbatch(loop, StageTask.backward(task.stage))
            stacks = LoopStacks.of(op, outside)
            less = stacks.rewrite(_Nest(stacks, outside).again(), mesh)
            if less is not None:
                less.let_read(loop.body, {}, mesh)
                op.erase()
                changed = True
    if changed:
        erase_dead(loop.body)


class _Nest:
    """The bodies of a loop of the forward and of the loops inside of it, as an early half; the late half reads rows."""

    def __init__(self, outermost: LoopStacks, outside: Microbatch) -> None:
        loops = [outermost]
        for each in loops:
            loops += each.inner
        self._outside = outside
        self._of = {value: each for each in loops for value in each.loop.inside}
        self._wanted = dict.fromkeys(value for each in loops for value in each.wanted)
        self._together = [values for each in loops for reader in each.readers for values in reader.together()]
        self._too_long: set[int] = set()
        self.body = Numbered([op for each in loops for op in each.loop.body.ops])

    def again(self) -> set[ir.Value]:
        """Returns the values that the loops of the backward rematerialise, so that the fewest bytes are stacked."""
        while True:
            found = sorted(divide(self, (), self._wanted, self._size, self._together).again)
            short = without_long_chains(self, found, self._wanted.__contains__)
            if short == found:
                return {result for op in found for result in self.body.results[op]}
            self._too_long.update(found)
            self._too_long.difference_update(short)

    def _size(self, value: ir.Value) -> int:
        """Returns the bytes of `value` in all trips together."""
        stacks = self._of.get(value)
        return self._outside.size(value) if stacks is None else stacks.trips * byte_size(value.type)

    def is_free(self, value: ir.Value) -> bool:
        stacks = self._of.get(value)
        if stacks is None:
            return self._outside.is_there(value)
        return value in stacks.loop.counts or value in stacks.there

    def is_early(self, value: ir.Value) -> bool:
        return True

    def may_move(self, op: int) -> bool:
        return False

    def may_repeat(self, op: int) -> bool:
        return op not in self._too_long and is_cheap(self.body.ops[op])

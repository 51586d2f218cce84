"""Checks that each stage has work: its mark's result is used, and the marked value depends on the microbatch."""

from collections.abc import Collection

from jaxlib.mlir import ir

from jaxpp.hlo_passes.loop.marks import marked_stages
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import has_side_effect, loop_body, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import traits

_UNUSED = "nobody uses the result of this stage mark"
_NO_WORK = ("stablehlo.constant", "stablehlo.broadcast", boundary.BARRIER)
_USE = "go on with what the mark returns: x = jaxpp.mark_stage_end(x)"


def check_work(loop: MicrobatchLoop) -> None:
    """Raises PassError for a stage of `loop` without work, though the step would run. The marks are numbered already.

    The result of a forward mark may be unused if there is a backward mark. Where only the gradient is used, JAX drops
    the operations after the forward mark. The result of a slice's last stage may be unused too: it is the loss.
    """
    body = _Dataflow(loop.body)
    of_microbatch = body.of_microbatch(loop)
    backward = {mark.stage for mark in body.marks.values() if mark.phase == "backward"}
    last = max((mark.stage for mark in body.marks.values()), default=0)
    for number in body.forward_marks:
        mark, stage = body.ops[number], body.marks[number].stage
        if number in body.live and number not in of_microbatch:
            raise PassError(
                f"the mark of stage {stage} marks what is the same for all microbatches",
                location=mark.location,
                hint="mark what the stage computes of its microbatch",
            )
        if stage in backward or (loop.slices > 1 and (stage + 1) % loop.stages_per_slice == 0):
            continue
        if number not in body.live:
            raise PassError(_UNUSED, location=mark.location, hint=_USE)
        if stage < last and number not in body.to_forward and body.is_bypassed(number):
            raise PassError(
                f"no later stage uses the result of this stage mark: they use what stage {stage} made without it",
                location=mark.location,
                hint=_USE,
            )
    if loop.slices == 1 and last == loop.stages - 2 and body.is_all_before(last, loop.carried):
        raise PassError(
            f"stage {loop.stages - 1} has no work: nothing is computed behind the mark of stage {last}",
            location=loop.op.location,
            hint=f"mark the end of every stage (mark_stage_end): {loop.stages} marks, or {loop.stages - 1} before the "
            "last stage; or take a schedule of fewer stages",
        )


def check_used(loop: ir.Operation, marks: Marks) -> None:
    """Raises PassError for a forward mark with an unused result, unless it is in a slice or has a backward mark."""
    body = _Dataflow(loop_body(loop))
    backward = {mark.stage for _, mark in marks if mark.phase == "backward"}
    for number in body.forward_marks:
        op = body.ops[number]
        if number not in body.live and at.SLICE not in op.attributes and body.marks[number].stage not in backward:
            raise PassError(_UNUSED, location=op.location, hint=_USE)


def check_kept(module: ir.Operation, marks: Marks = (), count: int = 1) -> None:
    """Raises PassError where fewer than `count` stages are marked, and JAX dropped a mark with an unused result."""
    lost = module.attributes.get(at.LOST_MARKS)
    if lost is None or len(marked_stages(marks)) >= count:
        return
    name, line, column = ir.StringAttr(ir.ArrayAttr(lost)[0]).value.rsplit(":", 2)
    location = ir.Location.file(name, int(line), int(column), module.context)
    raise PassError(_UNUSED, location=location, hint=_USE)


class _Dataflow(Numbered):
    """The operations of the loop's body by their indices, and the flow of values between them.

    Attributes:
        marks: maps each mark's operation to its content, in program order.
        forward_marks: the operations that are forward marks.
        results_of_loop: the operation that makes each result of the body, or None.
        live: the operations on which a result of the loop or a side effect depends.
        to_forward: the operations on which a live forward mark depends.
    """

    def __init__(self, body: ir.Block) -> None:
        super().__init__(operations(body)[:-1])
        self.marks = {number: boundary.read(op) for number, op in enumerate(self.ops) if boundary.is_mark(op)}
        self.forward_marks = [number for number, mark in self.marks.items() if mark.phase == "forward"]
        self.results_of_loop = [self.producers.get(value) for value in terminator(body).operands]
        self.live = {*self.behind(terminator(body).operands)}
        # The check for side effects is slow, so skip it for operations that are live already.
        dead = (number for number in range(len(self.ops)) if number not in self.live)
        self.live.update(self.behind((), also=[number for number in dead if has_side_effect(self.ops[number])]))
        ends = self.live.intersection(self.forward_marks)
        self.to_forward = {*self.behind(value for number in ends for value in self.operands[number])}

    def of_microbatch(self, loop: MicrobatchLoop) -> set[int]:
        """Returns the operations that depend on values that the loop counts or carries.

        Returns all operations if the loop has one microbatch, or if only its counters' own updates read its counters.
        """
        counting = {self.results_of_loop[position] for position in loop.indices}
        readers = [number for number, used in enumerate(self.operands) if not loop.counts.keys().isdisjoint(used)]
        if loop.length == 1 or counting.issuperset(readers):
            return set(range(len(self.ops)))
        return self._after({*loop.body.arguments})

    def is_bypassed(self, mark: int) -> bool:
        """Whether a live operation other than `mark` uses a value that `mark` marks."""
        marked = set(self.operands[mark])
        return any(number != mark and not marked.isdisjoint(self.operands[number]) for number in self.live)

    def is_all_before(self, stage: int, carried: Collection[ir.Value]) -> bool:
        """Whether no operation after the forward mark of `stage`, or before its backward mark, does work.

        Sums over the microbatches, views, constants, broadcasts and barriers are not work.

        Args:
            stage: the number of the stage.
            carried: the values that the loop carries from the microbatch before.
        """
        ends = [number for number, mark in self.marks.items() if mark.stage == stage]
        forward = {*self.forward_marks}.intersection(ends)
        results = set[ir.Value](result for number in forward for result in self.results[number])
        gradients = (value for number in ends if number not in forward for value in self.operands[number])
        found = self._after(results) & self.live
        found |= {*self.behind(gradients)} - self.to_forward
        sums = {number for number in found if any(value in carried for value in self.operands[number])}
        return all(traits(self.ops[number]).view or self.ops[number].name in _NO_WORK for number in found - sums)

    def _after(self, values: set[ir.Value]) -> set[int]:
        """Returns the operations that depend on one of these values."""
        found = set[int]()
        for number, makers in enumerate(self.makers):
            if not found.isdisjoint(makers) or not values.isdisjoint(self.operands[number]):
                found.add(number)
        return found

"""The backward of a stage, and the values of it that its input gradient makes."""

from collections.abc import Collection, Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.dependences import Dependences
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, Accumulator
from jaxpp.ir.functions import body_of, kind_and_stage, operations, terminator, values_behind
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import shape_of, traits
from jaxpp.ir.values import block_of, only_use


class Backward:
    """The backward of one stage, as the loop body calls it. What the microbatch loop carries is no residual.

    Attributes:
        stage: the index of the stage.
        body: the operations of the function.
        returned: the values that the function returns.
        carried: maps each argument that the microbatch loop carries to the indices of the results that replace it for
            the next microbatch.
        arguments: the arguments of the function.
        free: the arguments that the loop does not carry and no task makes, such as weights.
        awaited: the indices of the results that another task waits for, without accumulated results.
        metrics: the indices of accumulated results that are no gradients of weights, such as losses: stacks, maxima,
            and sums that are scalars or have the shape of no weight.
    """

    def __init__(
        self,
        loop: MicrobatchLoop,
        function: ir.Operation,
        call: ir.Operation,
        sums: Mapping[ir.Value, Accumulator],
        weights: Collection[Sequence[int]],
    ) -> None:
        """Reads the call of a backward; `weights` holds the shapes of the weights of the stage."""
        self.stage = kind_and_stage(function)[1]
        self.returned = list(terminator(body_of(function)).operands)
        self.body = body = Numbered(operations(body_of(function))[:-1])
        self._effects = {value for number in body.acting for value in (*body.results[number], *body.operands[number])}
        self.arguments: list[ir.Value] = list(body_of(function).arguments)
        self.carried: dict[ir.Value, list[int]] = {}
        self.free: set[ir.Value] = set()
        carried = loop.carried
        for argument, value in zip(self.arguments, call.operands, strict=True):
            if value in carried:
                self.carried[argument] = _handed_on(loop, call, ir.BlockArgument(value).arg_number)
            elif not loop.is_of_a_task(value):
                self.free.add(argument)
        self.awaited = {
            number
            for number, result in enumerate(call.results)
            if result not in sums and _is_awaited(loop, call, result)
        }
        self.metrics = [
            number
            for number, result in enumerate(call.results)
            if result in sums and _is_metric(loop, sums[result], weights)
        ]

    @property
    def ops(self) -> Sequence[ir.Operation]:
        """The operations of `body`, in program order."""
        return self.body.ops

    def live(self, needs: Dependences) -> set[ir.Value]:
        """Returns the results, the values of side effects, and all values on which they depend."""
        return needs.values_behind([*self.returned, *self._effects])

    def early(self, needs: Dependences, wanted: Collection[ir.Value] = ()) -> set[ir.Value]:
        """Returns the values of the input gradient.

        They are the awaited results, `wanted`, and all values on which these depend. If these values need no product,
        the products on which other products depend join them. Metrics that need no product of a weight gradient join
        them too.
        """
        awaited = {self.returned[number] for number in self.awaited}.union(wanted)
        while True:
            early = needs.values_behind(awaited)
            if not needs.products(early):
                early = needs.values_behind(awaited | needs.inner_products())
            # If the input gradient reads a carried value, the previous microbatch's input gradient has to make it.
            more = {self.returned[n] for value in early & self.carried.keys() for n in self.carried[value]}
            if more <= awaited:
                break
            awaited |= more
        others = {*range(len(self.returned))}.difference(self.awaited, self.metrics)
        late = needs.products(needs.values_behind(self.returned[number] for number in others)) - needs.products(early)
        for number in self.metrics:
            behind = needs.values_behind([self.returned[number]])
            if needs.products(behind).isdisjoint(late):
                early |= behind
        return early


def weight_shapes(loop: MicrobatchLoop) -> dict[int, set[tuple[int, ...]]]:
    """Returns the shapes of the weights of each stage: of the values from outside the loop that its tasks read.

    The values on which those depend count too. Only a part of a weight, a cast or a reshape of it may reach the loop,
    and its gradient has the shape of the weight itself.
    """
    found: dict[int, set[tuple[int, ...]]] = {}
    for op in operations(loop.body):
        if op.name == "func.call":
            outer = [value for value in op.operands if block_of(value) != loop.body]
            tensors = (each for each in values_behind(outer) if isinstance(each.type, ir.RankedTensorType))
            shapes = {tuple(shape_of(value)) for value in tensors}
            found.setdefault(ir.IntegerAttr(op.attributes[at.STAGE]).value, set()).update(shapes)
    return found


def _is_metric(loop: MicrobatchLoop, sum_: Accumulator, weights: Collection[Sequence[int]]) -> bool:
    """Whether an accumulator is no sum of gradients of weights of these shapes."""
    shapes = _shapes_after(loop.op.results[ir.BlockArgument(sum_.values[0]).arg_number])
    return sum_.operator != ADD or () in shapes or not any(shape in weights for shape in shapes)


def _shapes_after(total: ir.Value) -> list[tuple[int, ...]]:
    """Returns the shape of a result of the loop, and those that it takes while the step puts it together.

    Earlier passes have the loop sum the rows of a weight apart, and the summands of each device.
    """
    shapes = [tuple(shape_of(total))]
    while (use := only_use(total)) is not None:
        op = use.owner.operation
        sums = op.name == "stablehlo.reduce" and at.integers(op, "dimensions") == [0]
        if not (sums or op.name == "stablehlo.concatenate" or traits(op).view):
            break
        total = op.results[0]
        shapes.append(tuple(shape_of(total)))
    return shapes


def _handed_on(loop: MicrobatchLoop, call: ir.Operation, position: int) -> list[int]:
    value = terminator(loop.body).operands[position]
    return [number for number, result in enumerate(call.results) if result == value]


def _is_awaited(loop: MicrobatchLoop, call: ir.Operation, result: ir.Value) -> bool:
    """Whether another task uses `result` in this microbatch, or in the next one as a value that the loop carries."""
    for use in result.uses:
        op = use.owner.operation
        if op.name == "func.call":
            return True
        users = (other.owner.operation for other in loop.body.arguments[use.operand_number].uses)
        if any(user != call for user in users):
            return True
    return False

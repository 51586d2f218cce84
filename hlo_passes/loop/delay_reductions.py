"""`delay-reductions`: sums gradients of weights over the data axis once per step, not once per microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop import partial_sums
from jaxpp.hlo_passes.loop.partial_sums import PartialSum, Stacker
from jaxpp.hlo_passes.loop.sharded_weights import find_gathers, gather, no_gather, no_scatter
from jaxpp.hlo_passes.once_per import check_choice
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, carried_updates
from jaxpp.ir.build import constant, sharded
from jaxpp.ir.functions import terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import MeshAxes, uneven_axes, without
from jaxpp.ir.values import is_zero


@dataclass(frozen=True)
class DelayReductions(Pass):
    """Keeps a sum over a sharded dimension (a gradient, over the batch) as one summand per device until the loop ends.

    If the batch is sharded over an axis, each microbatch's gradient of a weight ends in an all-reduce over this axis.
    The pass gives the accumulator a new first dimension, with one entry per device along the axis and sharded over it.
    Every device adds its own summands, and one reduction after the loop sums the entries. The new accumulator takes as
    many bytes per device as the replicated one did. The result is ordinary StableHLO: its values do not depend on the
    partitioner.

    The pass rewrites sums of products, reductions and scatters (embeddings) over a sharded dimension. The sum may pass
    through linear operations: transpositions, casts to wider types, constant factors, padding, further sums. A sum
    stays as it is if another operation reads it, if the groups would have unequal sizes, or if meshes differ in the
    size of the axis. Maxima stay as they are too. The rewrite changes the order in which floats are added.

    If weights are sharded over the same axis themselves (FSDP), there are two choices, each with a price in memory. By
    default nothing is kept, as in `jax.jit`: weights are gathered, and gradients scattered, for each microbatch. With
    `chunk` or `ahead`, this pass gathers the weights before the loop, and `once-per-run` moves the gathers to the
    runs of tasks. With `chunk`, this pass sums and scatters the gradients after the loop, and `once-per-run` moves that
    to the runs. The module records the price of `step` in bytes per device, summed over all stages, whether
    or not `step` was chosen: `jaxpp.bytes = {gather_weights = ..., scatter_gradients = ...}`.

    Options:
        gather_weights: when weights sharded over the data axis are gathered. Once per `microbatch`; once per `chunk`, a
            run of tasks of one stage that follow one another on their mesh; `ahead` of the chunk, in the last task of
            the run before; or once per `step`.
        scatter_gradients: when the gradients of these weights are summed and scattered. Once per `microbatch`, once per
            `chunk` (as above), or once per `step`.

    Preconditions: `propagate-shardings` ran. A loop over one microbatch stays as it is.

    ```mlir
    %r = while(%sum = %zero) : tensor<8x8xf32>              ==>   %s = while(%sum = %zeros) : tensor<2x8x8xf32>
      // all-reduced: %x, %y are sharded over their rows            // on each device: its own rows
      { %g = dot_general %x, %y, contracting [0] x [0]              { %g = dot_general %x2, %y2, batching [0] x [0]
        %n = add %sum, %g }                                           %n = add %sum, %g }
                                                                  %r = reduce add %s across dimensions = [0]
    ```
    """

    gather_weights: str = "microbatch"
    scatter_gradients: str = "microbatch"

    def __post_init__(self) -> None:
        check_choice("gather_weights", self.gather_weights)
        check_choice("scatter_gradients", self.scatter_gradients)

    def run(self, module: ir.Module) -> None:
        """Delays the reductions of the loop of `module`.

        Raises:
            PassError: when there is no canonical loop; when `gather_weights` is `chunk` or `ahead`, but no product
                gathers a weight; or when `scatter_gradients` is `chunk`, but no gradient is scattered.
        """
        mesh, loop = MeshAxes.of(module), MicrobatchLoop.of(module)
        if mesh is None or loop.length == 1:
            return
        totals = [total for n in range(len(loop.op.operands)) if (total := _total(mesh, loop, n)) is not None]
        totals = [total for total in totals if uneven_axes(module).isdisjoint(total.axes)]
        gathers = find_gathers(mesh, loop)
        at.note_bytes(
            module.operation,
            gather_weights=sum(each.extra_bytes(mesh) for each in gathers),
            scatter_gradients=sum(_extra_bytes(mesh, loop, total) for total in totals),
        )
        scattered = [total for total in totals if _is_scattered(mesh, loop, total)]
        if self.scatter_gradients == "microbatch":
            totals = [total for total in totals if total not in scattered]
        if self.scatter_gradients == "chunk" and not scattered:
            raise no_scatter(mesh, loop)
        per_run = self.gather_weights in ("chunk", "ahead")
        if per_run:
            gathers = find_gathers(mesh, loop, rows=True)
            if not gathers:
                raise no_gather(mesh, loop, self.gather_weights)
        for each in gathers if self.gather_weights != "microbatch" else ():
            made = gather(mesh, loop, each)
            for op in made if per_run else ():
                op.attributes[at.PER_RUN] = ir.UnitAttr.get()
        if totals:
            _delay(mesh, loop, totals, scattered if self.scatter_gradients == "chunk" else ())


@dataclass(frozen=True, eq=False)
class _DelayedSum:
    """A carried value to which each iteration adds partial sums over the same axes.

    Attributes:
        position: the index of the carried value.
        adds: the additions, subtractions and sharding constraints that update it, in order.
        terms: the summands, one for each addition or subtraction.
    """

    position: int
    adds: list[ir.Operation]
    terms: list[PartialSum]

    @property
    def axes(self) -> tuple[str, ...]:
        return self.terms[0].axes


def _total(mesh: MeshAxes, loop: MicrobatchLoop, position: int) -> _DelayedSum | None:
    """Returns the sum that the loop carries at `position`, if all of its summands can be reduced after the loop."""
    total = _DelayedSum(position, [], [])
    for use in carried_updates(loop.op, position, (ADD, SUBTRACT, CONSTRAINT)):
        op = use.owner.operation
        if op.name != CONSTRAINT:
            term = partial_sums.find(mesh, op.operands[1 - use.operand_number], loop.body)
            if term is None or (total.terms and term.axes != total.axes):
                return None
            total.terms.append(term)
        total.adds.append(op)
    return total if total.terms else None


def _is_scattered(mesh: MeshAxes, loop: MicrobatchLoop, total: _DelayedSum) -> bool:
    """Whether the accumulator is sharded over an axis of the sum, so that one whole summand per device is larger."""
    return any(not set(axes).isdisjoint(total.axes) for axes in mesh.read(loop.op.results[total.position]))


def _extra_bytes(mesh: MeshAxes, loop: MicrobatchLoop, total: _DelayedSum) -> int:
    """Returns by how many bytes per device the accumulator grows with one summand per device."""
    result = loop.op.results[total.position]
    axes = mesh.read(result)
    return mesh.bytes_per_device(result.type, without(axes, total.axes)) - mesh.bytes_per_device(result.type, axes)


def _delay(mesh: MeshAxes, loop: MicrobatchLoop, totals: Sequence[_DelayedSum], per_run: Sequence[_DelayedSum]) -> None:
    """Gives the accumulators one summand per device, and sums these after the loop.

    Args:
        mesh: the axes of the mesh.
        loop: the loop.
        totals: the sums to rewrite.
        per_run: the sums among `totals` that `once-per-run` scatters once per run of tasks.
    """
    op = loop.op
    known = [at.value_sharding(result) or mesh.attribute(mesh.read(result)) for result in op.results]
    after = ir.InsertionPoint.after(op)
    for total in totals:
        stacker, number = Stacker(mesh, total.axes), total.position
        _in_body(loop.body, total, stacker)
        result, initial, sharding = op.results[number], op.operands[number], known[number]
        whole = result.type
        op.operands[number] = stacker.zeros(result, ir.InsertionPoint(op))
        known[number] = stacker.sharding_of(result)
        for value in (result, *(region.blocks[0].arguments[number] for region in op.regions)):
            value.set_type(stacker.type_of(whole))
        reduce = _reduce(result, whole, sharding, after)
        if total in per_run:
            reduce.attributes[at.PER_RUN] = ir.UnitAttr.get()
        summed = reduce.results[0]
        if not is_zero(initial):
            summed = sharded(stablehlo.add(initial, summed, ip=after, loc=result.location), sharding)
        result.replace_all_uses_except(summed, reduce)
    op.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get(known)


def _in_body(body: ir.Block, total: _DelayedSum, stacker: Stacker) -> None:
    """Makes the body add the summands of each device."""
    value: ir.Value = body.arguments[total.position]
    terms = iter(total.terms)
    for op in total.adds:
        operands = [value]
        if op.name != CONSTRAINT:
            operands.append(stacker.rewrite(next(terms)))
        value = stacker.like(op, operands, ir.InsertionPoint(op))
    terminator(body).operands[total.position] = value
    for op in (*reversed(total.adds), *(op for term in total.terms for op, _ in term.steps)):
        op.erase()


def _reduce(parts: ir.Value, type_: ir.Type, sharding: ir.Attribute, ip: ir.InsertionPoint) -> ir.Operation:
    """Returns the operation that sums `parts` over their first dimension."""
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(type_).element_type)
    with ip, parts.location:
        reduce = stablehlo.ReduceOp([type_], [parts], [constant(scalar, 0)], [0])
        block = ir.Block.create_at_start(reduce.regions[0], [scalar, scalar], [parts.location] * 2)
        with ir.InsertionPoint(block):
            stablehlo.return_([stablehlo.add(*block.arguments)])
        sharded(reduce.results[0], sharding)
    return reduce.operation

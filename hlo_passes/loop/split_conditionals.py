"""`split-conditionals`: splits a conditional over the state of all stages into one per part of the state."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import constant, remake, shardings
from jaxpp.ir.functions import (
    CONDITIONALS,
    blocks_of,
    body_of,
    has_side_effect,
    main_of,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import traits
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.values import defining_op


class SplitConditionals(Pass):
    """Cuts each conditional outside of the microbatch loop, so that each part can run on the mesh of its state.

    A loss scale that skips the step, `optax.apply_if_finite` and `optax.MultiSteps` choose between two versions of the
    whole optimizer state. As one operation that choice runs on one mesh, so the state of all other meshes travels there
    and back in every step. After the cut, only the condition is sent.

    - Light operations (elementwise operations and reductions, all that an optimizer does) take no longer than reading
      their operands. In a conditional of two branches the pass moves them before the conditional, where they always
      run. A `select` per result chooses between the branches, and XLA fuses it with the update. `jax.vmap` does the
      same to a `lax.cond`.
    - Expensive operations (matrix products, loops, library calls), and the operations that depend on them, stay in
      their branch. They run only if it is taken. Results that share no expensive operation get conditionals of their
      own.

    A conditional with a side effect stays whole, also if only an inner conditional has one. The pass moves nothing out
    of a conditional with more than two branches.

    Preconditions: `inline-calls` ran.

    ```mlir
    %0:2 = stablehlo.case(%i) ({           ==>   %2 = stablehlo.subtract %w0, %g0
      return %w0, %w1                            %3 = stablehlo.subtract %w1, %g1
    }, {                                         %4 = stablehlo.select %finite, %2, %w0
      %2 = stablehlo.subtract %w0, %g0           %5 = stablehlo.select %finite, %3, %w1
      %3 = stablehlo.subtract %w1, %g1
      return %2, %3
    })
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Cuts the conditionals of `@main`."""
        for op in operations(body_of(main_of(module))):
            if op.name in CONDITIONALS and not has_side_effect(op):
                _split(op)


def _split(op: ir.Operation) -> None:
    """Cuts one conditional, after those in its branches."""
    blocks = blocks_of(op)
    for block in blocks:
        for inner in operations(block):
            if inner.name in CONDITIONALS:
                _split(inner)
    if len(blocks) == 2:
        for block in blocks:
            _hoist(op, block)
    returned = [list(terminator(block).operands) for block in blocks]
    inside = {result for block in blocks for inner in operations(block) for result in inner.results}
    chosen: list[int] = []
    rest: list[int] = []
    for i in range(len(op.results)):
        known = len(blocks) == 2 and all(values[i] not in inside for values in returned)
        (chosen if known else rest).append(i)
    _select(op, chosen, returned)
    branches = [Numbered(operations(block)[:-1]) for block in blocks]
    parts = _parts(branches, returned, rest)
    if not chosen and len(parts) == 1:
        return
    for part in parts:
        _keep(op, branches, returned, part)
    op.erase()


def _is_light(op: ir.Operation) -> bool:
    return traits(op).light or boundary.is_barrier(op)


def _hoist(op: ir.Operation, block: ir.Block) -> None:
    """Moves light operations that depend on nothing expensive from a branch to before the conditional."""
    stuck: set[ir.Value] = set()
    for inner in operations(block)[:-1]:
        if _is_light(inner) and stuck.isdisjoint(operands_with_captures(inner)):
            inner.move_before(op)
        else:
            stuck.update(inner.results)


def _select(op: ir.Operation, numbers: Sequence[int], returned: Sequence[Sequence[ir.Value]]) -> None:
    """Replaces the results at `numbers`, whose values in both branches are made before the conditional, by selects."""
    if not numbers:
        return
    first, second = returned if op.name == "stablehlo.if" else reversed(returned)
    condition = _condition(op)
    for i in numbers:
        value = first[i]
        if value != second[i]:
            value = stablehlo.select(condition, first[i], second[i], ip=ir.InsertionPoint(op), loc=op.location)
        op.results[i].replace_all_uses_with(value)


def _condition(op: ir.Operation) -> ir.Value:
    """Returns a flag: true if a `case` takes its second branch (for any index but 0), or an `if` its first."""
    index = op.operands[0]
    if op.name == "stablehlo.if":
        return index
    maker = defining_op(index)
    flag = ir.IntegerType.get_signless(1)
    if maker is not None and maker.name == "stablehlo.convert":
        before = maker.operands[0]
        if ir.RankedTensorType(before.type).element_type == flag:
            return before
    with ir.InsertionPoint(op), op.location:
        zero = constant(index.type, 0)
        return stablehlo.compare(index, zero, stablehlo.ComparisonDirectionAttr.get("NE"))


def _parts(
    branches: Sequence[Numbered], returned: Sequence[Sequence[ir.Value]], numbers: Sequence[int]
) -> list[list[int]]:
    """Groups the results: two that need the same expensive operation are in one group."""
    part_of: dict[tuple[int, int], int] = {}
    parts: dict[int, list[int]] = {}
    for i in numbers:
        expensive = [
            (place, number)
            for place, (branch, values) in enumerate(zip(branches, returned, strict=True))
            for number in branch.behind([values[i]])
            if not _is_light(branch.ops[number])
        ]
        joined = sorted({part_of[op] for op in expensive if op in part_of})
        parts[i] = [j for part in joined for j in parts.pop(part)] + [i]
        part_of.update(dict.fromkeys(expensive, i))
        for op, part in part_of.items():
            if part in joined:
                part_of[op] = i
    return list(parts.values())


def _keep(
    op: ir.Operation, branches: Sequence[Numbered], returned: Sequence[Sequence[ir.Value]], part: Sequence[int]
) -> None:
    """Makes a separate conditional for the results of one group."""
    known = shardings([at.value_sharding(op.results[i]) for i in part])
    new = remake(op, types=[op.results[i].type for i in part], changed=known, empty=True)
    for region, branch, values in zip(new.regions, branches, returned, strict=True):
        wanted = [values[i] for i in part]
        copies: dict[ir.Value, ir.Value] = {}
        into = ir.Block.create_at_start(region)
        clone_into(into, [branch.ops[number] for number in branch.behind(wanted)], copies)
        stablehlo.return_([copies.get(value, value) for value in wanted], ip=ir.InsertionPoint(into), loc=op.location)
    for i, result in zip(part, new.results, strict=True):
        op.results[i].replace_all_uses_with(result)

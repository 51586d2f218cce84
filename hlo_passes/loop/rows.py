"""Values in the loop that are put together from rows: into which rows they can be cut, and these rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.constant_arrays import constant_array, is_all_true
from jaxpp.hlo_passes.ir.values import defining_op, is_zero
from jaxpp.hlo_passes.loop.forward_rows import rows_of
from jaxpp.hlo_passes.loop.indexed_rows import scattered_rows

_ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in ("add convert divide multiply negate subtract".split()))

Cut = tuple[int, int]
"""(dimension, number of rows)."""


def cut_of(value: ir.Value, body: ir.Block) -> Cut | None:
    """How `value` is cut into rows; None if it is not.

    It is if it is a concatenation of equal rows, a sum of padded rows, or an elementwise function or a reshape of such
    values.
    """
    op = producer(value, body)
    if op is None:
        return None
    padded = _padded(value, body)
    if padded is not None:
        return _tiles(padded, ir.RankedTensorType(value.type).shape)
    if op.name == "stablehlo.scatter":
        chunks = _chunks(op, body)
        return None if chunks is None else (0, ir.RankedTensorType(value.type).shape[0] // chunks.size)
    if op.name == "stablehlo.select" and is_all_true(op.operands[0]):
        return cut_of(op.operands[1], body)
    if op.name == "stablehlo.concatenate":
        dimension = ir.IntegerAttr(op.attributes["dimension"]).value
        equal = len({ir.RankedTensorType(operand.type).shape[dimension] for operand in op.operands}) == 1
        return (dimension, len(op.operands)) if equal else None
    if op.name == "sdy.sharding_constraint":
        return cut_of(op.operands[0], body)
    if op.name == "stablehlo.reshape":
        found, shape = cut_of(op.operands[0], body), ir.RankedTensorType(value.type).shape
        # Row-major: what is cut along the first dimension stays in one piece.
        return found if found and found[0] == 0 and shape and shape[0] % found[1] == 0 else None
    if op.name not in _ELEMENTWISE:
        return None
    known = [cut for operand in op.operands if (cut := cut_of(operand, body)) is not None]
    if not known or len({dimension for dimension, _ in known}) > 1:
        return None
    finest = max(known)
    return finest if all(finest[1] % rows == 0 for _, rows in known) else None


@dataclass(frozen=True)
class _Chunks:
    """What a scatter adds up: of each `size` rows of what it is given, in order, the number of the `size` rows of the
    stack that they become a part of.
    """

    size: int
    places: list[int]


def _chunks(scatter: ir.Operation, body: ir.Block) -> _Chunks | None:
    """The largest chunks that stay together, and in one piece of what the scatter is given."""
    rows, given = scattered_rows(scatter), cut_of(scatter.operands[2], body)
    if not rows or given is None or given[0] != 0 or len(rows) % given[1]:
        return None
    piece, total = len(rows) // given[1], ir.RankedTensorType(scatter.results[0].type).shape[0]
    for size in range(piece, 0, -1):
        starts = rows[::size]
        together = [start + k for start in starts for k in range(size)] == rows
        if piece % size == 0 and total % size == 0 and together and not any(start % size for start in starts):
            return _Chunks(size, [start // size for start in starts])
    return None


def rows_in(value: ir.Value, body: ir.Block, cut: Cut, before: ir.Operation) -> list[ir.Value]:
    """The rows of `value`, which `cut_of` cuts so, or into a divisor of that number, or not at all."""
    own, ip = cut_of(value, body), ir.InsertionPoint(before)
    if own is None:
        return _finer([value], cut[1], cut[0], ip)
    rows = _own_rows(value, body, own, before)
    return rows if own == cut else _finer(rows, cut[1] // own[1], cut[0], ip)


def _finer(rows: Sequence[ir.Value], parts: int, dimension: int, ip: ir.InsertionPoint) -> list[ir.Value]:
    """Each of the rows in so many parts along `dimension`."""
    if parts == 1:
        return list(rows)
    found: list[ir.Value] = []
    for row in rows:
        size = ir.RankedTensorType(row.type).shape[dimension] // parts
        found += [rows_of(row, k * size, size, ip, row.location, dimension=dimension) for k in range(parts)]
    return found


def _scattered(op: ir.Operation, body: ir.Block, before: ir.Operation) -> list[ir.Value]:
    """The chunks of what a scatter makes: sums of those that it is given, zeros where there is none."""
    chunks, given = _chunks(op, body), cut_of(op.operands[2], body)
    assert chunks is not None
    assert given is not None
    ip = ir.InsertionPoint(before)
    type_ = ir.RankedTensorType(op.results[0].type)
    _, *shape = type_.shape
    rows = len(chunks.places) * chunks.size // given[1]
    flat = ir.RankedTensorType.get([rows, *shape], type_.element_type)
    pieces = [reshaped(piece, flat, ip) for piece in rows_in(op.operands[2], body, given, before)]
    found = list(zip(chunks.places, _finer(pieces, rows // chunks.size, 0, ip), strict=True))
    missing = set(range(type_.shape[0] // chunks.size)).difference(chunks.places)
    found += [(k, rows_of(op.operands[0], k * chunks.size, chunks.size, ip, op.location)) for k in sorted(missing)]
    return _sums(found, ip)


def reshaped(value: ir.Value, type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """`value` in the shape of `type_`: itself if it has that."""
    if value.type == type_:
        return value
    made = ir.Operation.create("stablehlo.reshape", results=[type_], operands=[value], ip=ip, loc=value.location)
    return made.results[0]


def _own_rows(value: ir.Value, body: ir.Block, cut: Cut, before: ir.Operation) -> list[ir.Value]:
    """The rows of `value`, which `cut_of` cuts exactly so."""
    op = producer(value, body)
    assert op is not None
    if op.name == "stablehlo.scatter":
        return _scattered(op, body, before)
    if op.name == "stablehlo.select":
        return rows_in(op.operands[1], body, cut, before)
    if op.name == "stablehlo.concatenate":
        return list(op.operands)
    if op.name == "sdy.sharding_constraint":
        return rows_in(op.operands[0], body, cut, before)
    ip = ir.InsertionPoint(before)
    padded = _padded(value, body)
    if padded is not None:
        return _sums([(offset, row) for _, offset, row in padded], ip)
    each: list[Sequence[ir.Value]] = []
    for operand in op.operands:
        scalar = splat(operand)
        if scalar is None:
            each.append(rows_in(operand, body, cut, before))
        else:
            each.append([broadcast(scalar, row_type(operand.type, cut), ip)] * cut[1])
    attributes = {name: op.attributes[name] for name in op.attributes if name != at.SHARDING}
    type_ = row_type(value.type, cut)
    return [
        ir.Operation.create(
            op.name, results=[type_], operands=list(operands), attributes=attributes, ip=ip, loc=op.location
        ).results[0]
        for operands in zip(*each, strict=True)
    ]


Padded = list[tuple[int, int, ir.Value]]
"""(dimension, offset, what is there) of each of the padded values that are added up."""


def _padded(value: ir.Value, body: ir.Block) -> Padded | None:
    """The summands of a sum of values padded with zeros, or written over zeros: the gradient of `w[0]`, `w[1]`..."""
    work, found = [value], Padded()
    while work:
        summand = work.pop()
        op = producer(constrained(summand), body)
        if op is not None and op.name == "stablehlo.add":
            work += op.operands
        elif not (is_zero(summand) and (found or work)):
            row = None if op is None else _pad(op) or _written(op)
            if row is None:
                return None
            found.append(row)
    return found or None


def _pad(op: ir.Operation) -> tuple[int, int, ir.Value] | None:
    """Where a pad with zeros puts its operand, if that has its full size along all dimensions but one."""
    if op.name != "stablehlo.pad" or not is_zero(op.operands[1]):
        return None
    low, high, interior = (
        list(ir.DenseI64ArrayAttr(op.attributes[name]))
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    dimensions = [d for d, edges in enumerate(zip(low, high, strict=True)) if any(edges)]
    if len(dimensions) != 1 or any(interior) or min(low + high) < 0:
        return None
    return dimensions[0], low[dimensions[0]], op.operands[0]


def _written(op: ir.Operation) -> tuple[int, int, ir.Value] | None:
    """Where `op` writes a value over zeros, if that has its full size along all dimensions but one."""
    if op.name != "stablehlo.dynamic_update_slice" or not is_zero(op.operands[0]):
        return None
    whole, update, *starts = op.operands
    sizes = zip(ir.RankedTensorType(whole.type).shape, ir.RankedTensorType(update.type).shape, strict=True)
    smaller = [(d, most - size) for d, (most, size) in enumerate(sizes) if size < most]
    start = constant_array(starts[smaller[0][0]]) if len(smaller) == 1 else None
    if start is None:
        return None
    dimension, last = smaller[0]
    return dimension, min(max(int(start), 0), last), update


def _tiles(padded: Padded, shape: Sequence[int]) -> Cut | None:
    """The cut whose rows are where values are padded to; None if they don't fill `shape` evenly."""
    places = {(dimension, ir.RankedTensorType(row.type).shape[dimension]) for dimension, _, row in padded}
    if len(places) != 1:
        return None
    dimension, size = places.pop()
    tiled = {offset for _, offset, _ in padded} == set(range(0, shape[dimension], size))
    return (dimension, shape[dimension] // size) if tiled and shape[dimension] % size == 0 else None


def _sums(rows: Sequence[tuple[int, ir.Value]], ip: ir.InsertionPoint) -> list[ir.Value]:
    """The rows in the order of their offsets; those of one offset are added up."""
    sums: dict[int, ir.Value] = {}
    for offset, row in rows:
        if offset in sums:
            made = ir.Operation.create(
                "stablehlo.add", results=[row.type], operands=[sums[offset], row], ip=ip, loc=row.location
            )
            row = made.results[0]
        sums[offset] = row
    return [sums[offset] for offset in sorted(sums)]


def splat(value: ir.Value) -> ir.Value | None:
    """The scalar of which `value` is a broadcast."""
    op = defining_op(constrained(value))
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    scalar = op.operands[0]
    return scalar if ir.RankedTensorType(scalar.type).rank == 0 else None


def broadcast(scalar: ir.Value, type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """`scalar` everywhere."""
    made = ir.Operation.create(
        "stablehlo.broadcast_in_dim",
        results=[type_],
        operands=[scalar],
        attributes={"broadcast_dimensions": at.i64s([])},
        ip=ip,
        loc=scalar.location,
    )
    return made.results[0]


def row_type(type_: ir.Type, cut: Cut) -> ir.RankedTensorType:
    """The type of one row."""
    whole = ir.RankedTensorType(type_)
    shape = list(whole.shape)
    shape[cut[0]] //= cut[1]
    return ir.RankedTensorType.get(shape, whole.element_type)


def constrained(value: ir.Value) -> ir.Value:
    """What `value` was before constraints on its sharding."""
    op = defining_op(value)
    while op is not None and op.name == "sdy.sharding_constraint":
        value = op.operands[0]
        op = defining_op(value)
    return value


def producer(value: ir.Value, body: ir.Block) -> ir.Operation | None:
    """The operation of `body` that makes `value`."""
    op = defining_op(value)
    return op if op is not None and op.block == body else None

"""Values in pieces: along one dimension, a value consists of rows of other values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.hlo_passes.loop.transfer_functions import Along, Mapped, Moved, Rows, transfer_function
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import clone_as, concatenation, is_splat, is_uniform, reshaped, resized, rows_of, with_size
from jaxpp.ir.values import closure, defining_op, is_zero


class Piece(NamedTuple):
    """A piece of a value: its `size` rows from `start` on are `rows` of another value."""

    start: int
    size: int
    rows: Rows

    def part(self, start: int, size: int) -> "Piece | None":
        """Returns the part of this piece among `size` rows from `start` on; None if that cuts a row of the source."""
        low, high = max(start, self.start), min(start + size, self.start + self.size)
        first, count = (low - self.start) * self.rows.size, (high - low) * self.rows.size
        if first % self.size or count % self.size:
            return None
        source, dimension, before, _ = self.rows
        return Piece(low, high - low, Rows(source, dimension, before + first // self.size, count // self.size))


@dataclass(frozen=True)
class Pieces:
    """The pieces of a value along `dimension`, in order and without gaps."""

    dimension: int
    pieces: Sequence[Piece]

    def part(self, start: int, size: int) -> list[Piece] | None:
        """Returns the pieces of `size` rows from `start` on; None if that would cut a row of a source."""
        found: list[Piece] = []
        for each in self.pieces:
            if each.start >= start + size:
                break
            if each.start >= start and each.start + each.size <= start + size:
                found.append(each)
            elif each.start + each.size > start:
                piece = each.part(start, size)
                if piece is None:
                    return None
                found.append(piece)
        return found

    def joined(self, start: int, size: int) -> list[Piece] | None:
        """Returns the pieces of `part`, merged where they follow one another in the same source; None as `part`."""
        found: list[Piece] = []
        for piece in self.part(start, size) or ():
            merged = _merged(found[-1], piece) if found else None
            found[-1:] = [*found[-1:], piece] if merged is None else [merged]
        return found or None


def _merged(one: Piece, other: Piece) -> Piece | None:
    """Returns the two pieces as one, if they also follow one another in their source; otherwise None."""
    (source, dimension, first, count), (following, also, then, more) = one.rows, other.rows
    if source != following or dimension != also or count * other.size != more * one.size:
        return None
    if not shape_of(source):
        return Piece(one.start, one.size + other.size, Rows(source, dimension, 0, count + more))
    if first + count != then:
        return None
    return Piece(one.start, one.size + other.size, Rows(source, dimension, first, count + more))


class Evaluator:
    """Finds the pieces of values on demand, and makes the rows that a caller wants.

    `transfer_functions.py` says how the rows of a result follow from those of the operands. A new operation stands
    right before the operation of which it computes a part. Old operations stay: the caller erases those without uses.

    Args:
        given: values with known pieces; the operations that make them are not looked at.
    """

    def __init__(self, given: Mapping[ir.Value, Pieces] | None = None) -> None:
        self._known: dict[Along, Pieces | None] = {}
        for value, pieces in (given or {}).items():
            self._known[value, pieces.dimension] = pieces
        self._said: dict[Along, Moved | Mapped | None] = {}
        self._mapped: dict[Along, Mapped] = {}
        self._parts: dict[Rows, Rows] = {}
        self._whole: dict[tuple[ir.Value, int, tuple[ir.Value, ...]], ir.Value] = {}

    def pieces(self, value: ir.Value, dimension: int = 0) -> Pieces | None:
        """Returns the pieces of `value` along `dimension`; None if they are unknown."""
        work = [(value, dimension)]
        while work:
            key = work[-1]
            if key in self._known:
                work.pop()
                continue
            if key not in self._said:
                self._said[key] = transfer_function(*key)
            found = self._said[key]
            if found is None:
                self._known[key] = None
                continue
            needs = [each for each in found.operands if each is not None and each not in self._known]
            work += needs
            if not needs:
                self._known[key] = self._map(key, found) if isinstance(found, Mapped) else self._move(key, found)
        return self._known[value, dimension]

    def sources(self, value: ir.Value, dimension: int) -> list[ir.Value]:
        """Returns the values from which `value` is computed row by row: their rows are taken, or all of them are read.

        `pieces` must have been called for `value` and `dimension`.
        """

        def following(key: Along) -> list[Along]:
            found = self._said.get(key)
            return [] if found is None else [each for each in found.operands if each is not None]

        sources: list[ir.Value] = []
        for key in closure([(value, dimension)], following):
            found, op = self._said.get(key), defining_op(key[0])
            if not found:
                sources.append(key[0])
            elif isinstance(found, Mapped) and op is not None:
                sources += [each for each, along in zip(op.operands, found.operands, strict=True) if along is None]
        return sources

    def _map(self, key: Along, mapped: Mapped) -> Pieces | None:
        """Returns the pieces of a value that is computed row by row; one begins wherever one of an operand begins."""
        found = [pieces for each in mapped.operands if each and (pieces := self._known[each]) is not None]
        if not found:
            return None
        self._mapped[key] = mapped
        value, dimension = key
        starts = sorted({piece.start for pieces in found for piece in pieces.pieces})
        ends = [*starts[1:], shape_of(value)[dimension]]
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        rows = [Rows(value, dimension, start, size) for start, size in zip(starts, sizes, strict=True)]
        return Pieces(dimension, [Piece(*each) for each in zip(starts, sizes, rows, strict=True)])

    def _move(self, key: Along, moved: Moved) -> Pieces | None:
        """Returns the pieces of a value that consists of rows of its operands."""
        known = [self._known.get((rows.source, rows.dimension)) for _, rows in moved.parts]
        if not moved.is_new and not any(each is not None for each in known):
            return None
        found, start = list[Piece](), 0
        for (size, rows), inner in zip(moved.parts, known, strict=True):
            found += self._moved(Piece(start, size, rows), inner, key[0])
            start += size
        return Pieces(key[1], found)

    def _moved(self, piece: Piece, known: Pieces | None, value: ir.Value) -> Iterator[Piece]:
        """Yields the pieces that replace one piece of `value`; pieces that together form one row are concatenated."""
        inner = None if known is None else known.part(piece.rows.first, piece.rows.size)
        if inner is None:
            yield piece
            return
        if (piece.start, piece.size) == piece.rows[2:]:
            yield from inner  # same rows in the source, as most rows of a stack after a write: a fast path
            return
        group, start, (size, count) = list[Piece](), 0, (piece.size, piece.rows.size)
        for each in inner:
            group.append(each)
            end = each.start + each.size - piece.rows.first
            if end * size % count == 0:
                rows = each.rows
                if len(group) > 1:
                    op = defining_op(value)
                    assert op is not None, "only operations cut rows"
                    rows = self._joined(self._resolved(group), piece.rows.dimension, piece.rows.source.type, op)
                first, last = start * size // count, end * size // count
                yield Piece(piece.start + first, last - first, rows)
                group, start = [], end

    def rows(self, value: ir.Value, start: int, size: int, before: ir.Operation, dimension: int = 0) -> Rows:
        """Returns `size` rows of `value` from `start` on, as rows of one value; several pieces are concatenated at
        `before`.
        """
        known = self.pieces(value, dimension)
        found = None if known is None else known.joined(start, size)
        if found is None:
            return Rows(value, dimension, start, size)
        found = self._resolved(found)
        return found[0].rows if len(found) == 1 else self._joined(found, dimension, value.type, before)

    def _resolved(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Returns the pieces, with each part of a computed value replaced by a value that is only that part."""
        self._compute([part for piece in pieces if (part := self._unknown(piece.rows))])
        return [Piece(start, size, self._parts.get(rows, rows)) for start, size, rows in pieces]

    def make(self, value: ir.Value, start: int, size: int, before: ir.Operation, dimension: int = 0) -> ir.Value:
        """Makes a value of `size` rows of `value` from `start` on."""
        rows = self.rows(value, start, size, before, dimension)
        return _made(rows, with_size(value.type, dimension, size), ir.InsertionPoint(before))

    def _joined(self, pieces: Sequence[Piece], dimension: int, type_: ir.Type, before: ir.Operation) -> Rows:
        ip = ir.InsertionPoint(before)
        made = [_made(piece.rows, with_size(type_, dimension, piece.size), ip) for piece in pieces]
        size = sum(piece.size for piece in pieces)
        return Rows(concatenation(made, dimension, ip), dimension, 0, size)

    def _unknown(self, rows: Rows) -> Rows | None:
        """Returns `rows` if they are a part of a computed value and not computed yet; otherwise None."""
        source, dimension, _, size = rows
        if rows in self._parts or (source, dimension) not in self._mapped or size == shape_of(source)[dimension]:
            return None
        return rows

    def _compute(self, parts: Sequence[Rows]) -> None:
        """Computes parts of values after the parts of their operands; without recursion, as chains may be long."""
        work = list(parts)
        while work:
            key = work[-1]
            if key in self._parts:
                work.pop()
                continue
            needs: list[Rows] = []
            for operand in self._mapped[key.source, key.dimension].operands:
                known = None if operand is None else self._known[operand]
                found = None if known is None else known.joined(key.first, key.size)
                needs += [part for piece in found or () if (part := self._unknown(piece.rows))]
            work += needs
            if not needs:
                self._parts[key] = self._computed(key)

    def _computed(self, part: Rows) -> Rows:
        """Computes rows of a value from the same rows of its operands."""
        value, dimension, first, size = part
        op, mapped = defining_op(value), self._mapped[value, dimension]
        assert op is not None
        along = {number: each for number, each in enumerate(mapped.operands) if each is not None}
        rows = {number: self.rows(each, first, size, op, d) for number, (each, d) in along.items()}
        if op.name == "stablehlo.add" and any(is_zero(each.source) for each in rows.values()):
            return next((each for each in rows.values() if not is_zero(each.source)), rows[0])
        lifted = self._lifted(op, mapped, rows, part)
        if lifted is not None:
            return lifted
        ip, operands = ir.InsertionPoint(op), list(op.operands)
        for number, (operand, d) in along.items():
            operands[number] = _made(rows[number], with_size(operand.type, d, size), ip)
        return Rows(clone_as(op, operands, with_size(value.type, dimension, size), ip), dimension, 0, size)

    def _lifted(self, op: ir.Operation, mapped: Mapped, rows: Mapping[int, Rows], part: Rows) -> Rows | None:
        """Applies `op` to whole sources instead of to rows, if all operands are the same rows of sources of one shape.

        Returns None if they are not.
        """
        before, d = list(op.operands), {number: each[1] for number, each in enumerate(mapped.operands) if each}
        cut = {number: each for number, each in rows.items() if not _fills(each, before[number])}
        if len({(each[1:], tuple(shape_of(each.source))) for each in cut.values()}) != 1:
            return None
        first = next(iter(cut.values()))
        shape, along = shape_of(first.source), first.dimension
        fits = all(
            _row_shape(each.source, along) == _row_shape(before[number], d[number]) for number, each in cut.items()
        )
        if not fits and not (mapped.keeps_shape and all(is_splat(rows[n].source) for n in rows.keys() - cut.keys())):
            return None

        def resulting(value: ir.Value, dimension: int) -> ir.RankedTensorType:
            type_ = with_size(value.type, dimension, shape[along])
            return type_ if fits else ir.RankedTensorType.get(shape, type_.element_type)

        sources = tuple(rows[number].source if number in rows else each for number, each in enumerate(before))
        dimension = part.dimension if fits else along
        if sources == tuple(before):
            return part
        if (part.source, dimension, sources) not in self._whole:
            ip, operands = ir.InsertionPoint(op), list(sources)
            for number in rows.keys() - cut.keys():
                operands[number] = resized(sources[number], resulting(before[number], d[number]), ip)
            made = clone_as(op, operands, resulting(part.source, part.dimension), ip)
            self._whole[part.source, dimension, sources] = made
        return Rows(self._whole[part.source, dimension, sources], dimension, first.first, first.size)


def _fills(rows: Rows, operand: ir.Value) -> bool:
    """Returns whether `operand`, to which the rows belong, is uniform, so that it may have any number of rows."""
    return not shape_of(rows.source) or (rows.source == operand and is_uniform(operand, rows.dimension))


def _row_shape(value: ir.Value, dimension: int) -> list[int]:
    shape = shape_of(value)
    return shape[:dimension] + shape[dimension + 1 :]


def _made(rows: Rows, type_: ir.RankedTensorType, ip: ir.InsertionPoint) -> ir.Value:
    """Returns the rows as a value of `type_`."""
    source, dimension, first, size = rows
    if source.type == type_:
        return source
    row = list(type_.shape[:dimension]) + list(type_.shape[dimension + 1 :])
    if not shape_of(source) or (is_uniform(source, dimension) and _row_shape(source, dimension) == row):
        return resized(source, type_, ip)
    return reshaped(rows_of(source, dimension, first, size, ip), type_, ip)

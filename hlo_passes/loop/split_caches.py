"""`split-caches`: a slice of the sequence hands on the rows that it wrote instead of the whole array."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import constant, erase_dead, split_barrier
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.functions import operations, program_order, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import concatenation, reshaped, rows_of, slice_bounds, with_size
from jaxpp.ir.tasks import StageTask, copy_into, op_of, set_task, task_of, task_of_value
from jaxpp.ir.values import block_of, closure, defining_op, is_used, is_zero


class SplitCaches(Pass):
    """Lets each slice hand on only the rows of keys and values that it wrote; tasks assemble the arrays that they read.

    A slice writes its rows into an array of the whole sequence. The result is a new array for each slice, so its keys
    and values of the whole sequence would stay alive until the backward of that slice. This pass makes the rows of each
    slice a value of their own. A task that reads the array of another task concatenates the rows of all slices so far,
    with zeros after them. A stage thus keeps the rows of each slice once, however many slices read them. Their last use
    is the backward of the slice that made them.

    The reading slice writes its own rows again, over zeros, so that all slices of a stage stay one program. A task that
    reads a part of the array along the sequence takes only the rows of that part. A stage mark that also holds other
    values drops the array. An array stays as it is if it does not start from zeros. It also stays if a slice writes at
    an unknown position, or if slices write the same rows twice.

    Preconditions: `assign-stages` ran. A schedule without slices stays as it is.

    ```mlir
    // forward_0, of slice 0                                   // forward_0, of slice 0
    %k0 = dynamic_update_slice %zeros, %r0, 0, %c0      ==>    %a0 = concatenate %z0, %z1
                                                               %k0 = dynamic_update_slice %a0, %r0, 0, %c0
    // forward_1, of slice 1                                   // forward_1, of slice 1
    %k1 = dynamic_update_slice %k0, %r1, 0, %c1                %a1 = concatenate %r0, %z1
                                                               %k1 = dynamic_update_slice %a1, %r1, 0, %c1
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Splits the arrays of the loop of `module`. Raises PassError when there is no canonical loop."""
        loop = MicrobatchLoop.of(module)
        if loop.slices == 1:
            return
        caches = _find(loop)
        if not caches:
            return
        for op in operations(loop.body):
            _unmark(op, caches)
        reading = _Reading(loop, caches)
        for value in caches:
            reading.replace(value)
        _carry_rows(loop, caches)
        erase_dead(MicrobatchLoop.of(module).body)


@dataclass(frozen=True)
class _Write:
    """Rows that a slice writes.

    Attributes:
        rows: the rows.
        index: their position along the sequence.
        number: the index of the slice.
    """

    rows: ir.Value
    index: ir.Value
    number: int


@dataclass(eq=False)
class _Family:
    """All arrays that slices make of one array of zeros.

    Attributes:
        before: the product of the dimensions before the sequence, the same in all views of the array.
        length: the length of the sequence.
        sizes: for each position at which a slice writes, the number of rows written there.
        zeros: for each of these positions, the value that stands for rows that are not written yet.
    """

    before: int
    length: int
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    zeros: dict[int, ir.Value] = field(default_factory=dict[int, ir.Value])

    def axis(self, shape: Sequence[int]) -> int | None:
        """Returns the sequence dimension of a view with this shape; None if it has none."""
        return next((k for k, size in enumerate(shape) if size == self.length and prod(shape[:k]) == self.before), None)

    @property
    def is_cut(self) -> bool:
        """Whether several slices together write every row exactly once."""
        ends = [start + size for start, size in sorted(self.sizes.items())]
        return len(ends) > 1 and [0, *ends[:-1]] == sorted(self.sizes) and ends[-1] == self.length


@dataclass(frozen=True)
class _Cache:
    """An array of a family: zeros, except for the writes at these positions."""

    family: _Family
    writes: Mapping[int, _Write]


def _find(loop: MicrobatchLoop) -> dict[ir.Value, _Cache]:
    """Returns the arrays that start from zeros and of which each slice writes different rows."""
    constants = Constants({argument: start for argument, (start, step) in loop.counts.items() if step == 0})
    found: dict[ir.Value, _Cache] = {}
    broken: set[_Family] = set()
    for op in operations(loop.body)[:-1]:
        old = found.get(op.operands[0]) if op.operands else None
        if op.name == "stablehlo.dynamic_update_slice":
            cache = _written(loop, op, found, constants)
            if cache is not None:
                found[op.results[0]] = cache
            elif old is not None:
                broken.add(old.family)
        elif op.name == "stablehlo.reshape":
            if old is None and _is_first(loop, op.operands[0]):
                found[op.results[0]] = found.setdefault(op.operands[0], _Cache(_Family(0, 0), {}))
            elif old is not None:
                found[op.results[0]] = old
    return {value: cache for value, cache in found.items() if _is_split(value, cache) and cache.family not in broken}


def _is_first(loop: MicrobatchLoop, value: ir.Value) -> bool:
    """Whether `value` is an array of zeros that no task makes."""
    return is_zero(value) and (block_of(value) != loop.body or task_of_value(value) is None)


def _is_split(value: ir.Value, cache: _Cache) -> bool:
    return cache.family.is_cut and cache.family.axis(shape_of(value)) is not None


def _written(
    loop: MicrobatchLoop, op: ir.Operation, found: dict[ir.Value, _Cache], constants: Constants
) -> _Cache | None:
    """Returns the array that results when `op` writes rows; None unless a task writes them at a known position of a
    cache.
    """
    base, rows, *indices = op.operands
    shape, part, task = shape_of(base), shape_of(rows), task_of(op)
    axes = [k for k, (size, whole) in enumerate(zip(part, shape, strict=True)) if size != whole]
    starts = [constants.scalar(index) for index in indices]
    if len(axes) != 1 or task is None or any(start != 0 for k, start in enumerate(starts) if k != axes[0]):
        return None
    axis, start = axes[0], starts[axes[0]]
    if base not in found and _is_first(loop, base):
        found[base] = _Cache(_Family(0, 0), {})
    cache = found.get(base)
    if cache is None or start is None:
        return None
    family = cache.family
    if not family.length:
        family.before, family.length = prod(shape[:axis]), shape[axis]
    if family.axis(shape) != axis or family.sizes.setdefault(start, part[axis]) != part[axis]:
        return None
    write = _Write(rows, indices[axis], task.stage // loop.stages_per_slice)
    return _Cache(family, {**cache.writes, start: write})


def _unmark(op: ir.Operation, caches: Mapping[ir.Value, _Cache]) -> None:
    """Removes the arrays from a stage mark: the tasks after the mark already have their rows."""
    if not boundary.is_mark(op):
        return
    rest = [number for number, value in enumerate(op.operands) if value not in caches]
    if rest and len(rest) < len(op.operands):
        for value, result in zip(op.operands, op.results, strict=True):
            if value in caches:
                result.replace_all_uses_with(value)
        split_barrier(op, [rest])


def _carry_rows(loop: MicrobatchLoop, caches: Mapping[ir.Value, _Cache]) -> None:
    """Makes the loop carry the rows of the last slice instead of its array, if nothing uses the carried value.

    The last slice then hands on the same kind of value as all other slices.
    """
    op, end = loop.op, terminator(loop.body)
    for position, value in enumerate(end.operands):
        cache = caches.get(value)
        carried = [*(region.blocks[0].arguments[position] for region in op.regions), op.results[position]]
        if cache is None or not cache.writes or any(map(is_used, carried)):
            continue
        start, write = max(cache.writes.items(), key=lambda item: item[1].number)
        end.operands[position] = _of_a_task(loop, write.rows, value)
        op.operands[position] = cache.family.zeros[start]
        for each in carried:
            each.set_type(write.rows.type)


def _of_a_task(loop: MicrobatchLoop, rows: ir.Value, array: ir.Value) -> ir.Value:
    """Returns `rows`, or, if no task makes them (a part of the batch), a copy made in the task of `array`."""
    op, task = defining_op(rows), task_of_value(array)
    if op is None or op.block != loop.body or task is None or task_of(op) is not None:
        return rows
    return copy_into(task, op).results[ir.OpResult(rows).result_number]


class _Reading:
    """Makes each task assemble the arrays of other tasks that it reads."""

    def __init__(self, loop: MicrobatchLoop, caches: Mapping[ir.Value, _Cache]) -> None:
        self._loop, self._caches = loop, caches
        before = (at.integer(op, at.APART) for op in operations(loop.op.block))
        self._apart = 1 + max((number for number in before if number is not None), default=-1)
        for value, cache in caches.items():
            self._make_zeros(value, cache)

    def _make_zeros(self, value: ir.Value, cache: _Cache) -> None:
        """Makes the zeros for rows that are not written yet, before the loop.

        Each has its own `jaxpp.apart`, so that Shardy does not merge equal ones.
        """
        zeros = cache.family.zeros
        for start, write in cache.writes.items():
            if start not in zeros:
                zeros[start] = constant(write.rows.type, 0, ip=ir.InsertionPoint(self._loop.op), loc=value.location)
                ir.OpResult(zeros[start]).owner.attributes[at.APART] = at.i64(self._apart)
                self._apart += 1

    def replace(self, value: ir.Value) -> None:
        """Replaces `value` in all tasks other than the one that makes it."""
        maker = task_of_value(value)
        uses = [(op_of(self._loop.body, use.owner.operation), use) for use in value.uses]
        others = [(user, use) for user, use in uses if task_of(user) not in (None, maker)]
        known: dict[StageTask, ir.Value] = {}
        for user, use in sorted(others, key=lambda each: program_order(each[0])):
            op, number, task = use.owner.operation, use.operand_number, task_of(user)
            assert task is not None
            if op == user and (part := self._part(value, user, task)) is not None:
                op.results[0].replace_all_uses_with(part)
                continue
            if task not in known:
                known[task] = self._whole(value, user, task)
            op.operands[number] = known[task]

    def _whole(self, value: ir.Value, user: ir.Operation, task: StageTask) -> ir.Value:
        """Returns the array for `user`: the rows of other slices, with the rows of its own slice written over them."""
        cache, shape, ip = self._caches[value], shape_of(value), ir.InsertionPoint(user)
        axis, sizes = cache.family.axis(shape), cache.family.sizes
        assert axis is not None, "each view of the array has the sequence"
        own = {
            start: write
            for start, write in cache.writes.items()
            if write.number == task.stage // self._loop.stages_per_slice and task_of_value(write.index) is None
        }
        rows = [self._rows(value, axis, start, start not in own, ip) for start in sorted(sizes)]
        whole = concatenation(rows, axis, ip)
        for start, write in own.items():
            written, zero = self._rows(value, axis, start, True, ip), constant(write.index.type, 0, ip=ip)
            indices = [write.index if k == axis else zero for k in range(len(shape))]
            whole = stablehlo.dynamic_update_slice(whole, written, indices, ip=ip)
        return self._assigned(whole, cache, task)

    def _part(self, value: ir.Value, user: ir.Operation, task: StageTask) -> ir.Value | None:
        """Returns the rows that `user` takes, made without the whole array; None unless it slices along the sequence
        only.
        """
        cache, shape, ip = self._caches[value], shape_of(value), ir.InsertionPoint(user)
        axis, bounds = cache.family.axis(shape), slice_bounds(user)
        if user.name != "stablehlo.slice" or axis is None or bounds is None:
            return None
        if any(each != (0, shape[k]) for k, each in enumerate(bounds) if k != axis):
            return None
        first, taken = bounds[axis]
        parts: list[ir.Value] = []
        for start, size in sorted(cache.family.sizes.items()):
            low, high = max(first - start, 0), min(first + taken - start, size)
            if low < high:
                parts.append(rows_of(self._rows(value, axis, start, True, ip), axis, low, high - low, ip))
        return self._assigned(concatenation(parts, axis, ip), cache, task)

    def _rows(self, value: ir.Value, axis: int, start: int, is_written: bool, ip: ir.InsertionPoint) -> ir.Value:
        """Returns the rows at `start`, in the shape of the array; zeros unless they are written."""
        family, writes = self._caches[value].family, self._caches[value].writes
        rows = writes[start].rows if is_written and start in writes else family.zeros[start]
        return reshaped(rows, with_size(value.type, axis, family.sizes[start]), ip)

    def _assigned(self, made: ir.Value, cache: _Cache, task: StageTask) -> ir.Value:
        """Assigns the operations between written rows and `made` to `task`, except constants; returns `made`."""
        given = {each for write in cache.writes.values() for each in (write.rows, write.index)}
        number = at.i64(task.stage // self._loop.stages_per_slice)

        def assign(value: ir.Value) -> Sequence[ir.Value]:
            op = defining_op(value)
            if op is None or value in given or op.name == "stablehlo.constant":
                return ()
            set_task(op, task)
            op.attributes[at.SLICE] = number
            return op.operands

        closure([made], assign)
        return made

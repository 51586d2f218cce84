"""The table of `jaxpp-opt --op-stats`: what the tasks of a module compute, read, make and keep."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir

from jaxpp.ir.errors import PassError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import body_of, callee, calls_in, functions, kind_and_stage, nested, recursive, terminator
from jaxpp.ir.values import byte_size
from jaxpp.tools import source


@dataclass
class TaskStats:
    """The statistics of all functions of one kind and stage, each counted once.

    Attributes:
        task: `forward of stage 0`; of a function that is no task, its name.
        operations: the number of operations, with those in regions.
        flops: the FLOPs of one run, on all devices together.
        bytes_in, bytes_out: the bytes of the arguments and of the results.
        residual_bytes: the bytes of the results that another task of the same stage reads.
        names: the number of operations of each name.
    """

    task: str
    operations: int = 0
    flops: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    residual_bytes: int = 0
    names: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: "TaskStats") -> None:
        """Adds the numbers of another row."""
        for each in ("operations", "flops", "bytes_in", "bytes_out", "residual_bytes"):
            setattr(self, each, getattr(self, each) + getattr(other, each))
        self.names.update(other.names)


def rows_of(module: ir.Module) -> list[TaskStats]:
    """Returns a row for each kind and stage in the order of the functions, and the total of the module as the last.

    Raises PassError for a function that calls itself, and for a module of VHLO.
    """
    if source.is_vhlo(module):
        raise PassError("a module of VHLO: its operations can't be counted", hint="leave out the pass that makes it")
    called_by = {name: map(callee, calls_in(function)) for name, function in functions(module).items()}
    if (again := recursive(called_by)) is not None:
        raise PassError(f"@{again} calls itself: its operations can't be counted")
    flops, residuals, rows = FlopCounter(module), _residuals(module), dict[str, TaskStats]()
    called = {callee(op) for op in nested(module.operation) if op.name == "func.call"}
    total = TaskStats("total")
    for name, function in functions(module).items():
        if not function.regions[0].blocks:
            continue
        kind, stage = kind_and_stage(function)
        task = f"{kind} of stage {stage}" if kind and stage >= 0 else kind or f"@{name}"
        one = _row(task, function, flops, residuals.get(name, 0))
        rows.setdefault(task, TaskStats(task)).add(one)
        # A function that is called counts in those that call it.
        total.add(replace(one, flops=0, bytes_in=0, bytes_out=0) if name in called else one)
    return [*rows.values(), total]


def _row(task: str, function: ir.Operation, flops: FlopCounter, residual_bytes: int) -> TaskStats:
    """Returns the statistics of one function."""
    names, block = Counter(op.name for op in nested(function)), body_of(function)
    bytes_in, bytes_out = sum(map(_bytes, block.arguments)), sum(map(_bytes, terminator(block).operands))
    return TaskStats(task, names.total(), flops.inside(function), bytes_in, bytes_out, residual_bytes, names)


def _residuals(module: ir.Module) -> dict[str, int]:
    """Returns for each task function the bytes of its results that other tasks of its stage read."""
    by_name, found = functions(module), dict[str, int]()
    for op in nested(module.operation):
        name = callee(op) if op.name == "func.call" else ""
        if name and name not in found and kind_and_stage(by_name[name])[1] >= 0:
            kept = [result for result in op.results if _is_residual(result, kind_and_stage(by_name[name]), by_name)]
            found[name] = sum(map(_bytes, kept))
    return found


def _is_residual(value: ir.Value, task: tuple[str, int], by_name: dict[str, ir.Operation]) -> bool:
    for use in value.uses:
        user = use.owner.operation
        if user.name == "func.call":
            kind, stage = kind_and_stage(by_name[callee(user)])
            if stage == task[1] and kind != task[0]:
                return True
    return False


def _bytes(value: ir.Value) -> int:
    return byte_size(value.type)


def as_table(rows: list[TaskStats]) -> str:
    """Returns a table of the rows, and below it the numbers of operations of each name."""
    titles = ("task", "operations", "FLOPs", "bytes in", "bytes out", "residual bytes")
    lines = [titles, *((r.task, *(f"{n:,}" for n in _numbers(r))) for r in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join([f"{line[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
    names = sorted(rows[-1].names.items(), key=lambda each: (-each[1], each[0]))
    width = max((len(f"{count:,}") for _, count in names), default=0)
    return "\n".join([*text, "", *(f"{count:>{width},}  {name}" for name, count in names)]) + "\n"


def _numbers(row: TaskStats) -> tuple[int, ...]:
    return row.operations, row.flops, row.bytes_in, row.bytes_out, row.residual_bytes


def as_json(rows: list[TaskStats]) -> str:
    """Returns the rows as JSON, one object each."""
    return json.dumps([vars(row) for row in rows], indent=1) + "\n"

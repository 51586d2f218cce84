"""`share-functions`: one function for what several meshes compute alike around the loop, so one compile."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import (
    body_of,
    call,
    callee,
    functions,
    has_side_effect,
    main_of,
    name_of,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.outlining import outline
from jaxpp.ir.phases import check_placed
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.values import defining_op

# Fewer operations than this compile in less time than the calls of some hundred steps take.
WORTH_A_CALL = 8


@dataclass(frozen=True)
class ShareFunctions(Pass):
    """Splits functions before and after the tasks in two: what other meshes compute too, and what only this one does.

    The optimizer updates each weight by itself, and equal layers have equal weights. The functions of the first and
    the last stage differ from the others only in what belongs to the embedding and the head. So their parts are sorted:
    where at least half of the operations of several functions are the same, those become a function of the same text
    in each, which `deduplicate-functions` makes one, compiled once. It costs one more call per step. Parts have no
    value in common but scalars and what is cheap to compute of them.

    Preconditions: `infer-placement` ran.

    ```mlir
    %e, %n0 = call @after_0(%w, %g, %v, %h)   ==>   %e = call @after_0_own(%w, %g)
                                                    %n0 = call @after_0_shared(%v, %h)
    %n1 = call @after_1(%u, %k)                     %n1 = call @after_1_shared(%u, %k)
    ```
    """

    name: ClassVar[str] = "share-functions"

    def run(self, module: ir.Module) -> None:
        """Split functions of `module`. Raises PassError where something is on no mesh."""
        check_placed(module)
        by_name = functions(module)
        numbering = _Numbering()
        found = [_Function(op, by_name[callee(op)], numbering) for op in _calls(module, by_name)]
        owners: defaultdict[_Label, list[_Function]] = defaultdict(list)
        for each in found:
            for label in each.parts:
                owners[label].append(each)
        alike: defaultdict[tuple[_Function, ...], list[_Label]] = defaultdict(list)
        for label, users in owners.items():
            alike[tuple(users)].append(label)
        shared: defaultdict[_Function, list[list[_Label]]] = defaultdict(list)
        for users, labels in alike.items():
            work = sum(users[0].parts[label].work for label in labels)
            most = [each for each in users if 2 * work >= each.work]
            if work >= WORTH_A_CALL and len(most) > 1 and any(len(each.parts) > len(labels) for each in most):
                for each in most:
                    shared[each].append(labels)
        shardings = Shardings(module)
        for each, parts in shared.items():
            each.split(module, parts, shardings)


# Identifies a part: the computation, and how many equal ones stand before it in its function.
_Label = tuple[Hashable, int]


@dataclass
class _Part:
    """Holds results of a function, by number, and the number of operations that only they need (at least one each)."""

    results: list[int]
    work: int


@dataclass(eq=False)
class _Function:
    """A function, the one call of it, and its parts, which have no value in common but what `_free` finds."""

    call: ir.Operation
    op: ir.Operation
    numbering: InitVar["_Numbering"]
    parts: dict[_Label, _Part] = field(init=False)
    work: int = field(init=False)

    def __post_init__(self, numbering: "_Numbering") -> None:
        numbers = numbering.read(self.op)
        count: Counter[Hashable] = Counter()
        self.parts = {}
        for part in _parts(self.op):
            computed = tuple(numbers[number] for number in part.results)
            self.parts[computed, count[computed]] = part
            count[computed] += 1
        self.work = sum(part.work for part in self.parts.values())

    def split(self, module: ir.Module, shared: Sequence[Sequence[_Label]], shardings: Shardings) -> None:
        """Make a function of each list of labels, and one of the rest; call that first: others may wait for it."""
        taken = {label for labels in shared for label in labels}
        own = [label for label in self.parts if label not in taken]
        if own:
            self._call(module, "own", own, shardings)
        for number, labels in enumerate(shared):
            self._call(module, f"shared_{number}" if number else "shared", labels, shardings)
        self.call.erase()
        self.op.erase()

    def _call(self, module: ir.Module, suffix: str, labels: Sequence[_Label], shardings: Shardings) -> None:
        returned = terminator(body_of(self.op)).operands
        numbers = [number for label in labels for number in self.parts[label].results]
        outputs = [returned[number] for number in numbers]
        attributes = {at.KIND: self.op.attributes[at.KIND]}
        made = outline(module, f"{name_of(self.op)}_{suffix}", _leading_to(outputs), outputs, attributes, shardings)
        new = call(
            name_of(made.function),
            [value.type for value in made.outputs],
            [self.call.operands[ir.BlockArgument(value).arg_number] for value in made.inputs],
            {at.MESH: self.call.attributes[at.MESH]},
            ir.InsertionPoint(self.call),
            self.call.location,
        )
        for number, result in zip(numbers, new.results, strict=True):
            self.call.results[number].replace_all_uses_with(result)


def _calls(module: ir.Module, by_name: Mapping[str, ir.Operation]) -> list[ir.Operation]:
    """The calls, each on one mesh, of the functions before and after the tasks that may run in parts."""
    return [
        op
        for op in operations(body_of(main_of(module)))
        if op.name == "func.call"
        and at.STAGE not in op.attributes  # most have one
        and at.STAGES not in op.attributes
        and at.MESH in op.attributes
        and not has_side_effect(by_name[callee(op)])
    ]


def _parts(function: ir.Operation) -> Iterable[_Part]:
    """The parts of a function, in the order of their first results."""
    operands = {op: operands_with_captures(op) for op in operations(body_of(function))[:-1]}
    free = _free(operands)
    parent: dict[ir.Value, ir.Value] = {}

    def root(value: ir.Value) -> ir.Value:
        path: list[ir.Value] = []
        while value in parent:
            path.append(value)
            value = parent[value]
        parent.update(dict.fromkeys(path, value))
        return value

    for op, values in operands.items():
        if op not in free:
            first, *others = dict.fromkeys(root(v) for v in (*op.results, *values) if not _is_free(v, free))
            parent.update(dict.fromkeys(others, first))
    work = Counter(root(op.results[0]) for op in operands if op not in free)
    parts: dict[ir.Value | int, _Part] = {}
    for number, value in enumerate(terminator(body_of(function)).operands):
        key = number if _is_free(value, free) else root(value)
        part = parts.setdefault(key, _Part([], work[key] if isinstance(key, ir.Value) else 0))
        part.results.append(number)
        part.work = max(part.work, len(part.results))
    return parts.values()


def _free(operands: Mapping[ir.Operation, Sequence[ir.Value]]) -> set[ir.Operation]:
    """The operations that each part may compute for itself: of scalars, to scalars or cheap."""
    free: set[ir.Operation] = set()
    for op, values in operands.items():
        if (is_cheap(op) or all(map(_is_scalar, op.results))) and all(_is_free(value, free) for value in values):
            free.add(op)
    return free


def _is_free(value: ir.Value, free: set[ir.Operation]) -> bool:
    op = defining_op(value)
    return op in free if op is not None else _is_scalar(value)


def _is_scalar(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and value.type.rank == 0


def _leading_to(values: Sequence[ir.Value]) -> list[ir.Operation]:
    """The operations that make `values`, each after those that it needs: an order that no other operation changes."""
    found: dict[ir.Operation, None] = {}
    work = [(op, False) for value in reversed(values) if (op := defining_op(value)) is not None]
    while work:
        op, ready = work.pop()
        if ready:
            found.setdefault(op)
        elif op not in found:
            work.append((op, True))
            needed = [defining_op(value) for value in operands_with_captures(op)]
            work.extend((each, False) for each in reversed(needed) if each is not None and each not in found)
    return list(found)


class _Numbering:
    """Numbers what is computed: equal for what the same operations make of arguments of equal types and shardings.

    Which arguments they are doesn't count, so that equal numbers don't prove that two functions are equal.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def read(self, function: ir.Operation) -> list[int]:
        """The numbers of the results of `function`."""
        of: dict[ir.Value, int] = {}
        entries = at.argument_attributes(function)
        for argument, entry in zip(body_of(function).arguments, entries, strict=True):
            of[argument] = self._number((argument.type, entry.get(at.SHARDING)))
        for op in operations(body_of(function)):
            self._read(op, of)
        return [of[value] for value in terminator(body_of(function)).operands]

    def _read(self, op: ir.Operation, of: dict[ir.Value, int]) -> int:
        regions: list[Hashable] = []
        for region in op.regions:
            for block in region.blocks:
                of.update((value, self._number((number, value.type))) for number, value in enumerate(block.arguments))
                regions.append(tuple(self._read(inner.operation, of) for inner in block.operations))
        types = tuple(value.type for value in op.results)
        made = self._number((op.name, _attributes(op), tuple(of[v] for v in op.operands), tuple(regions), types))
        of.update((value, self._number((made, number))) for number, value in enumerate(op.results))
        return made

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _attributes(op: ir.Operation) -> Hashable:
    if op.name == "stablehlo.constant" and isinstance(op.results[0].type.element_type, ir.ComplexType):
        # jaxlib can't read the attribute of a complex one, only print it.
        return str(op.get_asm(use_local_scope=True)).partition("=")[2]
    return tuple(op.attributes.items())

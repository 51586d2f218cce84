"""Splits functions around the loop, such as updates, into the computations that other meshes share, and the rest."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.split_calls import Split
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, has_side_effect, name_of, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.outlining import outline
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step

# Compiling fewer operations than this takes less time than a few hundred steps spend on the additional call.
WORTH_A_CALL = 8


def split_updates(module: ir.Module, steps: Iterable[Step], shardings: Shardings) -> dict[str, Split]:
    """Splits functions that do at least half of their work alike on other meshes; returns the splits by their names."""
    numbers: dict[Hashable, int] = {}
    owners: defaultdict[_Label, list[_Function]] = defaultdict(list)
    for function in _around(steps):
        each = _Function(_Body(function, numbers))
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
    return {name_of(each.body.function): each.split(module, parts, shardings) for each, parts in shared.items()}


# Identifies a part: its computation, and the number of equal parts before it in its function.
_Label = tuple[Hashable, int]


@dataclass
class _FunctionPart:
    """A part of a function.

    Attributes:
        results: the indices of the function's results that the part makes.
        work: the number of operations that only these results need, or the number of results if that is larger.
    """

    results: list[int]
    work: int


@dataclass(eq=False)
class _Function:
    """A function, and its parts.

    Attributes:
        body: the body of the function.
        parts: the parts, which have no value in common but the values that `_free` finds.
        work: the sum of the parts' work.
    """

    body: "_Body"
    parts: dict[_Label, _FunctionPart] = field(init=False)
    work: int = field(init=False)

    def __post_init__(self) -> None:
        count: Counter[Hashable] = Counter()
        self.parts = {}
        for part in _parts(self.body):
            computed = tuple(self.body.computed[self.body.returned[number]] for number in part.results)
            self.parts[computed, count[computed]] = part
            count[computed] += 1
        self.work = sum(part.work for part in self.parts.values())

    def split(self, module: ir.Module, shared: Sequence[Sequence[_Label]], shardings: Shardings) -> Split:
        """Makes one function of each list of labels in `shared`, and one of the rest.

        The rest is called first, as other meshes may wait for its results.
        """
        body, function = self.body, self.body.function
        taken = {label for labels in shared for label in labels}
        groups = [[label for label in self.parts if label not in taken], *shared]
        names = ["own", "shared", *(f"shared_{number}" for number in range(1, len(shared)))]
        returned = [[body.returned[n] for label in labels for n in self.parts[label].results] for labels in groups]
        needed = [body.in_order(values) for values in returned]
        times = Counter(op for ops in needed for op in ops)
        attributes = {at.KIND: function.attributes[at.KIND]} if at.KIND in function.attributes else {}
        parts = [
            outline(
                module,
                f"{name_of(function)}_{name}",
                [body.member(op, moves=times[op] == 1) for op in ops],
                values,
                attributes,
                shardings,
            )
            for name, values, ops in zip(names, returned, needed, strict=True)
            if values
        ]
        return Split(function, body.returned, parts)


def _around(steps: Iterable[Step]) -> list[ir.Operation]:
    """Returns the functions before and after the tasks that may be split.

    The call of such a function is on one mesh and has no side effect. A function that is called twice stays whole, as
    its calls share one function already.
    """
    found = [
        step.function
        for step in steps
        if step.function is not None
        and step.task is None
        and at.STAGE not in step.attributes
        and at.MESH in step.attributes
        and not has_side_effect(step.function)
    ]
    times = Counter(map(name_of, found))
    return [function for function in found if times[name_of(function)] == 1]


class _Body(Numbered):
    """The body of a function, without the return.

    Attributes:
        function: the function.
        returned: the values that it returns.
        computed: a number for the computation of each value. Numbers are equal if the same operations read arguments of
            equal types and shardings. The positions of the arguments don't count, so functions with equal numbers may
            still differ.
    """

    def __init__(self, function: ir.Operation, numbers: dict[Hashable, int]) -> None:
        *ops, end = operations(body_of(function))
        super().__init__(ops)
        self.function, self.returned = function, list(end.operands)
        self.computed: dict[ir.Value, int] = {}

        def number(key: Hashable) -> int:
            return numbers.setdefault(key, len(numbers))

        entries = at.argument_attributes(function)
        for argument, entry in zip(body_of(function).arguments, entries, strict=True):
            self.computed[argument] = number((argument.type, entry.get(at.SHARDING)))
        for op, results in zip(ops, self.results, strict=True):
            kind, uses = kind_of(op)
            made = number((kind, *[self.computed[value] for value in uses]))
            self.computed |= {result: number((made, position)) for position, result in enumerate(results)}

    def in_order(self, values: Sequence[ir.Value]) -> list[int]:
        """Returns the operations that make `values`, each after the operations that it needs.

        Their order depends only on the use-def chains, so that equal computations have equal orders.
        """
        found: dict[int, None] = {}
        work = [(op, False) for value in reversed(values) if (op := self.producers.get(value)) is not None]
        while work:
            op, ready = work.pop()
            if ready:
                found.setdefault(op)
            elif op not in found:
                work.append((op, True))
                work.extend((maker, False) for maker in reversed(self.makers[op]) if maker not in found)
        return list(found)


def _parts(body: _Body) -> Iterable[_FunctionPart]:
    """Returns the parts of a function, in the order of their first results."""
    free = _free(body)
    parent: dict[ir.Value, ir.Value] = {}

    def root(value: ir.Value) -> ir.Value:
        while (above := parent.get(value, value)) != value:
            parent[value] = value = parent.get(above, above)
        return value

    kept = [op for op, results in enumerate(body.results) if results[0] not in free]
    for op in kept:
        first = root(body.results[op][0])
        for value in (*body.results[op][1:], *body.operands[op]):
            if value not in free:
                parent[root(value)] = first
    work = Counter(root(body.results[op][0]) for op in kept)
    parts: dict[int | ir.Value, _FunctionPart] = {}
    for number, value in enumerate(body.returned):
        key = number if value in free else root(value)
        part = parts.setdefault(key, _FunctionPart([], 0 if value in free else work[root(value)]))
        part.results.append(number)
        part.work = max(part.work, len(part.results))
    return parts.values()


def _free(body: _Body) -> set[ir.Value]:
    """Returns the values that every part may compute itself.

    Such values are made of scalars only, by operations that are cheap or make only scalars.
    """
    free = set[ir.Value](filter(_is_scalar, body_of(body.function).arguments))
    for op, operands, results in zip(body.ops, body.operands, body.results, strict=True):
        if free.issuperset(operands) and (is_cheap(op) or all(map(_is_scalar, results))):
            free.update(results)
    return free


def _is_scalar(value: ir.Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and type_.rank == 0

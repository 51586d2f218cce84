"""`share-functions`: shares functions around the loop among meshes that compute the same, for fewer compiles."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, has_side_effect, name_of, operations, terminator
from jaxpp.ir.mesh_functions import on_meshes
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.outlining import Member, outline_members
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step, leave

# Compiling fewer operations than this takes less time than a few hundred steps spend on the additional call.
WORTH_A_CALL = 8


class ShareFunctions(Pass):
    """Splits functions before and after the tasks in two: computations that other meshes share, and the rest.

    The optimizer updates each weight independently, and equal layers have equal weights. The functions of the first and
    the last stage differ from the others only in the embedding and the head. So the pass divides each function into
    parts. Parts have no value in common but scalars and values that are cheap to compute from scalars. If several
    functions share at least half of their operations, and no fewer than eight, the shared parts become a function with
    the same text in each. `deduplicate-functions` makes one function of these, which is compiled once. The cost is one
    more call per step.

    Preconditions: `infer-placement` ran.

    ```mlir
    %e, %n0 = call @after_0(%w, %g, %v, %h)   ==>   %e = call @after_0_own(%w, %g)
                                                    %n0 = call @after_0_shared(%v, %h)
    %n1 = call @after_1(%u, %k)                     %n1 = call @after_1_shared(%u, %k)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Splits functions of `module`. Raises PassError if an operation, argument or result is on no mesh."""
        numbers = _Numbers()
        line = main_of_phase(module, placed=True)
        found = [_Function(call, _Body(function, numbers)) for call, function in _calls(line.steps)]
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
        made: dict[ir.Value, ir.Value] = {}
        for each, parts in shared.items():
            made.update(each.split(module, parts, shardings))
        if not shared:
            leave(module, line)
            return
        instead = {each.call: each.calls for each in shared}
        steps: list[Step[ir.Value]] = []
        for step in line.steps:
            if step in instead:
                steps += map(Step.of, instead[step])
                step.op.erase()
                continue
            if not made.keys().isdisjoint(step.operands):
                step.operands = [made.get(value, value) for value in step.operands]
            steps.append(step)
        leave(module, main_line(module, steps, placed=True))


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
    """A function with a single call, and its parts.

    Attributes:
        call: the call.
        body: the body of the function.
        calls: the calls that replace `call`.
        parts: the parts, which have no value in common but the values that `_free` finds.
        work: the sum of the parts' work.
    """

    call: Step
    body: "_Body"
    calls: list[ir.Operation] = field(default_factory=list[ir.Operation])
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

    def split(
        self, module: ir.Module, shared: Sequence[Sequence[_Label]], shardings: Shardings
    ) -> dict[ir.Value, ir.Value]:
        """Makes one function of each list of labels in `shared`, and one of the rest, and calls them.

        The rest is called first, as other meshes may wait for its results. Returns the new value for each result of the
        old call, which nothing uses any more.
        """
        taken = {label for labels in shared for label in labels}
        own = [label for label in self.parts if label not in taken]
        names = [f"shared_{number}" if number else "shared" for number in range(len(shared))]
        parts = [(name, self._results(labels)) for name, labels in (("own", own), *zip(names, shared, strict=True))]
        needed = [self.body.making([self.body.returned[number] for number in numbers]) for _, numbers in parts]
        times = Counter(op for ops in needed for op in ops)
        results: dict[ir.Value, ir.Value] = {}
        for (name, numbers), ops in zip(parts, needed, strict=True):
            if numbers:
                members = [self.body.member(op, moves=times[op] == 1) for op in ops]
                results.update(self._call(module, name, numbers, members, shardings))
        self.body.function.erase()
        return results

    def _results(self, labels: Iterable[_Label]) -> list[int]:
        return [number for label in labels for number in self.parts[label].results]

    def _call(
        self, module: ir.Module, suffix: str, numbers: Sequence[int], members: Sequence[Member], shardings: Shardings
    ) -> dict[ir.Value, ir.Value]:
        """Calls a new function of `members` for the results with these indices; returns the new value of each."""
        function = self.body.function
        returned = terminator(body_of(function)).operands
        outputs = [returned[number] for number in numbers]
        attributes = {at.KIND: function.attributes[at.KIND]} if at.KIND in function.attributes else {}
        made = outline_members(module, f"{name_of(function)}_{suffix}", members, outputs, attributes, shardings)
        old = self.call.op
        new = call(
            made.function,
            [old.operands[ir.BlockArgument(value).arg_number] for value in made.inputs],
            on_meshes(self.call.meshes),
            ir.InsertionPoint(old),
            old.location,
        )
        self.calls.append(new)
        replaced: dict[ir.Value, ir.Value] = dict(
            zip([self.call.results[number] for number in numbers], new.results, strict=True)
        )
        for value, result in replaced.items():
            value.replace_all_uses_with(result)
        return replaced


def _calls(steps: Iterable[Step]) -> list[tuple[Step, ir.Operation]]:
    """Returns the calls of functions before and after the tasks that may be split, each with its function.

    Such a call is on one mesh and has no side effect. A function that is called twice stays whole, as its calls share
    one function already.
    """
    found = [
        (step, step.function)
        for step in steps
        if step.function is not None
        and step.task is None
        and at.STAGE not in step.attributes
        and at.STAGES not in step.attributes
        and at.MESH in step.attributes
        and not has_side_effect(step.function)
    ]
    times = Counter(name_of(function) for _, function in found)
    return [each for each in found if times[name_of(each[1])] == 1]


class _Numbers(dict[Hashable, int]):
    """Numbers for computations: equal if the same operations read arguments of equal types and shardings.

    The positions of the arguments don't count, so functions with equal numbers may still differ.
    """

    def __missing__(self, key: Hashable) -> int:
        number = self[key] = len(self)
        return number


class _Body:
    """The body of a function, read once. Indices stand for its operations and values.

    Attributes:
        function: the function.
        ops: its operations, without the return.
        uses: the values that each operation uses, including uses in its regions.
        results: the results of each operation.
        makers: the operation that makes each value; None for an argument.
        scalar: whether each value is a scalar.
        computed: the number of each value's computation (`_Numbers`).
        returned: the values that the function returns.
    """

    def __init__(self, function: ir.Operation, numbers: _Numbers) -> None:
        self.function = function
        *self.ops, end = operations(body_of(function))
        self.uses: list[list[int]] = []
        self.results: list[list[int]] = []
        self.makers: list[int | None] = []
        self.scalar: list[bool] = []
        self.computed: list[int] = []
        self._numbers = numbers
        self._values: dict[ir.Value, int] = {}
        self._ssa: list[ir.Value] = []
        entries = at.argument_attributes(function)
        for argument, entry in zip(body_of(function).arguments, entries, strict=True):
            self._define(argument, None, (argument.type, entry.get(at.SHARDING)))
        for number, op in enumerate(self.ops):
            kind, uses = kind_of(op)
            used = [self._values[value] for value in uses]
            made = numbers[kind, *[self.computed[value] for value in used]]
            self.uses.append(list(dict.fromkeys(used)))
            self.results.append([self._define(result, number, (made, n)) for n, result in enumerate(op.results)])
        self.returned = [self._values[value] for value in end.operands]

    def _define(self, value: ir.Value, maker: int | None, computed: Hashable) -> int:
        number = self._values[value] = len(self.makers)
        type_ = value.type
        self._ssa.append(value)
        self.makers.append(maker)
        self.scalar.append(isinstance(type_, ir.RankedTensorType) and type_.rank == 0)
        self.computed.append(self._numbers[computed])
        return number

    def member(self, op: int, *, moves: bool) -> Member:
        """Returns operation `op` as a member of a new function, into which it moves or is cloned."""
        uses, results = ([self._ssa[value] for value in values] for values in (self.uses[op], self.results[op]))
        return Member(self.ops[op], uses, results, moves)

    def making(self, values: Sequence[int]) -> list[int]:
        """Returns the operations that make `values`, each after the operations that it needs.

        Their order depends only on the use-def chains, so that equal computations have equal orders.
        """
        found: dict[int, None] = {}
        work = [(op, False) for value in reversed(values) if (op := self.makers[value]) is not None]
        while work:
            op, ready = work.pop()
            if ready:
                found.setdefault(op)
            elif op not in found:
                work.append((op, True))
                needed = [self.makers[value] for value in self.uses[op]]
                work.extend((each, False) for each in reversed(needed) if each is not None and each not in found)
        return list(found)


def _parts(body: _Body) -> Iterable[_FunctionPart]:
    """Returns the parts of a function, in the order of their first results."""
    free = _free(body)
    parent = list(range(len(free)))

    def root(value: int) -> int:
        while (above := parent[value]) != value:
            parent[value] = value = parent[above]
        return value

    kept = [op for op in range(len(body.ops)) if not free[body.results[op][0]]]
    for op in kept:
        first = root(body.results[op][0])
        for value in (*body.results[op][1:], *body.uses[op]):
            if not free[value]:
                parent[root(value)] = first
    work = Counter(root(body.results[op][0]) for op in kept)
    parts: dict[tuple[bool, int], _FunctionPart] = {}
    for number, value in enumerate(body.returned):
        key = (True, number) if free[value] else (False, root(value))
        part = parts.setdefault(key, _FunctionPart([], 0 if free[value] else work[root(value)]))
        part.results.append(number)
        part.work = max(part.work, len(part.results))
    return parts.values()


def _free(body: _Body) -> list[bool]:
    """Returns for each value whether every part may compute it itself.

    Such values are made of scalars only, by operations that are cheap or make only scalars.
    """
    free = list(body.scalar)
    for number, op in enumerate(body.ops):
        results = body.results[number]
        alike = all([free[value] for value in body.uses[number]]) and (
            is_cheap(op) or all([free[each] for each in results])
        )
        for value in results:
            free[value] = alike
    return free

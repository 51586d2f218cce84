"""Reduces sums for sharded weights over the data axis once per run of a stage's tasks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from jaxpp.hlo_passes.program.runs import find_runs
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, updates
from jaxpp.ir.boundary import BARRIER
from jaxpp.ir.build import clone, combine, sharded
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, call, create, name_of
from jaxpp.ir.numbered import Member
from jaxpp.ir.outlining import outline
from jaxpp.ir.shardings import Shardings, boundary_attributes
from jaxpp.ir.steps import Step
from jaxpp.ir.values import defining_op, is_zero


@dataclass(frozen=True, eq=False)
class _Link:
    """A task that adds to a sum.

    Attributes:
        task: the task.
        operand: the index of the operand that is the sum so far.
        result: the index of the result that is the new sum.
        start: the value of that operand.
        sum: the sum.
        summand: the key of the task's chain in `sum.chains`.
    """

    task: Step
    operand: int
    result: int
    start: ir.Value
    sum: "ReducedSum"
    summand: ir.Value


@dataclass(eq=False)
class ReducedSum:
    """A sum over tasks that a marked reduction reduces.

    Attributes:
        number: its index among the marked reductions.
        reduce: the reduction.
        makers: the operation of `@main` that makes each value.
        chains: for each summand (the last result of a chain of tasks) the tasks that add to it, in order.
        totals: for each summand the value that holds it, reduced and scattered, after the runs so far.
    """

    number: int
    reduce: Step
    makers: dict[ir.Value, Step]
    chains: dict[ir.Value, list[_Link]] = field(default_factory=dict[ir.Value, list[_Link]])
    totals: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])

    def __post_init__(self) -> None:
        work, others = [self.reduce.operands[0]], list[ir.Value]()
        while work:
            value = work.pop()
            maker = self.makers.get(value)
            if maker is not None and maker.name == ADD:
                work += reversed(maker.operands)
            elif maker is not None and maker.function is not None and value not in self.chains:
                self.chains[value] = self._chain(value)
            elif not is_zero(value):
                others.append(value)
        if self.chains and others:
            twice = any(value in self.chains for value in others)
            what = "it adds one sum twice" if twice else "it adds up more than sums over tasks"
            raise _not_a_sum(self.reduce.op, what)

    def _chain(self, summand: ir.Value) -> list[_Link]:
        value, found = summand, list[_Link]()
        while (task := self.makers.get(value)) is not None and task.function is not None:
            result = list(task.results).index(value)
            operand = _summed(task.function, result)
            value = task.operands[operand]
            found.append(_Link(task, operand, result, value, self, summand))
        if not is_zero(value):
            raise _not_a_sum(self.reduce.op, "what the first task adds to is not zero")
        return found[::-1]

    def total(self) -> tuple[ir.Value, list[Step]]:
        """Returns the sum of `totals`, and the additions that it takes, in front of the reduction."""
        sharding, ip = at.value_sharding(self.reduce.results[0]), ir.InsertionPoint(self.reduce.op)
        total, *others = self.totals.values()
        additions: list[Step] = []
        for other in others:
            total = sharded(combine(ADD, [total, other], ip, self.reduce.op.location), sharding)
            additions.append(Step.of(ir.OpResult(total).owner.operation))
        return total, additions


class Scatters:
    """The functions that make zeros and that scatter, and their calls.

    Attributes:
        before: for the first task of a run the call that makes its zeros.
        after: for the last task of a run the call that scatters its sums.
    """

    def __init__(self, module: ir.Module, sums: Sequence[ReducedSum]) -> None:
        self._module, self._sums = module, sums
        self._shardings = Shardings(module)
        self._firsts = [(each.number, chain[0].start) for each in sums for chain in each.chains.values()]
        self._zeros: dict[tuple[int, ...], ir.Operation] = {}
        self._functions: dict[tuple[tuple[int, ...], ...], ir.Operation] = {}
        self.before: dict[Step, Step] = {}
        self.after: dict[Step, Step] = {}

    def call(self, mesh: int, tasks: Sequence[Step]) -> None:
        """Makes zeros before, and scatters sums after, each run among `tasks`, all tasks of `mesh`."""
        position = {task: number for number, task in enumerate(tasks)}
        begins, ends = (defaultdict[int, list[_Link]](list) for _ in range(2))
        for chain in [chain for each in self._sums for chain in each.chains.values()]:
            links = {position[link.task]: link for link in chain if link.task in position}
            for run in find_runs(tasks, list(links)) if links else ():
                begins[run[0]].append(links[run[0]])
                ends[run[-1]].append(links[run[-1]])
        for number, found in sorted(begins.items()):
            self._begin(mesh, tasks[number], found)
        for number, found in sorted(ends.items()):
            self._end(mesh, tasks[number], found)

    def _begin(self, mesh: int, task: Step, links: Sequence[_Link]) -> None:
        function = self._making_zeros(tuple(link.sum.number for link in links))
        self.before[task] = made = self._call(function, [], mesh, ir.InsertionPoint(task.op), task)
        for link, result in zip(links, made.results, strict=True):
            task.use(link.operand, result)

    def _end(self, mesh: int, task: Step, links: Sequence[_Link]) -> None:
        later = tuple(position for position, link in enumerate(links) if link.summand in link.sum.totals)
        function = self._scattering(tuple(link.sum.number for link in links), later)
        operands = [task.results[link.result] for link in links]
        operands += [links[position].sum.totals[links[position].summand] for position in later]
        self.after[task] = made = self._call(function, operands, mesh, ir.InsertionPoint.after(task.op), task)
        for link, result in zip(links, made.results, strict=True):
            link.sum.totals[link.summand] = result

    def _call(
        self,
        function: ir.Operation,
        operands: Sequence[ir.Value],
        mesh: int,
        ip: ir.InsertionPoint,
        task: Step,
    ) -> Step:
        return Step.of(call(function, operands, {at.MESH: at.i64(mesh)}, ip, task.op.location))

    def _making_zeros(self, numbers: tuple[int, ...]) -> ir.Operation:
        """Returns the function that makes the zeros for the sums with these indices."""
        if numbers not in self._zeros:
            firsts = dict(self._firsts)
            zeros = [firsts[number] for number in numbers]
            ops = [Member.of(op) for value in zeros if (op := defining_op(value)) is not None]
            name = f"zeros_{len(self._zeros)}"
            self._zeros[numbers] = outline(self._module, name, ops, zeros, _kind(), self._shardings).function
        return self._zeros[numbers]

    def _scattering(self, numbers: tuple[int, ...], later: tuple[int, ...]) -> ir.Operation:
        """Returns the function that reduces the sums with the indices `numbers`.

        It adds the totals of earlier runs to the results at the positions `later`. An index occurs twice in `numbers`
        if a task adds to two summands of one sum.
        """
        if (numbers, later) in self._functions:
            return self._functions[numbers, later]
        reduces = [self._sums[number].reduce.op for number in numbers]
        results = [op.results[0] for op in reduces]
        inputs = [op.operands[0] for op in reduces] + [results[position] for position in later]
        name, types = f"scatter_{len(self._functions)}", [value.type for value in inputs]
        function = create(self._module, name, types, [value.type for value in results], _kind())
        at.set_tables(function, *(boundary_attributes(self._shardings, each) for each in (inputs, results)))
        block = body_of(function)
        totals = dict(zip(later, list(block.arguments)[len(numbers) :], strict=True))
        ip, returned = ir.InsertionPoint(block), list[ir.Value]()
        for position, (op, argument) in enumerate(zip(reduces, block.arguments, strict=False)):
            values: dict[ir.Value, ir.Value] = {op.operands[0]: argument}
            for zero in filter(None, map(defining_op, list(op.operands)[1:])):
                clone(zero, values, ip, {})
            made = clone(op, values, ip, {})
            del made.attributes[at.PER_RUN]
            total = made.results[0]
            if position in totals:
                total = combine(ADD, [totals[position], total], ip, op.location)
                total = sharded(total, at.value_sharding(op.results[0]))
            returned.append(total)
        func.return_(returned, ip=ip, loc=ir.Location.unknown())
        self._functions[numbers, later] = function
        return function


def _kind() -> dict[str, ir.Attribute]:
    return {at.KIND: ir.StringAttr.get("scatter")}


def _summed(function: ir.Operation, result: int) -> int:
    """Returns the index of the argument to which a task adds for a result. Raises PassError if it does more."""
    body = body_of(function)
    for number in range(len(body.arguments)):
        found = updates(body, number, (ADD, SUBTRACT, CONSTRAINT, BARRIER))
        if found is not None and found.result == result:
            return number
    raise _not_a_sum(function, f"result {result} of @{name_of(function)} does not only add to an argument")


def _not_a_sum(op: ir.Operation, what: str) -> PassError:
    return PassError(
        f"an operation with {at.PER_RUN} reduces no sum over tasks: {what}",
        location=op.location,
        hint="delay-reductions with scatter-gradients=chunk makes such sums",
    )

"""`scatter-gradients`: reduces sums for sharded weights over the data axis once per run of a stage's tasks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.runs import find_runs, tasks_of
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, updates
from jaxpp.ir.boundary import BARRIER
from jaxpp.ir.build import clone, combine, sharded
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, call, create, name_of
from jaxpp.ir.outlining import outline
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.shardings import Shardings, boundary_attributes
from jaxpp.ir.steps import Step, leave
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import defining_op, is_used, is_zero


class ScatterGradients(Pass):
    """Calls `@scatter_0` after each run of tasks that add to a sum which `jaxpp.scatter` reduces and scatters.

    If a weight is sharded over the batch axis (FSDP), its gradient is a sum over the devices of that axis, and each
    device keeps one shard. This pass mirrors `gather-weights`. A run is a sequence of tasks of one stage that follow
    one another on their mesh. In a run every device adds up its own summands, and one reduce-scatter serves the whole
    run. Under a breadth-first schedule (arXiv 2211.05953) all backwards of a stage are one run. Before each run
    `@zeros_0` makes the zeros to which its tasks add, so that between two runs a mesh holds only the shards of the
    sums.

    The sums of the runs of a mesh are added up shard by shard, and then the sums of all meshes. So the order of
    additions differs from `scatter_gradients="step"`.

    Preconditions: `unroll-microbatches` ran, and `gather-weights`, whose calls end no run.

    ```mlir
    %s0 = call @backward_0(%x0, %zeros)            ==>   %z0 = call @zeros_0()
    %s1 = call @backward_0(%x1, %s0)                     %s0 = call @backward_0(%x0, %z0)
    %d = call @backward_2(%y)                            %s1 = call @backward_0(%x1, %s0)
    %s2 = call @backward_0(%x2, %s1)                     %g0 = call @scatter_0(%s1)
    %g = reduce add %s2 across [0] {jaxpp.scatter}       %d = call @backward_2(%y)
                                                         %z1 = call @zeros_0()
                                                         %s2 = call @backward_0(%x2, %z1)
                                                         %g = call @scatter_1(%s2, %g0)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Scatters, after each run in `@main`, the sums of that run.

        Raises PassError if a marked reduction reduces anything but a sum over tasks. Also raises it if the steps of a
        `train_loop` overlap: a run could then have tasks of several steps.
        """
        line = main_of_phase(module, placed=False)
        marked = [step for step in line.steps if step.function is None and at.SCATTER in step.attributes]
        if not marked:
            leave(module, line)
            return
        loop = TrainLoopAttr.of(module)
        if loop is not None and loop.schedule:
            raise PassError(
                "scatter_gradients is 'chunk', for the runs of one step, but the steps of the train_loop overlap",
                location=marked[0].op.location,
                hint='take scatter_gradients="step", or a loop without a delay',
            )
        makers = {result: step for step in line.steps for result in step.results}
        sums = [_ReducedSum(number, step, makers) for number, step in enumerate(marked)]
        made = _Scatters(module, sums)
        for mesh in range(line.meshes):
            made.call(mesh, tasks_of(line.steps, mesh))
        instead = {each.reduce: each.finish(line.steps) for each in sums if each.totals}
        gone = made.erase()
        steps: list[Step[ir.Value]] = []
        for step in line.steps:
            if step not in gone:
                steps += filter(None, (made.before.get(step), step, made.after.get(step)))
            elif step in instead:
                steps += instead[step]
        leave(module, main_line(module, steps, placed=False))


@dataclass(frozen=True, eq=False)
class _Link:
    """A task that adds to a sum.

    Attributes:
        task: the task.
        operand: the index of the operand that is the sum so far.
        result: the index of the result that is the new sum.
        start: the value of that operand.
    """

    task: Step[ir.Value]
    operand: int
    result: int
    start: ir.Value


@dataclass(eq=False)
class _ReducedSum:
    """A sum over tasks that a marked reduction reduces.

    Attributes:
        number: its index among the marked reductions.
        reduce: the reduction.
        makers: the operation of `@main` that makes each value.
        chains: for each summand (the last result of a chain of tasks) the tasks that add to it, in order.
        totals: for each summand the value that holds it, reduced and scattered, after the runs so far.
    """

    number: int
    reduce: Step[ir.Value]
    makers: dict[ir.Value, Step[ir.Value]]
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

    def _chain(self, value: ir.Value) -> list[_Link]:
        found: list[_Link] = []
        while (task := self.makers.get(value)) is not None and task.function is not None:
            result = list(task.results).index(value)
            operand = _summed(task.function, result)
            value = task.operands[operand]
            found.append(_Link(task, operand, result, value))
        if not is_zero(value):
            raise _not_a_sum(self.reduce.op, "what the first task adds to is not zero")
        return found[::-1]

    def finish(self, steps: Sequence[Step[ir.Value]]) -> list[Step[ir.Value]]:
        """Replaces the result of the reduction by the sum of `totals` in `steps`.

        Returns the additions that this takes: one fewer than there are totals.
        """
        old, ip = self.reduce.results[0], ir.InsertionPoint(self.reduce.op)
        first, *others = self.totals.values()
        made: list[Step[ir.Value]] = []
        for other in others:
            first = sharded(combine(ADD, [first, other], ip, self.reduce.op.location), at.value_sharding(old))
            made.append(Step.of(ir.OpResult(first).owner.operation))
        for step in steps:
            if old in step.operands:
                step.operands = [first if value == old else value for value in step.operands]
        old.replace_all_uses_with(first)
        return made


class _Scatters:
    """The functions that make zeros and that scatter, and their calls.

    Attributes:
        before: for the first task of a run the call that makes its zeros.
        after: for the last task of a run the call that scatters its sums.
    """

    def __init__(self, module: ir.Module, sums: Sequence[_ReducedSum]) -> None:
        self._module, self._sums = module, sums
        self._shardings = Shardings(module)
        self._firsts = [(each.number, chain[0].start) for each in sums for chain in each.chains.values()]
        self._zeros: dict[tuple[int, ...], ir.Operation] = {}
        self._functions: dict[tuple[tuple[int, ...], ...], ir.Operation] = {}
        self.before: dict[Step[ir.Value], Step[ir.Value]] = {}
        self.after: dict[Step[ir.Value], Step[ir.Value]] = {}

    def call(self, mesh: int, tasks: Sequence[Step[ir.Value]]) -> None:
        """Makes zeros before, and scatters sums after, each run among `tasks`, all tasks of `mesh`."""
        position = {task: number for number, task in enumerate(tasks)}
        begins, ends = (defaultdict[int, list[_End]](list) for _ in range(2))
        for each in self._sums:
            for value, chain in each.chains.items():
                links = {position[link.task]: link for link in chain if link.task in position}
                for run in find_runs(tasks, list(links)) if links else ():
                    begins[run[0]].append(_End(each, value, links[run[0]]))
                    ends[run[-1]].append(_End(each, value, links[run[-1]]))
        for number, found in sorted(begins.items()):
            self._begin(mesh, tasks[number], found)
        for number, found in sorted(ends.items()):
            self._end(mesh, tasks[number], found)

    def _begin(self, mesh: int, task: Step[ir.Value], found: "Sequence[_End]") -> None:
        function = self._making_zeros(tuple(each.sum.number for each in found))
        made = self._call(function, [], mesh, ir.InsertionPoint(task.op), task)
        self.before[task] = made
        for each, result in zip(found, made.results, strict=True):
            task.use(each.link.operand, result)

    def _end(self, mesh: int, task: Step[ir.Value], found: "Sequence[_End]") -> None:
        later = tuple(position for position, each in enumerate(found) if each.value in each.sum.totals)
        function = self._scattering(tuple(each.sum.number for each in found), later)
        operands = [task.results[each.link.result] for each in found]
        operands += [found[position].sum.totals[found[position].value] for position in later]
        made = self._call(function, operands, mesh, ir.InsertionPoint.after(task.op), task)
        self.after[task] = made
        for each, result in zip(found, made.results, strict=True):
            each.sum.totals[each.value] = result

    def _call(
        self,
        function: ir.Operation,
        operands: Sequence[ir.Value],
        mesh: int,
        ip: ir.InsertionPoint,
        task: Step[ir.Value],
    ) -> Step[ir.Value]:
        return Step.of(call(function, operands, {at.MESH: at.i64(mesh)}, ip, task.op.location))

    def _making_zeros(self, numbers: tuple[int, ...]) -> ir.Operation:
        """Returns the function that makes the zeros for the sums with these indices."""
        if numbers not in self._zeros:
            firsts = dict(self._firsts)
            zeros = [firsts[number] for number in numbers]
            ops = [op for value in zeros if (op := defining_op(value)) is not None]
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
            del made.attributes[at.SCATTER]
            total = made.results[0]
            if position in totals:
                total = combine(ADD, [totals[position], total], ip, op.location)
                total = sharded(total, at.value_sharding(op.results[0]))
            returned.append(total)
        func.return_(returned, ip=ip, loc=ir.Location.unknown())
        self._functions[numbers, later] = function
        return function

    def erase(self) -> set[Step[ir.Value]]:
        """Erases the replaced reductions, and operations that nothing uses any more; returns all erased operations."""
        gone: set[Step[ir.Value]] = set()
        makers = self._sums[0].makers if self._sums else {}
        work = [each.reduce for each in self._sums if each.totals]
        work += [maker for _, value in self._firsts if (maker := makers.get(value)) is not None]
        while work:
            step = work.pop()
            if step in gone or step.function is not None or any(map(is_used, step.results)):
                continue
            gone.add(step)
            step.op.erase()
            work += [maker for value in step.operands if (maker := makers.get(value)) is not None]
        return gone


class _End(NamedTuple):
    """The first or the last task of a run.

    Attributes:
        sum: a sum to which the task adds.
        value: the key of the task's chain in `sum.chains`.
        link: the task's link in that chain.
    """

    sum: _ReducedSum
    value: ir.Value
    link: _Link


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
        f"an operation with {at.SCATTER} reduces no sum over tasks: {what}",
        location=op.location,
        hint="delay-reductions with scatter-gradients=chunk makes such sums",
    )

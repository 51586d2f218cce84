"""`infer-placement`: puts everything outside of the microbatch loop on a mesh."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.ir.functions import body_of, call, callee, main_of, name_of, operations, terminator
from jaxpp.hlo_passes.ir.outlining import outline
from jaxpp.hlo_passes.ir.phases import check_unrolled
from jaxpp.hlo_passes.ir.shardings import Shardings
from jaxpp.hlo_passes.ir.values import byte_size, is_used
from jaxpp.hlo_passes.program.improvement import improve
from jaxpp.hlo_passes.program.placement import Placement, place, place_results


@dataclass(frozen=True)
class InferPlacement(Pass):
    """Makes functions of what stands before and after the task calls, each for one mesh. Never an error.

    - An operation goes where its operands are; with operands on several meshes, where the fewest bytes move. Then
      operations move on, several at once, as long as that leaves fewer bytes to send: to where their results are
      needed, or, if they are cheap or small, to several meshes that have their operands anyway. With two meshes
      no placement sends less, but for scalars, for which no tensor moves; with more meshes that is NP-hard to find,
      and what is found is seldom worse.
    - What depends only on constants and on arguments that several meshes have (a step counter, a learning rate) is
      computed wherever it is used.
    - An argument is where it is used; a result where it is computed, or, with `jaxpp.feeds`, where that argument is.
    - The blocks of a stack are where `split-stacks` put them: its `jaxpp.meshes` are theirs, in their order.
    - A weight of several meshes is updated on one of them and then sent: as few bytes as when each sends its gradient
      to the others, and the work and the state of the optimizer only once.

    The operations of one mesh are one function before the tasks (what the tasks need) and one after them, or several
    where values cross meshes in between (a global norm). The first value of an accumulator gets a buffer of its own.

    Preconditions: `unroll-microbatches` ran.

    ```mlir
    %g0 = call @backward_0(...) {jaxpp.mesh = 0}      ==>   %g0 = call @backward_0(...) {jaxpp.mesh = 0}
    %g1 = call @backward_1(...) {jaxpp.mesh = 1}            %g1 = call @backward_1(...) {jaxpp.mesh = 1}
    %n0 = stablehlo.subtract %w0, %g0                       %n0 = call @after_0(%w0, %g0) {jaxpp.mesh = 0}
    %n1 = stablehlo.subtract %w1, %g1                       %n1 = call @after_1(%w1, %g1) {jaxpp.mesh = 1}
    ```
    """

    name: ClassVar[str] = "infer-placement"

    def run(self, module: ir.Module) -> None:
        """Place all of `@main`. Raises PassError for a task that is on no mesh."""
        check_unrolled(module)
        main = main_of(module)
        placement = place(main)
        improve(placement)
        place_results(placement)
        _Regroup(module, placement).run()


# What the group of an operation is called for: (phase, meshes, level). A level waits for what those before it make.
Key = tuple[str, tuple[int, ...], int]


@dataclass
class _Group:
    """The operations of one new function, and the uses that its results replace."""

    ops: dict[ir.Operation, None]
    outputs: list[ir.Value]
    uses: list[tuple[ir.Operation, int, int]]
    shared: dict[ir.Value, int]

    def result(self, value: ir.Value, *, own: bool = False) -> int:
        """The result number of `value`; with `own` always a new one, which no other use shares."""
        if not own and value in self.shared:
            return self.shared[value]
        self.outputs.append(value)
        number = len(self.outputs) - 1
        if not own:
            self.shared[value] = number
        return number


class _Regroup:
    """Turns the placed operations into functions and calls."""

    def __init__(self, module: ir.Module, placement: Placement) -> None:
        self._module = module
        self._placement = placement
        self._return = terminator(body_of(placement.main))
        joins = placement.stacks.joins
        self._end = next((op for op in operations(body_of(placement.main)) if op in joins), self._return)
        self._groups: dict[Key, _Group] = {}
        self._key: dict[ir.Operation, Key] = {}
        self._users = self._find_users()

    def run(self) -> None:
        """Rewrite `@main` in place."""
        placement = self._placement
        fixed = [op for op in placement.ops if op in placement.home]
        early = self._needed_by_tasks(fixed)
        for op in fixed:
            phase = "before" if op in early else "after"
            self._key[op] = (phase, (placement.home[op],), self._level(op, (placement.home[op],), phase))
        self._let_wait(fixed)
        self._send_early(fixed)
        for op in fixed:
            self._group(self._key[op]).ops[op] = None
        self._connect_tasks()
        self._connect_returns()
        for key in self._sorted_keys():
            self._connect_group(key)
        self._emit()
        self._record()
        for op in reversed(placement.ops):
            if not any(map(is_used, op.results)):
                op.erase()

    def _group(self, key: Key) -> _Group:
        return self._groups.setdefault(key, _Group({}, [], [], {}))

    def _needed_by_tasks(self, fixed: Sequence[ir.Operation]) -> set[ir.Operation]:
        """The fixed operations that a task depends on, also through floating ones."""
        placement = self._placement
        seen: set[ir.Operation] = set()
        work = [placement.producers[value] for value in placement.used_by_tasks if value in placement.producers]
        while work:
            op = work.pop()
            if op not in seen:
                seen.add(op)
                work.extend(placement.producers[v] for v in placement.operands[op] if v in placement.producers)
        return seen.intersection(fixed)

    def _level(self, op: ir.Operation, meshes: tuple[int, ...], phase: str) -> int:
        """How often values crossed meshes, within `phase`, before `op` can run on `meshes`."""
        level = 0
        for value in self._placement.behind(op):
            producer = self._placement.producers.get(value)
            key = self._key.get(producer) if producer is not None else None
            if key is not None and key[0] == phase:
                level = max(level, key[2] + (key[1] != meshes))
        return level

    def _find_users(self) -> dict[ir.Operation, list[ir.Operation]]:
        placement = self._placement
        users: dict[ir.Operation, list[ir.Operation]] = {op: [] for op in placement.ops}
        for op, operands in placement.operands.items():
            for value in operands:
                if value in placement.producers:
                    users[placement.producers[value]].append(op)
        return users

    def _send_early(self, fixed: Sequence[ir.Operation]) -> None:
        """Compute what other meshes wait for in functions of its own, before the rest of the same level.

        The norm of all gradients, say: not together with the update of one mesh, which the others would wait for too.
        """
        users, early = self._users, set[ir.Operation]()
        # What waits for an operation that is computed wherever it is used: meshes, and operations that others wait for.
        waiting: dict[ir.Operation, set[ir.Operation | int]] = {}
        for op in reversed(self._placement.ops):
            reached: set[ir.Operation | int] = set()
            for user in users[op]:
                if user in self._key:
                    reached |= {self._placement.home[user]} | ({user} & early)
                else:
                    reached |= waiting[user]
            if op not in self._key:
                waiting[op] = reached
            elif any(
                each != self._placement.home[op] if isinstance(each, int) else self._key[each] == self._key[op]
                for each in reached
            ):
                early.add(op)
        levels = {op: 2 * self._key[op][2] + (op not in early) for op in fixed}
        numbers = {level: number for number, level in enumerate(sorted(set(levels.values())))}
        for op in fixed:
            self._key[op] = (*self._key[op][:2], numbers[levels[op]])

    def _let_wait(self, fixed: Sequence[ir.Operation]) -> None:
        """Compute what is cheap right before it is used, where no less would be kept until then.

        A moment is so decayed in its own buffer, together with the update that waits for a norm.
        """
        placement, users = self._placement, self._users
        returned = {*self._return.operands, *(value for join in placement.stacks.joins for value in join.operands)}
        for op in reversed(fixed):
            phase, meshes, level = self._key[op]
            keys = [self._key.get(user) for user in users[op]]
            levels = [key[2] for key in keys if key is not None and key[:2] == ("after", meshes)]
            if phase == "before" or not levels or len(levels) < len(keys) or not is_cheap(op):
                continue
            biggest = max((byte_size(value.type) for value in op.operands), default=0)
            if biggest <= byte_size(op.results[0].type) and returned.isdisjoint(op.results):
                self._key[op] = (phase, meshes, max(level, min(levels)))

    def _connect_tasks(self) -> None:
        """Operands of tasks that are computed outside of the loop become results of a group `before`."""
        placement = self._placement
        uses = [
            (task, mesh, number, value)
            for task, mesh in placement.tasks.items()
            for number, value in enumerate(task.operands)
            if value in placement.producers
        ]
        slots = Counter((callee(task), mesh, number, value) for task, mesh, number, value in uses)
        for task, mesh, number, value in uses:
            producer = placement.producers[value]
            once = slots[callee(task), mesh, number, value] == 1
            if producer.name == "stablehlo.constant" and not (once and ir.RankedTensorType(value.type).rank):
                continue  # each mesh makes its constants once, when the program is loaded
            key = self._key.get(producer) or ("before", (mesh,), self._level(producer, (mesh,), "before"))
            group = self._group(key)
            # A value that one call alone takes in this place is the first value of an accumulator: a buffer of its own.
            own = once and producer not in self._key
            group.uses.append((task, number, group.result(value, own=own)))

    def _connect_returns(self) -> None:
        placement = self._placement
        for number, value in enumerate(self._return.operands):
            join = placement.stacks.results.get(number)
            if join is None:
                self._connect_return(self._return, number, value, placement.returned[number])
            else:
                for block, (part, mesh) in enumerate(join.blocks()):
                    self._connect_return(join.op, block, part, [mesh])

    def _connect_return(self, user: ir.Operation, number: int, value: ir.Value, meshes: Sequence[int]) -> None:
        """Let a result of a group be operand `number` of `user`: of the return, or of the join of a stack's blocks."""
        producer = self._placement.producers.get(value)
        if producer is not None:
            where = tuple(meshes)
            group = self._group(self._key.get(producer) or ("after", where, self._level(producer, where, "after")))
            group.uses.append((user, number, group.result(value)))

    def _connect_group(self, key: Key) -> None:
        """Add the floating operations that a group uses, and its fixed operands as results of their groups."""
        placement, group = self._placement, self._groups[key]
        work = [*group.ops, *(placement.producers[value] for value in group.outputs)]
        group.ops.update(dict.fromkeys(work))
        while work:
            for value in placement.operands[work.pop()]:
                producer = placement.producers.get(value)
                if producer is None or producer in group.ops or producer in placement.home:
                    continue
                group.ops[producer] = None
                work.append(producer)
        for op in group.ops:
            for value in placement.operands[op]:
                producer = placement.producers.get(value)
                source = self._key.get(producer) if producer is not None else None
                if source is not None and source != key:
                    self._groups[source].result(value)

    def _emit(self) -> None:
        """Outline each group, call it, and rewire what used its values. Task calls are no keys from here on."""
        placement = self._placement
        shardings = Shardings(self._module)
        order = {op: number for number, op in enumerate(placement.ops)}
        first_task = next(iter(placement.tasks), self._end)
        made: dict[ir.Value, ir.Value] = {}
        for key in self._sorted_keys():
            phase, meshes, _ = key
            group = self._groups[key]
            level = len([other for other in self._groups if other[:2] == key[:2] and other[2] < key[2]])
            name = "_".join([phase, *map(str, meshes)]) + (f"_level_{level}" if level else "")
            ops = sorted(group.ops, key=order.__getitem__)
            attributes = {at.KIND: ir.StringAttr.get(phase)}
            part = outline(self._module, name, ops, group.outputs, attributes, shardings)
            made_call = call(
                name_of(part.function),
                [value.type for value in group.outputs],
                [made.get(value, value) for value in part.inputs],
                {at.MESH: at.i64(meshes[0])} if len(meshes) == 1 else {at.MESHES: at.i64s(meshes)},
                ir.InsertionPoint(first_task if phase == "before" else self._end),
                placement.main.location,
            )
            for value, result in zip(group.outputs, made_call.results, strict=True):
                if placement.producers[value] in self._key:
                    made.setdefault(value, result)
            for op, number, index in group.uses:
                op.operands[number] = made_call.results[index]

    def _sorted_keys(self) -> list[Key]:
        return sorted(self._groups, key=lambda key: (key[0] == "after", key[2], key[1]))

    def _record(self) -> None:
        """Write on the arguments and results of `@main` where they live."""
        placement = self._placement
        arguments = at.argument_attributes(placement.main)
        for entry, (argument, meshes) in zip(arguments, placement.arguments.items(), strict=True):
            entry[at.MESHES] = at.i64s(placement.stacks.arguments.get(argument, sorted(meshes)))
        results = at.result_attributes(placement.main)
        for entry, meshes in zip(results, placement.returned, strict=True):
            entry[at.MESHES] = at.i64s(meshes)
        at.set_tables(placement.main, arguments, results)

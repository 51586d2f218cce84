"""`infer-placement`: places all operations outside of the microbatch loop on meshes."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.placement import place, sources_of
from jaxpp.hlo_passes.program.placement_graph import Meshes, Node, PlacedValue, PlacementGraph, numbers
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, following, main_of, operations, program_order, terminator
from jaxpp.ir.mesh_functions import on_meshes
from jaxpp.ir.numbered import Member
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.outlining import outline
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step, leave
from jaxpp.ir.values import closure, is_used


class InferPlacement(Pass):
    """Makes functions, each for one mesh, of the operations before and after the tasks. Every operation can be placed.

    - An operation goes to the mesh of its operands. If these are on several meshes, it goes where most of their bytes
      are. Operations then move again, several at once, while this leaves fewer bytes to send. They go where their
      results are needed, or, if they are cheap or small, to several meshes that have their operands anyway.
    - With two meshes the placement sends the fewest bytes, apart from scalars, for which no tensor moves. With more
      meshes the optimum is NP-hard to find, and the placement found is seldom worse.
    - Among equal choices an operation goes to the last mesh. The last mesh begins the next step last, so no other mesh
      waits while it collects the norm of all gradients.
    - Values that depend only on constants, and on arguments that several meshes have, are computed wherever they are
      used. Examples are a step counter and a learning rate.
    - An argument is where it is used. A result is where it is computed, or, with `jaxpp.feeds`, where that argument is.
    - The blocks of a stack are where `split-stacks` put them: its `jaxpp.meshes` are the meshes of its blocks, in
      order.
    - A weight of several meshes is updated on one of them and then sent. This takes as many bytes as sending each
      gradient to the other meshes, but the optimizer's work and state exist only once.

    The operations of one mesh become one function before the tasks, for the tasks' operands, and one after them. They
    become several functions where values move between meshes in between, such as a global norm. The first value of an
    accumulator gets its own buffer.

    Preconditions: `unroll-microbatches` ran.

    ```mlir
    %g0 = call @backward_0(...) {jaxpp.mesh = 0}      ==>   %g0 = call @backward_0(...) {jaxpp.mesh = 0}
    %g1 = call @backward_1(...) {jaxpp.mesh = 1}            %g1 = call @backward_1(...) {jaxpp.mesh = 1}
    %n0 = stablehlo.subtract %w0, %g0                       %n0 = call @after_0(%w0, %g0) {jaxpp.mesh = 0}
    %n1 = stablehlo.subtract %w1, %g1                       %n1 = call @after_1(%w1, %g1) {jaxpp.mesh = 1}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Places all of `@main`. Raises PassError for a task that is on no mesh."""
        line = main_of_phase(module, placed=False)
        graph = PlacementGraph(main_of(module), line.steps)
        regroup = _Regroup(module, graph, place(graph))
        regroup.run()
        leave(module, main_line(module, regroup.steps(line.steps), placed=True))


# Identifies a group: (phase, meshes, level). Operations of a level need values of earlier levels.
Key = tuple[str, Meshes, int]


@dataclass
class _OutlinedGroup:
    """The operations of one new function.

    Attributes:
        nodes: the operations.
        outputs: the results of the function.
        uses: the uses that these results replace, as (operation, index of the operand, index of the result).
        shared: the index of the result that several uses of a value share.
    """

    nodes: dict[Node, None] = field(default_factory=dict[Node, None])
    outputs: list[PlacedValue] = field(default_factory=list[PlacedValue])
    uses: list[tuple[Step, int, int]] = field(default_factory=list[tuple[Step, int, int]])
    shared: dict[PlacedValue, int] = field(default_factory=dict[PlacedValue, int])

    def result(self, value: PlacedValue, *, own: bool = False) -> int:
        """Returns the index of the result for `value`; with `own` always a new result, which no other use shares."""
        if not own and value in self.shared:
            return self.shared[value]
        self.outputs.append(value)
        number = len(self.outputs) - 1
        if not own:
            self.shared[value] = number
        return number


class _Regroup:
    """A rewriter that turns placed operations into functions and calls."""

    def __init__(self, module: ir.Module, graph: PlacementGraph, result_meshes: Mapping[int, Meshes]) -> None:
        self._module = module
        self._graph = graph
        self._result_meshes = result_meshes
        self._return = Step.of(terminator(body_of(graph.main)))
        self._groups: defaultdict[Key, _OutlinedGroup] = defaultdict(_OutlinedGroup)
        self._key: dict[Node, Key] = {}
        self._sources: dict[Node, dict[PlacedValue, None]] = {}
        for node in graph.ops:
            if not node.fixed:
                self._sources[node] = sources_of(node, self._sources)

    def run(self) -> None:
        """Rewrites `@main` in place."""
        fixed = [node for node in self._graph.ops if node.fixed]
        early = closure(
            [use.value.node for use in self._graph.task_uses],
            lambda node: [value.node for value in node.operands if value.node.op is not None],
        )
        for node in fixed:
            phase = "before" if node in early else "after"
            self._key[node] = (phase, node.meshes, self._level(node, node.meshes, phase))
        self._let_wait(fixed)
        self._send_early(fixed)
        for node in fixed:
            self._groups[self._key[node]].nodes[node] = None
        self._connect_tasks()
        self._connect_returns()
        for key in self._sorted_keys():
            self._connect_group(key)
        self._emit()
        self._record()
        for node in reversed(self._graph.ops):
            if node.op is not None and node not in self._key and not any(map(is_used, node.op.results)):
                node.op.erase()
                node.op = None

    def steps(self, before: Sequence[Step]) -> list[Step]:
        """Returns the operations of the new `@main`.

        The operations between the tasks are taken from `before`, without those erased since. The others are read.
        """
        body, tasks = body_of(self._graph.main), self._graph.tasks
        if not tasks:
            return list(map(Step.of, operations(body)[:-1]))
        kept = {id(node.op) for node in self._graph.ops if node not in self._key}
        first, last = before.index(tasks[0]), before.index(tasks[-1])
        around = (op.operation for op in body.operations), following(tasks[-1].op)
        head = map(Step.of, takewhile(lambda op: op != tasks[0].op, around[0]))
        middle = (step for step in before[first : last + 1] if step.function is not None or id(step.op) in kept)
        return [*head, *middle, *map(Step.of, list(around[1])[:-1])]

    def _level(self, node: Node, meshes: Meshes, phase: str) -> int:
        """Returns how many transfers in sequence `node` waits for within `phase` if it runs on `meshes`."""
        level = 0
        for value in sources_of(node, self._sources):
            key = self._key.get(value.node)
            if key is not None and key[0] == phase:
                level = max(level, key[2] + (key[1] != meshes))
        return level

    def _send_early(self, fixed: Sequence[Node]) -> None:
        """Computes values that other meshes wait for in separate functions, before the rest of the same level.

        The norm of all gradients is such a value. In one function with the update of its mesh, the other meshes would
        also wait for that update.
        """
        early: set[Node] = set()
        # For each rematerialised operation the meshes of its users, and the groups of its early users.
        waiting: dict[Node, tuple[Meshes, set[Key]]] = {}
        for node in reversed(self._graph.ops):
            meshes: Meshes = 0
            groups: set[Key] = set()
            for user in _users(node):
                if user in self._key:
                    meshes |= user.meshes
                    groups.update([self._key[user]] if user in early else ())
                else:
                    meshes |= waiting[user][0]
                    groups |= waiting[user][1]
            if node not in self._key:
                waiting[node] = meshes, groups
            elif meshes & ~node.meshes or self._key[node] in groups:
                early.add(node)
        levels = {node: 2 * self._key[node][2] + (node not in early) for node in fixed}
        numbers_of = {level: number for number, level in enumerate(sorted(set(levels.values())))}
        for node in fixed:
            self._key[node] = (*self._key[node][:2], numbers_of[levels[node]])

    def _let_wait(self, fixed: Sequence[Node]) -> None:
        """Moves cheap operations right before their use if their operands take no more memory than their results.

        For example the decay of a moment moves to the update that waits for a norm, and reuses the moment's buffer.
        """
        graph = self._graph
        blocks = (graph.values[block] for stack in graph.stacks.results.values() for block in stack.op.operands)
        returned = {*graph.returned.values(), *blocks}
        for node in reversed(fixed):
            phase, meshes, level = self._key[node]
            if phase == "before" or node.op is None or not is_cheap(node.op):
                continue
            keys = [self._key.get(user) for user in _users(node)]
            levels = [key[2] for key in keys if key is not None and key[:2] == ("after", meshes)]
            if not levels or len(levels) < len(keys):
                continue
            biggest = max((value.size for value in node.operands), default=0)
            if biggest <= node.results[0].size and returned.isdisjoint(node.results):
                self._key[node] = (phase, meshes, max(level, min(levels)))

    def _connect_tasks(self) -> None:
        """Makes operands of tasks that are computed outside of the loop results of a group `before`."""
        uses = self._graph.task_uses
        slots = Counter((use.task.callee, use.mesh, use.number, use.value) for use in uses)
        for use in uses:
            node = use.value.node
            once = slots[use.task.callee, use.mesh, use.number, use.value] == 1
            if node.free and not (once and ir.RankedTensorType(use.value.ssa.type).rank):
                continue  # each mesh makes its constants once, when the program is loaded
            meshes = 1 << use.mesh
            group = self._groups[self._key.get(node) or ("before", meshes, self._level(node, meshes, "before"))]
            # Only one call takes the value at this position: the first value of an accumulator needs its own buffer.
            own = once and node not in self._key
            group.uses.append((use.task, use.number, group.result(use.value, own=own)))

    def _connect_returns(self) -> None:
        graph = self._graph
        for number in range(len(self._return.operands)):
            if number in graph.returned:
                self._connect_return(self._return, number, graph.returned[number], self._result_meshes[number])
                continue
            stack = graph.stacks.results[number]
            for block, (part, mesh) in enumerate(stack.blocks()):
                self._connect_return(Step.of(stack.op), block, graph.values[part], 1 << mesh)

    def _connect_return(self, user: Step, number: int, value: PlacedValue, meshes: Meshes) -> None:
        """Makes a group's result operand `number` of `user`, which is the return or the concatenation of a stack."""
        node = value.node
        if node.op is not None:
            group = self._groups[self._key.get(node) or ("after", meshes, self._level(node, meshes, "after"))]
            group.uses.append((user, number, group.result(value)))

    def _connect_group(self, key: Key) -> None:
        """Adds to a group the operations that it rematerialises, and makes other groups return values that it uses."""
        group = self._groups[key]
        work = [*group.nodes, *(value.node for value in group.outputs)]
        group.nodes.update(dict.fromkeys(work))
        for node in work:
            for value in node.operands:
                source = self._key.get(value.node)
                if source is not None and source != key:
                    self._groups[source].result(value)
                elif value.node.op is not None and value.node not in group.nodes:
                    group.nodes[value.node] = None
                    work.append(value.node)

    def _emit(self) -> None:
        """Outlines each group, calls it, and replaces the uses of its values."""
        graph = self._graph
        shardings = Shardings(self._module)
        order = {node: number for number, node in enumerate(graph.ops)}
        stacked = [stack.op for stack in graph.stacks.results.values()]
        end = min(stacked, key=program_order, default=self._return.op)
        first_task = graph.tasks[0].op if graph.tasks else end
        made: dict[ir.Value, ir.Value] = {}
        for key in self._sorted_keys():
            phase, meshes, _ = key
            group = self._groups[key]
            level = len([other for other in self._groups if other[:2] == key[:2] and other[2] < key[2]])
            name = "_".join([phase, *map(str, numbers(meshes))]) + (f"_level_{level}" if level else "")
            nodes = sorted((node for node in group.nodes if node.op is not None), key=order.__getitem__)
            members = [self._member(node) for node in nodes]
            outputs = [value.ssa for value in group.outputs]
            attributes = {at.KIND: ir.StringAttr.get(phase)}
            part = outline(self._module, name, members, outputs, attributes, shardings)
            made_call = call(
                part.function,
                [made.get(value, value) for value in part.inputs],
                on_meshes(numbers(meshes)),
                ir.InsertionPoint(first_task if phase == "before" else end),
                graph.main.location,
            )
            for value, result in zip(group.outputs, made_call.results, strict=True):
                if value.node in self._key:
                    made.setdefault(value.ssa, result)
            for user, number, index in group.uses:
                user.use(number, made_call.results[index])

    def _member(self, node: Node) -> Member:
        """Returns the operation of `node`, which moves unless it is rematerialised."""
        assert node.op is not None
        uses, results = ([value.ssa for value in values] for values in (node.operands, node.results))
        return Member(node.op, uses, results, node in self._key)

    def _sorted_keys(self) -> list[Key]:
        return sorted(self._groups, key=lambda key: (key[0] == "after", key[2], numbers(key[1])))

    def _record(self) -> None:
        """Writes on the arguments and results of `@main` on which meshes they are."""
        graph, stacks = self._graph, self._graph.stacks
        arguments, results = graph.borders
        for entry, argument in zip(arguments, graph.arguments, strict=True):
            entry[at.MESHES] = at.i64s(stacks.arguments.get(argument.ssa) or numbers(argument.node.meshes))
        for number, entry in enumerate(results):
            stack = stacks.results.get(number)
            entry[at.MESHES] = at.i64s(stack.homes if stack else numbers(self._result_meshes[number]))
        at.set_tables(graph.main, arguments, results)


def _users(node: Node) -> list[Node]:
    """Returns the operations that use the results of `node`."""
    return [user for value in node.results for user in value.consumers if user.op is not None]

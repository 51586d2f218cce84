"""Moves operations of a placed `@main` to other meshes, where that leaves fewer bytes to send."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.ir.functions import body_of, has_side_effect, terminator
from jaxpp.hlo_passes.ir.values import byte_size
from jaxpp.hlo_passes.program.fewest_bytes import Problem, Value
from jaxpp.hlo_passes.program.placement import SMALL, Placement, is_small, place_arguments, pulls_of


def improve(placement: Placement) -> None:
    """Change `placement` so that fewer bytes are sent, where the rules that made it don't look far enough ahead.

    An operation may go to any mesh; one that is cheap or small may be computed on several. An argument that no task
    uses and that a result becomes in the next step (the state of an optimizer) goes with what updates it.
    """
    improvement = _Improvement(placement)
    before = list(improvement.problem.chosen)
    improvement.problem.improve()
    if improvement.problem.chosen != before:
        improvement.apply(before)


class _Improvement:
    """A placement as a problem of nodes and values, and back.

    Constants and arguments that no task uses and no result feeds cost nothing anywhere: they are left out.
    """

    def __init__(self, placement: Placement) -> None:
        self.problem = Problem()
        self._placement = placement
        self._nodes: dict[ir.Operation | ir.Value, int] = {}
        self._needed = {value: set(meshes) for value, meshes in placement.used_by_tasks.items()}
        self._takers: dict[ir.Value, list[int]] = {}
        self._fed: set[ir.Value] = set()
        self._read_results()
        self._add_operations()
        for value in {**self._takers, **self._needed}:
            self._add_value(value)

    def _read_results(self) -> None:
        placement = self._placement
        arguments = list(placement.arguments)
        table = at.result_attributes(placement.main)
        for number, value in enumerate(terminator(body_of(placement.main)).operands):
            feeds = table[number].get(at.FEEDS)
            if number in placement.stacks.results:
                for block, mesh in placement.stacks.results[number].blocks():
                    self._needed.setdefault(block, set()).add(mesh)
            elif isinstance(feeds, ir.IntegerAttr) and 0 <= feeds.value < len(arguments):
                self._feed(arguments[feeds.value], value)

    def _feed(self, argument: ir.Value, value: ir.Value) -> None:
        """The result `value` is needed where tasks use the argument that it becomes; if none does, both go together."""
        placement = self._placement
        self._fed.add(argument)
        if argument in placement.used_by_tasks:
            self._needed.setdefault(value, set()).update(placement.used_by_tasks[argument])
            return
        if argument not in self._nodes:
            made_on = placement.mesh_of(value)
            if not placement.arguments[argument] and made_on is not None:
                placement.arguments[argument].add(made_on)
            # What is large is kept once: a copy would take memory for ever, to save bytes once per step.
            small = byte_size(argument.type) <= SMALL
            self._nodes[argument] = self.problem.add(placement.arguments[argument], repeats=small)
        self._takers.setdefault(value, []).append(self._nodes[argument])

    def _add_operations(self) -> None:
        placement = self._placement
        reached = {value: set(meshes) for value, meshes in self._needed.items()}
        for value, takers in self._takers.items():
            reached.setdefault(value, set()).update(*(self.problem.chosen[taker] for taker in takers))
        pulls = pulls_of(placement, reached)
        for op in placement.ops:
            if op.name == "stablehlo.constant":
                continue
            home = placement.home.get(op)
            chosen = {home} if home is not None else set[int]().union(*(pulls.get(r, ()) for r in op.results))
            repeats = (is_cheap(op) or is_small(op)) and not has_side_effect(op)
            self._nodes[op] = self.problem.add(chosen, repeats=repeats)
            for value in placement.operands[op]:
                self._takers.setdefault(value, []).append(self._nodes[op])

    def _add_value(self, value: ir.Value) -> None:
        placement = self._placement
        producer = placement.producers.get(value)
        maker: int | None = None
        here: set[int] = set()
        if producer is not None:
            maker = self._nodes.get(producer)
            if maker is None:
                return
        elif value in self._nodes:
            maker = self._nodes[value]
        elif value in placement.made_by_tasks:
            here = {placement.made_by_tasks[value]}
        else:
            here = placement.used_by_tasks.get(value, set())
            if len(here) != 1 and value not in self._fed:
                return
        takers = self._takers.get(value, [])
        needed = self._needed.get(value, set())
        self.problem.values.append(Value(byte_size(value.type), maker, takers, frozenset(here), frozenset(needed)))

    def apply(self, before: list[frozenset[int]]) -> None:
        """Change the placement where what is chosen is no longer what it was."""
        placement = self._placement
        for key, node in self._nodes.items():
            meshes = self.problem.chosen[node]
            if isinstance(key, ir.Value):
                placement.arguments[key] = set(meshes)
            elif meshes == before[node]:
                continue
            elif len(meshes) == 1:
                placement.home[key] = min(meshes)
            else:
                placement.home.pop(key, None)
        for op in placement.ops:
            placement.sources[op] = placement.behind(op)
        for argument, meshes in placement.used_by_tasks.items():
            if argument in placement.arguments:
                placement.arguments[argument] = set(meshes)
        place_arguments(placement, pulls_of(placement))

"""Moves operations between meshes for as long as that leaves fewer bytes to send."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxpp.hlo_passes.ir.min_cut import UNCUTTABLE, min_cut

# Bytes: what is linked by larger values than this does not move for the sake of smaller ones.
_LARGE = 1 << 7

# Larger problems are left as they are: the time of a cut grows faster than its size.
_MOST_NODES = 1 << 12


@dataclass(frozen=True)
class Value:
    """A value of `size` bytes.

    It is made by the node `maker` or, where that is None, is on the meshes `here` in any case. The nodes `takers` use
    it, and the meshes `needed` need it in any case.
    """

    size: int
    maker: int | None
    takers: Sequence[int]
    here: frozenset[int]
    needed: frozenset[int]


@dataclass
class Problem:
    """Nodes (operations, and arguments that are free to be anywhere), each on one mesh; some may be on several.

    `chosen` holds the meshes of each node. A value is sent once to every mesh that needs it and doesn't have it.
    """

    chosen: list[frozenset[int]] = field(default_factory=list)
    repeats: list[bool] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, chosen: Iterable[int], *, repeats: bool) -> int:
        """A new node; `repeats` if it may be on several meshes. Returns its number."""
        self.chosen.append(frozenset(chosen))
        self.repeats.append(repeats)
        return len(self.chosen) - 1

    def sent(self, value: Value) -> int:
        """How many meshes `value` is sent to."""
        have = value.here if value.maker is None else self.chosen[value.maker]
        return len(self._needed(value) - have)

    def _needed(self, value: Value) -> frozenset[int]:
        return value.needed.union(*(self.chosen[taker] for taker in value.takers))

    def bytes_sent(self, values: Iterable[Value]) -> int:
        """How many bytes are sent of these values."""
        return sum(value.size * self.sent(value) for value in values)

    def improve(self) -> None:
        """Change `chosen` so that fewer bytes are sent; what is as good as it can be stays untouched.

        Nodes that large values link are looked at together, if any of these is sent. Only large values count there: to
        save a scalar, the states of an optimizer would all gather on the mesh of its norm. Then, with these in their
        places, come the nodes that no large value ties to a mesh.
        """
        touching: list[list[Value]] = [[] for _ in self.chosen]
        for value in self.values:
            for node in _nodes_of(value):
                touching[node].append(value)
        for group, smallest in self._groups():
            touched = {id(value): value for node in group for value in touching[node] if value.size >= smallest}
            if len(group) <= _MOST_NODES and self.bytes_sent(touched.values()):
                _Group(self, group, list(touched.values())).improve()
        self._complete(touching)

    def _complete(self, touching: Sequence[Sequence[Value]]) -> None:
        """Let every node that is on several meshes be on all that need it, or on one: there is no other form for it."""
        for node in reversed(range(len(self.chosen))):
            chosen = self.chosen[node]
            made = [value for value in touching[node] if value.maker == node] if len(chosen) > 1 else []
            needed = frozenset[int]().union(*(self._needed(value) for value in made))
            if needed - chosen:
                choices = {each: 0 for each in [needed, *(frozenset((mesh,)) for mesh in chosen)]}
                for each in choices:
                    self.chosen[node] = each
                    choices[each] = self.bytes_sent(touching[node])
                self.chosen[node] = min(choices, key=choices.__getitem__)

    def _groups(self) -> Iterator[tuple[list[int], int]]:
        """Nodes to be looked at together, each time with the bytes of the smallest value that counts."""
        large = [value for value in self.values if value.size > _LARGE]
        parents = list(range(len(self.chosen)))

        def root(node: int) -> int:
            while parents[node] != node:
                parents[node] = node = parents[parents[node]]
            return node

        for value in large:
            first, *others = _nodes_of(value) or [0]
            for node in others:
                parents[root(node)] = root(first)
        moving = {root(node) for value in large if self.sent(value) for node in _nodes_of(value)}
        tied = {root(node) for value in large if value.here or value.needed for node in _nodes_of(value)}
        groups: dict[int, list[int]] = {each: [] for each in sorted(moving)}
        free: list[int] = []
        for node in range(len(parents)):
            if root(node) in groups:
                groups[root(node)].append(node)
            elif root(node) not in tied:
                free.append(node)
        yield from ((group, _LARGE + 1) for group in groups.values())
        yield free, 0


def _nodes_of(value: Value) -> list[int]:
    return [*value.takers] if value.maker is None else [value.maker, *value.takers]


class _Group:
    """Some nodes that may change, with the values that touch them; all others stay.

    A move lets any of the nodes come to one mesh and leave their others; one that may be on several meshes may do one
    without the other. The best of all such choices is a minimum cut. Repeated for each mesh this is the expansion
    algorithm of Boykov, Veksler and Zabih (PAMI 2001): the optimum for two meshes, in practice close to it for more.
    """

    def __init__(self, problem: Problem, nodes: Sequence[int], values: Sequence[Value]) -> None:
        self._problem = problem
        self._nodes = nodes
        self._values = values
        self._comes: dict[int, int] = {}
        self._leaves: dict[int, int] = {}
        self._edges: list[tuple[int, int, int]] = []
        self._count = 0

    def improve(self) -> None:
        """Move the nodes until no move to any mesh is better than none."""
        problem, stale = self._problem, 0
        sets = [problem.chosen[node] for value in self._values for node in _nodes_of(value)]
        meshes = sorted(frozenset().union(*sets, *(value.here | value.needed for value in self._values)))
        best = problem.bytes_sent(self._values)
        while stale < len(meshes) and best:
            mesh = meshes.pop(0)
            meshes.append(mesh)
            before = {node: problem.chosen[node] for node in self._nodes}
            self._move(mesh)
            sent = problem.bytes_sent(self._values)
            stale = 0 if sent < best else stale + 1
            if sent >= best:
                for node, chosen in before.items():
                    problem.chosen[node] = chosen
            best = min(best, sent)

    def _move(self, mesh: int) -> None:
        """Let nodes come to `mesh`, and leave others, as the minimum cut says.

        A choice is a node of the graph, on the side of 1 if it is taken; nobody comes or leaves on the side of 0.
        """
        chosen = self._problem.chosen
        # What is on this mesh alone has nowhere else to go.
        moving = [node for node in self._nodes if chosen[node] != frozenset((mesh,))]
        self._edges, self._count = [], 2
        self._comes = {node: self._choice() for node in moving}
        self._leaves = {node: self._choice() if self._problem.repeats[node] else self._comes[node] for node in moving}
        self._edges.extend(
            (self._comes[node], self._leaves[node], UNCUTTABLE) for node in moving if self._problem.repeats[node]
        )
        for value in self._values:
            self._on_the_mesh(value, mesh)
            self._elsewhere(value, mesh)
        refused = min_cut(self._edges, self._count) if self._edges else range(self._count)
        for node in moving:
            others = chosen[node] - {mesh} if self._leaves[node] in refused else frozenset[int]()
            chosen[node] = others if self._comes[node] in refused else others | {mesh}

    def _on_the_mesh(self, value: Value, mesh: int) -> None:
        """It costs something if a taker comes to `mesh` and the maker doesn't."""
        chosen, comes = self._problem.chosen, self._comes
        if value.maker in comes:
            maker = comes[value.maker]
        elif mesh in (value.here if value.maker is None else chosen[value.maker]):
            return
        else:
            maker = 0
        if mesh in value.needed or any(mesh in chosen[node] for node in value.takers if node not in comes):
            self._cost(maker, 1, value.size)
        else:
            self._cost(
                maker, self._any([comes[node] for node in value.takers if node in comes], taken=True), value.size
            )

    def _elsewhere(self, value: Value, mesh: int) -> None:
        """It costs something on any other mesh if the maker leaves it, and a taker doesn't."""
        chosen, leaves = self._problem.chosen, self._leaves
        have = value.here if value.maker is None else chosen[value.maker]
        maker = leaves.get(value.maker) if value.maker is not None else None
        staying = value.needed.union(*(chosen[node] for node in value.takers if node not in leaves))
        takers: dict[int, list[int]] = {}
        for node in value.takers:
            for other in chosen[node] if node in leaves else ():
                takers.setdefault(other, []).append(leaves[node])
        for other in (staying | takers.keys()) - {mesh}:
            if other in have and maker is None:
                continue
            made = maker if other in have and maker is not None else 1
            self._cost(0 if other in staying else self._any(takers[other], taken=False), made, value.size)

    def _choice(self) -> int:
        self._count += 1
        return self._count - 1

    def _cost(self, refused: int, taken: int, size: int) -> None:
        """It costs `size` if the one choice is refused and the other taken."""
        if (refused, taken) != (0, 1) and refused != taken:
            self._edges.append((refused, taken, size))

    def _any(self, choices: Sequence[int], *, taken: bool) -> int:
        """A choice that is taken if any of `choices` is, or refused if any of them is."""
        if len(choices) == 1:
            return choices[0]
        found = self._choice()
        self._edges.extend((found, each, UNCUTTABLE) if taken else (each, found, UNCUTTABLE) for each in choices)
        return found

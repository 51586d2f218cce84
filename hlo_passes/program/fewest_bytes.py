"""Moves operations between meshes for as long as that leaves fewer bytes to send."""

from collections.abc import Iterable, Iterator, Sequence

from jaxpp.hlo_passes.program.placement_graph import Meshes, Node, PlacedValue, each_of, is_one
from jaxpp.ir.min_cut import UNCUTTABLE, min_cut

# In bytes. Operations that larger values connect do not move apart to save smaller ones.
_LARGE = 1 << 7

# A move to a mesh considers the nodes at most this many edges away from a value that is sent to the mesh or from it.
_STEPS = 8

# Larger problems stay unsolved: the time of a cut grows faster than its size.
_MOST_NODES = 1 << 12


def send_fewer_bytes(nodes: Sequence[Node]) -> None:
    """Changes the meshes of `nodes`, all nodes that can move, so that fewer bytes are sent.

    A value is sent once to every mesh that needs it and doesn't have it. First, each group of nodes that large values
    connect is moved, if one of these values is sent. Only large values count here: otherwise the optimizer's states
    would move to the mesh of their norm, to save a scalar. Then the nodes are moved that no large value ties to a mesh.
    """
    untied: list[Node] = []
    for component, is_tied, is_sent in list(_components(nodes)):
        if is_sent:
            _move(component, _LARGE + 1)
        elif not is_tied:
            untied.extend(component)
    _move(untied, 0)
    _move_to_the_last(untied)
    for node in reversed(nodes):
        _complete(node)


def _components(nodes: Iterable[Node]) -> Iterator[tuple[list[Node], bool, bool]]:
    """Yields each group of nodes that large values connect, whether one ties it to a mesh, and whether one is sent."""
    seen: set[Node | PlacedValue] = set()
    for start in nodes:
        if start in seen:
            continue
        seen.add(start)
        component, is_tied, is_sent = [start], False, False
        for node in component:
            for value in (*node.operands, *node.results):
                if value.size <= _LARGE or value in seen or value.node.free:
                    continue
                seen.add(value)
                is_tied = is_tied or bool(value.sinks) or not value.node.movable
                is_sent = is_sent or bytes_sent(value) > 0
                for other in (value.node, *value.consumers):
                    if other.movable and other not in seen:
                        seen.add(other)
                        component.append(other)
        yield component, is_tied, is_sent


def bytes_sent(value: PlacedValue) -> int:
    """Returns how many bytes of `value` are sent, over all meshes."""
    return 0 if value.node.free else value.size * (_needed(value) & ~value.node.meshes).bit_count()


def _needed(value: PlacedValue) -> Meshes:
    meshes = value.sinks
    for node in value.consumers:
        meshes |= node.meshes
    return meshes


def _complete(node: Node) -> None:
    """Places a node that is on several meshes, but not on all that need it, on all of these or on one mesh.

    The IR can express nothing else.
    """
    needed: Meshes = 0
    if node.meshes & (node.meshes - 1):
        for value in node.results:
            needed |= _needed(value)
    if needed & ~node.meshes:
        costs: dict[Meshes, int] = {}
        for meshes in (needed, *each_of(node.meshes)):
            node.meshes = meshes
            costs[meshes] = sum(map(bytes_sent, {*node.operands, *node.results}))
        node.meshes = min(costs, key=costs.__getitem__)


def _move(nodes: Sequence[Node], smallest: int) -> None:
    """Moves `nodes` until no move to any mesh leaves fewer bytes of values of at least `smallest` bytes to send.

    A move lets any of the nodes be added to one mesh and dropped from their other meshes. A node that may be on several
    meshes may do one without the other. The best of all such choices is a minimum cut. Repeated for each mesh this is
    the expansion algorithm of Boykov, Veksler and Zabih (PAMI 2001): the optimum for two meshes, in practice close to
    it for more.
    """
    values = _values_of(nodes, smallest)
    if len(nodes) > _MOST_NODES or not any(map(bytes_sent, values)):
        return
    group = set(nodes)
    used: Meshes = 0
    for value in values:
        used |= _needed(value) | value.node.meshes
    meshes, stale = [*each_of(used)], 0
    while stale < len(meshes):
        mesh = meshes.pop(0)
        meshes.append(mesh)
        stale = 0 if _expand(_near(values, mesh, group), mesh, smallest) else stale + 1


def _move_to_the_last(nodes: Sequence[Node]) -> None:
    """Moves nodes to the last mesh where that sends no more bytes, such as the norm of all gradients.

    A sum over all meshes has to wait for the mesh that ends last. If that mesh computes the sum, no other mesh waits
    for the sum while it could begin the next step. The last mesh begins the next step later than the others anyway.
    """
    values = _values_of(nodes, 0)
    if len(nodes) > _MOST_NODES or not any(map(bytes_sent, values)):
        return
    last = 1 << (max(value.node.meshes | _needed(value) for value in values).bit_length() - 1)
    _expand(_near(values, last, set(nodes), 4 * _STEPS), last, 0, among_equals=True)


def _expand(moving: Sequence[Node], mesh: Meshes, smallest: int, *, among_equals: bool = False) -> bool:
    """Moves nodes to `mesh` if fewer bytes are sent then; with `among_equals`, also if as many are sent.

    Returns whether it kept the move.
    """
    values, before = _values_of(moving, smallest), [node.meshes for node in moving]
    sent = sum(map(bytes_sent, values))
    if moving:
        _Expansion(moving, values, mesh).run(among_equals=among_equals)
    now = sum(map(bytes_sent, values))
    if now < sent or (among_equals and now == sent):
        return True
    for node, old in zip(moving, before, strict=True):
        node.meshes = old
    return False


def _values_of(nodes: Iterable[Node], smallest: int) -> list[PlacedValue]:
    """Returns the values of at least `smallest` bytes that `nodes` use or define."""
    values = dict.fromkeys(value for node in nodes for value in (*node.operands, *node.results))
    return [value for value in values if value.size >= smallest and not value.node.free]


def _near(values: Iterable[PlacedValue], mesh: Meshes, group: set[Node], steps: int = _STEPS) -> list[Node]:
    """Returns the nodes of `group` that are at most `steps` from a value that is sent to `mesh` or from it."""
    border = [value for value in values if mesh & (value.node.meshes | _needed(value)) and bytes_sent(value)]
    found: dict[Node, None] = {}
    passed = set(border)  # each value once: all gradients read their norm, which has them all as its consumers
    for _ in range(steps):
        nodes = dict.fromkeys(node for value in border for node in (value.node, *value.consumers))
        nodes = [node for node in nodes if node in group and node not in found]
        found.update(dict.fromkeys(nodes))
        values = dict.fromkeys(value for node in nodes for value in (*node.operands, *node.results))
        border = [value for value in values if value not in passed]
        passed.update(border)
    # A node that is on this mesh alone does not move.
    return [node for node in found if node.meshes != mesh]


class _Expansion:
    """A move to `mesh`, as a minimum cut.

    Each vertex of the graph is a choice: to add a node to `mesh`, or to drop it from its other meshes. The cut takes
    the choices on the side of vertex 1, and refuses the choices on the side of vertex 0. For a node that may be on one
    mesh only, both are one choice.
    """

    def __init__(self, nodes: Sequence[Node], values: Sequence[PlacedValue], mesh: Meshes) -> None:
        self._values = values
        self._mesh = mesh
        self._moving = nodes
        self._edges: list[tuple[int, int, int]] = []
        self._any_of: dict[tuple[int, frozenset[int]], int] = {}
        self._count = 2
        self._added = {node: self._choice() for node in self._moving}
        self._dropped = {node: self._choice() if node.repeats else self._added[node] for node in self._moving}

    def run(self, *, among_equals: bool = False) -> None:
        """Moves the nodes as a minimum cut says; with `among_equals`, by the minimum cut that moves the most nodes."""
        self._edges.extend(
            (added, self._dropped[node], UNCUTTABLE) for node, added in self._added.items() if node.repeats
        )
        for value in self._values:
            self._add_value(value)
        if among_equals:  # each node that stays costs a little, and all of them together less than one byte
            stays = [(dropped, 1, 1) for node, dropped in self._dropped.items() if is_one(node.meshes)]
            sizes = ((size if size == UNCUTTABLE else size * (len(stays) + 1)) for _, _, size in self._edges)
            edges = zip(self._edges, sizes, strict=True)
            self._edges = [*((tail, head, size) for (tail, head, _), size in edges), *stays]
        refused = min_cut(self._edges, self._count) if self._edges else range(self._count)
        for node in self._moving:
            others = node.meshes & ~self._mesh if self._dropped[node] in refused else 0
            node.meshes = others if self._added[node] in refused else others | self._mesh

    def _add_value(self, value: PlacedValue) -> None:
        """Adds the cost of `value`: its size for each mesh that has one of its consumers but not its producer."""
        moving = [node for node in value.consumers if node in self._added]
        staying = value.sinks
        for node in value.consumers:
            if node not in self._added:
                staying |= node.meshes
        for mesh in each_of(_needed(value) | self._mesh):
            there = int(mesh == self._mesh)
            producer = self._choice_for(value.node, mesh)
            if producer == there:
                continue
            if staying & mesh:
                consumers = {there}
            else:
                consumers = {self._choice_for(node, mesh) for node in moving} - {1 - there, producer}
            if not consumers or {producer, *consumers} == {0, 1}:
                continue
            consumer = there if there in consumers else self._any(consumers, there)
            self._edges.append((producer, consumer, value.size) if there else (consumer, producer, value.size))

    def _choice_for(self, node: Node, mesh: Meshes) -> int:
        """Returns the vertex that decides whether `node` is on `mesh` after the move: a choice, 0 or 1.

        On the mesh of the move, the node is there if the choice is taken; on another mesh, if it is refused.
        """
        if mesh == self._mesh:
            return self._added.get(node, int(node.meshes & mesh != 0))
        return self._dropped.get(node, 0) if node.meshes & mesh else 1

    def _any(self, choices: set[int], taken: int) -> int:
        """Returns a vertex that is taken if any of `choices` is, or, if `taken` is 0, refused if any of them is."""
        if len(choices) == 1:
            return choices.pop()
        key = taken, frozenset(choices)
        if key not in self._any_of:
            found = self._any_of[key] = self._choice()
            self._edges.extend((found, each, UNCUTTABLE) if taken else (each, found, UNCUTTABLE) for each in choices)
        return self._any_of[key]

    def _choice(self) -> int:
        self._count += 1
        return self._count - 1

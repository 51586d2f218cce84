"""Places operations outside of the microbatch loop, and the arguments and results of `@main`, on meshes."""

from jaxpp.hlo_passes.program.fewest_bytes import send_fewer_bytes
from jaxpp.hlo_passes.program.placement_graph import Meshes, Node, PlacedValue, PlacementGraph, is_one
from jaxpp.ir.values import closure


def place(graph: PlacementGraph) -> dict[int, Meshes]:
    """Places each operation and each argument of `graph`. Returns the meshes of all results but stacks.

    An operation goes to the mesh of its operands. If these are on several meshes, it goes where most of their bytes
    are. An operation that depends on no mesh is rematerialised wherever it is used. If it is large and expensive, it
    runs once, on the first mesh that uses it. Arguments are placed where they are used. Finally nodes move wherever
    this leaves fewer bytes to send.
    """
    # Twice: an argument that no task uses, such as optimizer state, gets its meshes from its consumers' meshes.
    for _ in range(2):
        sources: dict[Node, dict[PlacedValue, None]] = {}
        for node in graph.ops:
            if not node.fixed:
                _follow_operands(node, sources)
        graph.find_demand()
        for node in graph.ops:
            if not node.fixed and not node.free and not node.repeats:
                node.meshes, node.fixed = node.meshes & -node.meshes or 1, True
            elif not node.fixed:
                _follow_operands(node, sources)
        _place_arguments(graph)
    _improve(graph)
    return _place_results(graph)


def sources_of(node: Node, sources: dict[Node, dict[PlacedValue, None]]) -> dict[PlacedValue, None]:
    """Returns the values on a fixed mesh that `node` depends on, directly or through rematerialised operations.

    `sources` holds this result for each rematerialised operation before `node`.
    """
    found: dict[PlacedValue, None] = {}
    for value in node.operands:
        if value.node.fixed:
            found[value] = None
        else:
            found.update(sources.get(value.node, ()))
    return found


def _follow_operands(node: Node, sources: dict[Node, dict[PlacedValue, None]]) -> None:
    """Puts `node` on the mesh that has the most bytes of its sources.

    A node without sources, or one that `expands`, stays unplaced.
    """
    found = sources[node] = sources_of(node, sources)
    if found and not node.expands:
        bytes_on: dict[Meshes, int] = {}
        for value in found:
            bytes_on[value.node.meshes] = bytes_on.get(value.node.meshes, 0) + value.size
        # A tie goes to the first operand's mesh: a sum of accumulators begins with its stage's home mesh.
        node.meshes, node.fixed = max(bytes_on, key=bytes_on.__getitem__), True


def _place_arguments(graph: PlacementGraph) -> None:
    """Adds, to arguments on no mesh or on several, the meshes that use them.

    An argument on one mesh stays there, and its value is sent.
    """
    graph.find_demand()
    for argument in graph.arguments:
        node = argument.node
        if not node.fixed:
            node.meshes |= argument.demand
            node.fixed = is_one(node.meshes)


def _improve(graph: PlacementGraph) -> None:
    """Moves nodes to other meshes where the earlier rules did not look far enough ahead."""
    for argument in graph.arguments:
        if not argument.node.movable:
            argument.node.meshes, argument.node.fixed = argument.sinks, is_one(argument.sinks)
    for number, argument in graph.feeds.items():
        if not argument.node.meshes and graph.returned[number].node.fixed:
            argument.node.meshes = graph.returned[number].node.meshes
    graph.find_demand()
    nodes = [node for node in (*graph.ops, *(argument.node for argument in graph.arguments)) if node.movable]
    before = [node.meshes for node in nodes]
    send_fewer_bytes(nodes)
    for node, meshes in zip(nodes, before, strict=True):
        if node.meshes != meshes:
            node.fixed = is_one(node.meshes)
    _place_arguments(graph)


def _place_results(graph: PlacementGraph) -> dict[int, Meshes]:
    """Places each result with the argument that it becomes in the next step, or otherwise where it is computed.

    Returns the meshes by the index of the result.
    """
    found: dict[int, Meshes] = {}
    for number, value in graph.returned.items():
        argument = graph.feeds.get(number)
        if argument is not None and argument.node.meshes:
            meshes = argument.node.meshes
        elif value.node.fixed or (value.node.op is None and value.node.meshes):
            meshes = value.node.meshes
        else:
            meshes = _shared_by_arguments(value)
        if argument is not None and not argument.node.meshes:
            argument.node.meshes, argument.node.fixed = meshes, is_one(meshes)
        found[number] = meshes
        value.sinks |= meshes
    # A rematerialised node that only results need runs on the meshes of these results.
    _place_arguments(graph)
    return found


def _shared_by_arguments(value: PlacedValue) -> Meshes:
    """Returns a mesh that has all arguments on which a rematerialised value depends; mesh 0 if no mesh has all."""
    shared = -1
    for current in closure([value], lambda each: each.node.operands if each.node.op is not None else ()):
        if current.node.op is None and current.node.meshes:
            shared &= current.node.meshes
    return shared & -shared if shared > 0 else 1

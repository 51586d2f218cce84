"""Finds the results of a training step that are arguments of the next one.

It is a hint for placement: a result that comes back as an argument should stay on the mesh that uses that argument.
"""

from collections.abc import Sequence
from typing import Any


class _Node:
    """A subtree with the positions of its leaves among all leaves: `start` to `start + size`."""

    def __init__(self, tree: Any, start: int) -> None:
        self.tree = tree
        self.start = start
        self.size: int = tree.num_leaves

    def children(self) -> list["_Node"]:
        nodes: list[_Node] = []
        start = self.start
        for child in self.tree.children():
            nodes.append(_Node(child, start))
            start += child.num_leaves
        return nodes

    def types(self, avals: Sequence[Any]) -> tuple[Any, ...]:
        leaves = avals[self.start : self.start + self.size]
        return self.tree, tuple((aval.shape, aval.dtype) for aval in leaves)


def match_state(
    in_tree: Any, in_avals: Sequence[Any], donated: Sequence[bool], out_tree: Any, out_avals: Sequence[Any]
) -> dict[int, int]:
    """Returns the argument that each result feeds, if any; both by position among all leaves.

    The largest subtrees of the results are matched first, outermost first. Each is matched with the first unused
    subtree of the arguments that has the same structure, shapes and dtypes; donated arguments come first. A single
    array is matched only with a whole argument that is donated: a loss is no state.

    Args:
        in_tree: the structure of `(args, kwargs)`.
        in_avals: the arguments' types.
        donated: which of the arguments are donated.
        out_tree: the structure of the results.
        out_avals: the results' types.
    """
    args, kwargs = _Node(in_tree, 0).children()
    arguments = [*args.children(), *kwargs.children()]
    candidates = _subtrees(arguments)
    candidates.sort(key=lambda node: not all(donated[node.start : node.start + node.size]))
    by_type: dict[Any, list[_Node]] = {}
    for node in candidates:
        by_type.setdefault(node.types(in_avals), []).append(node)
    singles = [node for node in arguments if node.size == 1 and donated[node.start]]
    used: set[int] = set()
    feeds: dict[int, int] = {}

    def take(result: _Node, choices: Sequence[_Node]) -> bool:
        for node in choices:
            if used.isdisjoint(range(node.start, node.start + node.size)):
                used.update(range(node.start, node.start + node.size))
                feeds.update((result.start + k, node.start + k) for k in range(node.size))
                return True
        return False

    whole = _Node(out_tree, 0)
    pending = [whole]
    while pending:
        result = pending.pop(0)
        if result.size >= 2 and not take(result, by_type.get(result.types(out_avals), [])):
            pending += [child for child in result.children() if child.size >= 2]
    for result in [whole, *whole.children()]:
        if result.size == 1 and result.start not in feeds:
            take(result, [node for node in singles if node.types(in_avals) == result.types(out_avals)])
    return feeds


def _subtrees(nodes: Sequence[_Node]) -> list[_Node]:
    """Returns all subtrees with at least two leaves, outermost first."""
    found: list[_Node] = []
    for node in nodes:
        if node.size >= 2:
            found += [node, *_subtrees(node.children())]
    return found

"""The structures of pytrees as JSON. Classes of the user's are named in it, and found again in a tree that is given."""

import re
from collections.abc import Mapping
from typing import Any, cast

import jax
from jax.tree_util import PyTreeDef, default_registry

Nodes = Mapping[tuple[str, str | None, int], Any]
"""Classes of the user's, each as JAX describes a node of it: `PyTreeDef.node_data`.

By the name of the class, what its nodes have beside their children, as text, and the number of these.
"""

_CONTAINERS = {"tuple": (tuple, None), "list": (list, None), "none": (type(None), None)}


class UnknownNodeError(LookupError):
    """A structure has a node that is not in the tree that was given; its text says which."""


def to_json(tree: Any) -> Any:
    """A structure as JSON: None is a leaf, a list is a node, its kind first and its children behind."""
    node = tree.node_data()
    if node is None:
        return None
    kind, data = node
    children = [to_json(child) for child in tree.children()]
    if kind is dict and all(isinstance(key, str) for key in data):
        return ["dict", data, *children]
    name = next((name for name, (each, _) in _CONTAINERS.items() if each is kind), None)
    return [name, *children] if name else ["class", _described(node), *children]


def from_json(tree: Any, nodes: Nodes) -> Any:
    """The structure that `to_json` wrote.

    Raises UnknownNodeError for a class that `nodes` lacks, ValueError for what `to_json` never writes: JAX makes
    anything of a node and its children, and fails by a signal when values are put into it.
    """
    if tree is None:
        return jax.tree.structure(0)
    if not isinstance(tree, list) or not tree:
        raise ValueError(f"a structure with {tree!r}")
    kind, *children = cast("list[Any]", tree)
    node = _CONTAINERS.get(kind) if isinstance(kind, str) else None
    if node is None:
        if kind not in ("dict", "class") or not children:
            raise ValueError(f"a structure with a node {kind!r}")
        data, *children = children
        node = (dict, _keys(data, len(children))) if kind == "dict" else _known(data, len(children), nodes)
    elif kind == "none" and children:
        raise ValueError("a structure with a None that has children")
    return PyTreeDef.from_node_data_and_children(default_registry, node, [from_json(each, nodes) for each in children])


def nodes_of(tree: Any) -> Nodes:
    """The classes of the user's in a pytree."""
    found: dict[tuple[str, str | None, int], Any] = {}
    pending = [jax.tree.structure(tree)]
    while pending:
        structure = pending.pop()
        if (node := structure.node_data()) is not None:
            children = structure.children()
            name, data = _described(node)
            found[name, data, len(children)] = node
            pending += children
    return found


def _keys(data: Any, count: int) -> list[str]:
    keys = cast("list[Any]", data) if isinstance(data, list) else []
    if len(keys) != count or not all(isinstance(key, str) for key in keys) or sorted(set(keys)) != keys:
        raise ValueError(f"a structure with a dict of {count} values and the keys {data!r}")
    return keys


def _known(described: Any, count: int, nodes: Nodes) -> Any:
    name, data = described if isinstance(described, list | tuple) and len(described) == 2 else (None, None)
    if not isinstance(name, str) or not isinstance(data, str | None):
        raise ValueError(f"a structure with a node of the class {described!r}")
    if (name, data, count) in nodes:
        return nodes[name, data, count]
    others = [_said(*key[1:]) for key in nodes if key[0] == name]
    there = f"which has {' or '.join(others)} in `like`" if others else "which is not in `like`"
    raise UnknownNodeError(f"{name}{f' with {_said(data, count)}' if others else ''}, {there}")


def _said(data: str | None, count: int) -> str:
    """What a node has beside its class."""
    return f"{count} child{'' if count == 1 else 'ren'}" + (f" and {data}" if data is not None else "")


def _described(node: tuple[type, Any]) -> tuple[str, str | None]:
    """A class, and what its nodes have beside their children; without addresses, which differ between processes."""
    kind, data = node
    return f"{kind.__module__}.{kind.__qualname__}", None if data is None else re.sub(" at 0x[0-9a-f]+", "", str(data))

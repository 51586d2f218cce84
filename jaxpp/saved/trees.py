"""The structures of pytrees as JSON. It names the user's classes; reading looks them up in a given tree."""

import re
from collections.abc import Mapping
from typing import Any, cast

import jax
from jax.tree_util import PyTreeDef, default_registry

Nodes = Mapping[tuple[str, str | None, int], Any]
"""The nodes of classes of pytrees, as `PyTreeDef.node_data` returns them.

The key is (the name of the class, the text of the node's auxiliary data, the number of its children).
"""

_CONTAINERS = {"tuple": (tuple, None), "list": (list, None), "none": (type(None), None)}


class UnknownNodeError(LookupError):
    """The error for a structure with a node that the given tree lacks; its text names the node."""


def to_json(tree: Any) -> Any:
    """Returns a structure as JSON: a leaf is None, a node is a list of its kind, its data and its children."""
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
    """Returns the structure that `to_json` wrote.

    JSON of any other form is refused, because JAX does not check a node against its children. It would crash the
    process when values are put into a wrong structure.

    Raises:
        UnknownNodeError: `nodes` lacks a node of a class.
        ValueError: `to_json` never writes this JSON.
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
    """Returns all nodes of a pytree, by the keys of `Nodes`."""
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
    """Returns the number of children and the auxiliary data of a node, in words."""
    return f"{count} child{'' if count == 1 else 'ren'}" + (f" and {data}" if data is not None else "")


def _described(node: tuple[type, Any]) -> tuple[str, str | None]:
    """Returns the name of a node's class, and the text of its auxiliary data, without addresses.

    Addresses differ between processes.
    """
    kind, data = node
    return f"{kind.__module__}.{kind.__qualname__}", None if data is None else re.sub(" at 0x[0-9a-f]+", "", str(data))

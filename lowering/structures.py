"""Describes to the user the leaves of pytrees, and how their structures differ from those a step was compiled for."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import keystr, tree_leaves_with_path

from jaxpp.lowering.locations import here


def is_array(leaf: Any) -> bool:
    """Whether JAX takes `leaf` as an array: a jax.Array, a numeric numpy array, a Python number, a ShapeDtypeStruct."""
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


def leaf_names(name: str, tree: Any) -> list[str]:
    """Returns a name for every leaf of an argument `state`: `state['params']['w']`."""
    return [f"{name}{keystr(path)}" for path, _ in tree_leaves_with_path(tree)]


def check_leaves(caller: str, name: str, tree: Any, hint: str = "") -> None:
    """Refuses a value that a user gave to `caller` under this name, if a leaf is not an array.

    Raises:
        TypeError: a leaf is not an array; the message names the leaf.
    """
    for leaf_name, leaf in zip(leaf_names(name, tree), jax.tree.leaves(tree), strict=True):
        if not is_array(leaf):
            raise TypeError(f"{here()}{caller}: {leaf_name} is of type {type(leaf).__name__}, not an array{hint}")


def differences(expected: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the first difference of each argument that differs.

    Args:
        expected: the structure of `(args, kwargs)`.
        names: the names of its leaves.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    wanted_args, wanted_kwargs = jax.tree.unflatten(expected, names)
    if len(args) != len(wanted_args):
        known = ", ".join(_name(each, k) for k, each in enumerate(wanted_args))
        return [f"found {len(args)} positional argument{'s' * (len(args) != 1)}, expected {len(wanted_args)}: {known}"]
    if kwargs.keys() != wanted_kwargs.keys():
        found, wanted = (sorted(each) or "none" for each in (kwargs, wanted_kwargs))
        return [f"found the keyword arguments {found}, expected {wanted}"]
    pairs = [(_name(wanted, k), wanted, given) for k, (wanted, given) in enumerate(zip(wanted_args, args, strict=True))]
    pairs += [(name, wanted_kwargs[name], kwargs[name]) for name in kwargs]
    return [text for pair in pairs if (text := _difference(*pair))]


def only_none(named: Sequence[tuple[str, Any]]) -> str:
    """Returns the name of the only None in these arguments, such as `state['w']`; "" for none or several."""
    found = [
        name + keystr(path)
        for name, argument in named
        for path, leaf in tree_leaves_with_path(argument, is_leaf=_is_none)
        if leaf is None
    ]
    return found[0] if len(found) == 1 else ""


def described(named: Sequence[tuple[str, Any]]) -> str:
    """Returns a line that describes arguments: `state = {'w': float32[4,4]}, batch = [float32[2,4]]`."""
    texts = ((name, str(jax.tree.map(_type, argument))) for name, argument in named)
    return ", ".join(f"{name} = {text if len(text) < 200 else text[:200] + '...'}" for name, text in texts)


def _is_none(node: Any) -> bool:
    return node is None


class _Text(str):
    """Text that prints without quotes."""

    __repr__ = str.__str__


def _type(leaf: Any) -> Any:
    return _Text(f"{leaf.dtype}{list(leaf.shape)}") if hasattr(leaf, "dtype") else leaf


def _difference(name: str, wanted: Any, given: Any) -> str:
    """Returns the first difference of one argument, or ""; the leaves of `wanted` are their names."""
    before, now = jax.tree.structure(wanted), jax.tree.structure(given)
    if before == now:
        return ""
    kinds = (
        _kind(before, "an array"),
        _kind(now, "an array" if hasattr(given, "dtype") else f"a {type(given).__name__}"),
    )
    if kinds[0] != kinds[1]:
        return f"argument `{name}` is {kinds[1]}, expected {kinds[0]}"
    paths = [{keystr(path): None for path, _ in tree_leaves_with_path(each)} for each in (wanted, given)]
    if missing := next((path for path in paths[0] if path not in paths[1]), None):
        return f"argument `{name}` lacks {missing}"
    if strange := next((path for path in paths[1] if path not in paths[0]), None):
        return f"argument `{name}` has {strange}, which was not expected"
    return f"argument `{name}` is {str(now)[:300]}, expected {str(before)[:300]}"


def _name(wanted: Any, position: int) -> str:
    """Returns the name of an argument whose leaves are their own names, such as `state`."""
    leaves = tree_leaves_with_path(wanted)
    return leaves[0][1].removesuffix(keystr(leaves[0][0])) if leaves else f"args[{position}]"


def _kind(tree: Any, leaf: str) -> str:
    """Returns the kind of the outermost node; `leaf` if the tree is a single leaf."""
    node = tree.node_data()
    if node is None:
        return leaf
    return "None" if node[0] is type(None) else f"a {node[0].__name__}"

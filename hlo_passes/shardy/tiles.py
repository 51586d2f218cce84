"""Shardings of GSPMD, such as `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`, and the axes of a mesh for them."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

Factor: TypeAlias = tuple[int, int]
"""A digit of the devices' numbers: the factors `(low, high)` have the value `number % high // low`."""
Tiles: TypeAlias = tuple[tuple[Factor, ...], ...]
"""The factors over which each dimension of a tensor is split, the slowest first."""

_NUMBERS = r"\d+(?:,\d+)*"
_TILED = re.compile(
    rf"\{{devices=\[({_NUMBERS})\]<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?"
    r"( last_tile_dim_replicate| last_tile_dims=\{replicated\})?\}"
)
_KINDS = (
    ("maximal", "one device of several has the value"),
    ("manual", "each device has a value of its own, as in a shard_map"),
    ("unreduced", "the value is a partial sum"),
    ("shard_", "it belongs to a group of shardings"),
)
_LISTED = re.compile(r"\{devices=\[[\d,]+\]\d")


class TilesError(ValueError):
    """A sharding that can't be written with the axes of a mesh; the message says why."""


def split_tuple(text: str) -> list[str]:
    """Returns the shardings in a tuple `{{...}, {...}}`; of another text, the text alone."""
    if not text.startswith("{{"):
        return [text]
    parts, depth, start = list[str](), 0, 1
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if (character, depth) == ("}", 1):
            parts.append(text[start : position + 1].strip(", "))
            start = position + 1
    return parts


def read_tiles(text: str, rank: int, devices: int) -> Tiles:
    """Reads the sharding of a tensor of `rank` over all `devices`. Raises TilesError."""
    if text == "{replicated}":
        return ((),) * rank
    found = _TILED.fullmatch(text)
    if found is None:
        if _LISTED.match(text):
            raise TilesError("it lists the devices, so no mesh in their order has it")
        raise TilesError(next((what for word, what in _KINDS if word in text), "its form is unknown"))
    tiles, sizes = (list(map(int, found[group].split(","))) for group in (1, 2))
    order = list(map(int, found[3].split(","))) if found[3] else list(range(len(sizes)))
    if sorted(order) != list(range(len(sizes))):
        raise TilesError(f"T({found[3]}) is no order of {len(sizes)} dimensions")
    for what, count in (("tiles", prod(tiles)), ("devices", prod(sizes))):
        if count != devices:
            raise TilesError(f"it has {count} {what}, the module is for {devices} devices (mhlo.num_partitions)")
    if len(tiles) - bool(found[4]) != rank:
        raise TilesError(f"it has {len(tiles) - bool(found[4])} dimensions, the value has {rank}")
    return _factors(tiles, [(prod(sizes[each + 1 :]), prod(sizes[each:])) for each in order])[:rank]


def _factors(tiles: Sequence[int], digits: Sequence[Factor]) -> Tiles:
    """Splits digits, the slowest first, so that some of them in a row make each of `tiles`. Raises TilesError."""
    rest, found = list(digits), list[tuple[Factor, ...]]()
    for tile in tiles:
        taken = list[Factor]()
        while tile > 1:
            low, high = rest.pop(0)
            size = high // low
            if size % tile and tile % size:
                raise TilesError(f"a dimension of {tile} tiles takes a part of {size} devices in a row")
            if size > tile:  # its slower part alone
                rest.insert(0, (low, high // tile))
                low = high // tile
            if size > 1:
                taken.append((low, high))
            tile //= min(size, tile)
        found.append(tuple(taken))
    return tuple(found)


def bounds_of(tiles: Tiles) -> set[int]:
    """Returns the lows and highs of all factors of a sharding."""
    return {bound for factors in tiles for factor in factors for bound in factor}


def check_chain(bounds: Collection[int]) -> None:
    """Raises TilesError unless each bound divides the next, so that axes of one mesh lie between them."""
    ordered = sorted(bounds)
    for low, high in pairwise(ordered):
        if high % low:
            raise TilesError(f"no mesh has its axes and those of earlier shardings: groups of {low} and {high} devices")


def axes_of(bounds: Collection[int]) -> dict[str, Factor]:
    """Returns the axes of the mesh, the slowest first, each with its factor."""
    ordered = sorted(bounds, reverse=True)
    return {f"axis_{number}": (low, high) for number, (high, low) in enumerate(pairwise(ordered))}


def axes_over(factors: Sequence[Factor], axes: dict[str, Factor]) -> list[str]:
    """Returns the axes that together are these factors, the slowest first."""
    return [
        name
        for low, high in factors
        for name, (axis_low, axis_high) in axes.items()
        if low <= axis_low < axis_high <= high
    ]

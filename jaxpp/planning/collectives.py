"""The bytes that the devices of a mesh send in collectives, from the text of an optimized HLO module."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

COLLECTIVE = re.compile(
    r"= (?P<type>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?"
    r"\((?P<rest>.*)"
)
"""A collective in the text of a module: its type, its kind, and its operands and attributes."""

_SHAPE = re.compile(r"(?P<element>[a-z]+\d*\w*)\[(?P<sizes>[\d,]*)\]")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_PART = re.compile(r"\([^()]*\)|[a-z]\w*\[[\d,]*\]")
_GROUPS = re.compile(
    r"replica_groups=(?:\{(?P<listed>(?:\{[\d,]*\},?)*)\}"
    r"|\[(?P<groups>\d+),(?P<size>\d+)\](?:<=\[(?P<grid>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?)?"
    r"|mesh\[(?P<axes>[^\]]*)\] \{(?P<over>[^}]*)\})"
)
_SCATTER = re.compile(r"^%?all-reduce-scatter\S* \(.*?^\}", re.MULTILINE | re.DOTALL)
"""A fusion of an all-reduce and a slice, which a TPU runs as a reduce-scatter."""

_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>[\d,{}]*)\}")


class Sent(NamedTuple):
    """The bytes that a device sends in collectives.

    Attributes:
        inside: the bytes in collectives within one host.
        between: the bytes in collectives between hosts.
        inside_count: the number of collectives within one host.
        between_count: the number of collectives between hosts.
    """

    inside: float
    between: float
    inside_count: int
    between_count: int


def result_bytes(collective: re.Match[str]) -> float:
    """Returns the bytes of the results of a collective on a device."""
    return sum(map(_shape_bytes, _SHAPE.finditer(_results(collective))))


def collective_bytes(text: str, hosts: Sequence[int] = ()) -> Sent:
    """Returns the collectives of a module, and the bytes that a device sends in them with ring algorithms.

    A collective is between hosts if one of its groups has devices on several hosts. A collective in a loop counts once.

    Args:
        text: the optimized module as HLO text.
        hosts: the host of each device; if empty, all devices are on one host.
    """
    sent_bytes, counts = [0.0, 0.0], [0, 0]  # within a host, between hosts
    scatters = [found.span() for found in _SCATTER.finditer(text)]
    for found in COLLECTIVE.finditer(text):
        size = result_bytes(found)
        groups = _groups(found["rest"], len(hosts))
        devices = max(map(len, groups))
        moved = {
            "all-reduce": 2 * (devices - 1) / devices,
            "all-gather": (devices - 1) / devices,
            "reduce-scatter": devices - 1,
            "all-to-all": (devices - 1) / devices,
            "collective-permute": 1,
        }
        sent = moved[found["kind"]] * size
        if any(start < found.start() < end for start, end in scatters):
            sent /= 2
        is_between = _crosses(found["rest"], groups, hosts)
        sent_bytes[is_between] += sent
        counts[is_between] += 1
    return Sent(sent_bytes[False], sent_bytes[True], counts[False], counts[True])


def _crosses(attributes: str, groups: Sequence[Sequence[int]], hosts: Sequence[int]) -> bool:
    """Whether a group of a collective, or a source-target pair of a permute, has devices on several hosts."""
    pairs = _PAIRS.search(attributes)
    ends = [tuple(map(int, each)) for each in re.findall(r"\{(\d+),(\d+)\}", pairs["pairs"])] if pairs else groups
    return any(len({hosts[device] for device in each if device < len(hosts)}) > 1 for each in ends)


def _results(collective: re.Match[str]) -> str:
    """Returns the types of a collective's results.

    An asynchronous start has the type (operands, results, context...), except for an all-reduce.
    """
    types = _LAYOUT.sub("", collective["type"])
    if not collective["start"] or collective["kind"] == "all-reduce":
        return types
    parts = _PART.findall(types[1:-1])
    return parts[1] if len(parts) > 1 else types


def _groups(attributes: str, devices: int) -> Sequence[Sequence[int]]:
    """Returns the devices of each group of a collective.

    A collective without groups has one group of all `devices`, or of two devices if `devices` is 0.
    """
    groups = _GROUPS.search(attributes)
    if groups is None or groups["listed"] == "":
        return [range(devices or 2)]
    if groups["size"]:
        count, size = int(groups["groups"]), int(groups["size"])
        grid = _numbers(groups["grid"]) or [count * size]
        order = _numbers(groups["order"]) or list(range(len(grid)))
        return np.arange(math.prod(grid)).reshape(grid).transpose(order).reshape(count, size).tolist()
    if groups["axes"]:
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", groups["axes"])}
        over = re.findall(r"'(\w+)'", groups["over"])
        order = sorted(range(len(sizes)), key=lambda number: [*sizes][number] in over)
        size = math.prod(sizes[axis] for axis in over)
        grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
        return grid.transpose(order).reshape(-1, size).tolist()
    return [_numbers(each) for each in re.findall(r"\{([\d,]*)\}", groups["listed"])]


def _numbers(text: str | None) -> list[int]:
    return [int(each) for each in (text or "").split(",") if each]


def _shape_bytes(shape: re.Match[str]) -> float:
    bits = re.search(r"\d+", shape["element"])
    return math.prod(_numbers(shape["sizes"])) * (int(bits[0]) if bits else 8) / 8

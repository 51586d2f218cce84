"""How many collectives of a scheduled module stand beside products, from its text."""

import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_COLLECTIVE = re.compile(
    r"%?(?P<name>[\w.-]+) = .*? (?:all-reduce|all-to-all|all-gather|reduce-scatter|collective-permute|async)"
    r"(?P<part>-start|-done|)\((?P<operands>[^)]*)"
)
_FUSED = re.compile(r"%?async-collective(?P<part>-start|-done)(?P<number>[.\d]*) = ")
"""How a TPU v5e begins and ends one, in fusions with a part of a product."""

_PRODUCT = re.compile(r" (?:dot|convolution)\(|custom_call_target=\"__cublas")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.-]+)")


class Overlap(NamedTuple):
    """Of so many collectives those between whose start and done a product stands."""

    hidden: int
    collectives: int


def overlap(text: str) -> Overlap:
    """Count those of the entry computation, in the order of the schedule; a synchronous one is never hidden."""
    bodies: dict[str, list[str]] = {}
    entry: list[str] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            lines = bodies[head["name"]] = []
            entry = lines if head["entry"] else entry
        elif bodies and line.startswith("  "):
            lines.append(line)  # pyright: ignore[reportPossiblyUnboundVariable]  # there is a body
    waiting: dict[str, bool] = {}
    hidden = collectives = 0
    for line in (line.strip().removeprefix("ROOT ") for line in entry):
        found = _FUSED.match(line) or _COLLECTIVE.match(line)
        if found is None:
            if _has_product(line, bodies):
                waiting = dict.fromkeys(waiting, True)
        elif found["part"] == "-start":
            waiting[_name(found)] = False
        elif found["part"] == "-done":
            collectives += 1
            hidden += waiting.pop(_name(found))
        else:
            collectives += 1
    return Overlap(hidden, collectives)


def _name(part: re.Match[str]) -> str:
    """What a start and its done have in common."""
    if part.re is _FUSED:
        return part["number"]
    return part["name"] if part["part"] == "-start" else part["operands"].split("%")[-1]


def _has_product(line: str, bodies: dict[str, list[str]]) -> bool:
    inside = (body for name in _CALLED.findall(line) for body in bodies.get(name, ()))
    return bool(_PRODUCT.search(line)) or any(_has_product(each, bodies) for each in inside)

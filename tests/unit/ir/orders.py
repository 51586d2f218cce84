"""Runs a program by the rules of a transport: in which order, and how long it takes."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from jaxpp.ir.kinds import cost_of
from jaxpp.ir.program import Call, Instruction, Program, Receive
from jaxpp.ir.transports import RULES, Rules, WaitForGraph, check_order


class Order(NamedTuple):
    """An order in which all instructions can run.

    Attributes:
        instructions: (mesh, instruction), without constants, by the time at which each starts. A receive directly
            follows its send, if they meet; else it follows it somewhere.
        time: how long they take, in forward tasks.
    """

    instructions: list[tuple[int, Instruction]]
    time: float


def transfer_order(program: Program, transport: str | Rules, hop: float = 0.0) -> Order:
    """Run each instruction as soon as what it waits for has run; a transfer takes `hop`. Raises as `check_order`."""
    check_order(program, transport)
    graph = WaitForGraph(program, RULES[transport] if isinstance(transport, str) else transport)
    after: list[list[int]] = [[] for _ in graph.before]
    for node, before in enumerate(graph.before):
        for other in before:
            after[other].append(node)
    left, ready, done = list(map(len, graph.before)), [0.0] * len(after), list[int]()
    heap = [(0.0, node) for node, count in enumerate(left) if not count]
    while heap:
        start, node = heapq.heappop(heap)
        done.append(node)
        ready[node] = start + _time(program, graph.places[node], hop)
        for other in after[node]:
            ready[other] = max(ready[other], ready[node])
            left[other] -= 1
            if not left[other]:
                heapq.heappush(heap, (ready[other], other))
    return Order(_issued(program, [graph.places[node] for node in done]), max(ready, default=0.0))


def _time(program: Program, places: Sequence[tuple[int, int]], hop: float) -> float:
    """How long a node runs: of two ends that run one after the other only the receive takes time."""
    mesh, position = places[-1]
    each = program.sequences[mesh][position]
    if isinstance(each, Call):
        return cost_of(each.kind)
    return hop if isinstance(each, Receive) or len(places) > 1 else 0.0


def _issued(program: Program, done: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, Instruction]]:
    """The instructions by the time at which they run: on a mesh none later than those behind it."""
    ranks: dict[tuple[int, int], tuple[int, bool]] = {}
    for rank, places in enumerate(done):
        for mesh, position in places:
            ranks[mesh, position] = rank, isinstance(program.sequences[mesh][position], Receive)
    issued: list[tuple[tuple[int, bool], int, int]] = []
    for mesh, line in enumerate(program.sequences):
        least = (len(done), False)
        for position in reversed(range(len(line))):
            if (mesh, position) in ranks:
                least = min(least, ranks[mesh, position])
                issued.append((least, mesh, position))
    return [(mesh, program.sequences[mesh][position]) for _, mesh, position in sorted(issued)]

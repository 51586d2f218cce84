"""The order in which one thread issues the instructions of all meshes."""

import heapq
from collections.abc import Collection, Iterator

from jaxpp.ir.kinds import cost_of
from jaxpp.ir.program import Call, Constant, Program, Receive, Send

HOP = 2.0
"""The assumed duration of a copy between meshes, in forward tasks. It is an overestimate. XLA runs a small program at
once, on the dispatching thread, only if its inputs are there, and one late input makes the rest of the step late."""

AHEAD = 2
"""The number of calls of its mesh between the pull of another process's value and its receive. With 1 a step takes 10 %
longer if stages compute next to nothing; more than 2 gains nothing."""

Merged = list[tuple[int, Call | Send | Receive]]
"""(mesh, instruction) pairs, without constants."""


def merged_order(program: Program, hop: float = HOP) -> Merged:
    """Returns all instructions by their simulated start times, each mesh's in its own order, sends before receives.

    A device that runs its programs in order never waits for a program that is issued later. A send directly follows the
    instruction before it on its mesh: a copy that starts early is done when its reader is dispatched. O(n log meshes).
    """
    merger = _Merger(program, hop)
    for mesh in range(program.meshes):
        merger.advance(mesh)
    while merger.heap:
        start, mesh = heapq.heappop(merger.heap)
        merger.issue(mesh, start)
        merger.advance(mesh)
    return merger.order


def with_pulls(order: Merged, ahead: int = AHEAD) -> Merged:
    """Returns `order` with every receive `ahead` calls of its mesh earlier, so that its value arrives during these.

    Each call more costs the memory of one value that waits for its use.
    """
    calls: dict[int, list[int]] = {}
    early: dict[int, Merged] = {}
    for position, (mesh, instruction) in enumerate(order):
        if isinstance(instruction, Call):
            calls.setdefault(mesh, []).append(position)
        elif isinstance(instruction, Receive):
            before = calls.get(mesh, [])[-ahead:] if ahead else [position]
            early.setdefault(before[0] if len(before) == max(ahead, 1) else 0, []).append((mesh, instruction))
    found: Merged = []
    for position, each in enumerate(order):
        found += early.get(position, [])
        if not isinstance(each[1], Receive):
            found.append(each)
    return found


def with_receives_at_sends(order: Merged, channels: Collection[int]) -> Merged:
    """Returns `order` with a second receive of each of these channels, right after the send, where the pull happens.

    The order from `insert-transfers` does not suffice. It lets the transfers of a mesh of one device overlap the calls,
    but the thread that dispatches a call waits for the call's operands.
    """
    receives = {each.channel: (mesh, each) for mesh, each in order if isinstance(each, Receive)}
    found: Merged = []
    for mesh, each in order:
        found.append((mesh, each))
        if isinstance(each, Send) and each.channel in channels:
            found.append(receives[each.channel])
    return found


class _Merger:
    """The state of the meshes at one time of the simulated step."""

    def __init__(self, program: Program, hop: float) -> None:
        self.hop = hop
        self.sequences = [[each for each in line if not isinstance(each, Constant)] for line in program.sequences]
        self.positions = [0] * program.meshes
        self.clocks = [0.0] * program.meshes
        self.ready = [[0.0] * len(registers) for registers in program.registers]
        self.sent: dict[int, float] = {}
        self.waiting: dict[int, int] = {}
        """The mesh that waits for a channel."""
        self.heap: list[tuple[float, int]] = []
        """(start, mesh) of each mesh's next call or receive."""
        self.order: Merged = []

    def advance(self, mesh: int) -> None:
        """Issues the mesh's next sends, then puts its next call or receive on the heap unless that waits for a send."""
        ready = self.ready[mesh]
        for instruction in self.upcoming(mesh):
            if isinstance(instruction, Call):
                start = max([self.clocks[mesh], *(ready[register] for register in instruction.operands)])
                heapq.heappush(self.heap, (start, mesh))
                return
            if isinstance(instruction, Receive):
                if instruction.channel in self.sent:
                    heapq.heappush(self.heap, (self.sent[instruction.channel], mesh))
                else:
                    self.waiting[instruction.channel] = mesh
                return
            self.positions[mesh] += 1
            self.order.append((mesh, instruction))
            self.sent[instruction.channel] = ready[instruction.operand] + self.hop
            if instruction.channel in self.waiting:
                self.advance(self.waiting.pop(instruction.channel))

    def upcoming(self, mesh: int) -> Iterator[Call | Send | Receive]:
        while self.positions[mesh] < len(self.sequences[mesh]):
            yield self.sequences[mesh][self.positions[mesh]]

    def issue(self, mesh: int, start: float) -> None:
        """Issues the mesh's next instruction, a call or a receive."""
        instruction = self.sequences[mesh][self.positions[mesh]]
        self.positions[mesh] += 1
        self.order.append((mesh, instruction))
        if isinstance(instruction, Call):
            self.clocks[mesh] = start + cost_of(instruction.kind)
            for register in instruction.results:
                self.ready[mesh][register] = self.clocks[mesh]
        elif isinstance(instruction, Receive):
            self.ready[mesh][instruction.result] = start

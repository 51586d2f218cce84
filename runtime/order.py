"""The one order in which a single thread issues the instructions of all meshes."""

import heapq
from collections.abc import Mapping, Sequence

from jaxpp.runtime.program import Call, Constant, Program, Receive, Send
from jaxpp.runtime.values import ProgramError

COSTS: Mapping[str, float] = {"forward": 1.0, "backward": 2.0, "input_grad": 1.0, "weight_grad": 1.0}
"""How long a task is taken to run, in forward tasks; other kinds take 1."""

Merged = list[tuple[int, Call | Send | Receive]]
"""(mesh, instruction), without the constants."""


def merged_order(program: Program, costs: Mapping[str, float] = COSTS) -> Merged:
    """All instructions by the time at which they would start, each mesh's in its own order, sends before receives.

    A device that runs its programs in order never waits for a program issued later. A send directly follows what its
    mesh did before: a copy that is under way early is done when its reader is dispatched. O(n log meshes).
    Raises ProgramError, with the meshes and channels, for sequences that wait for each other in a circle.
    """
    sequences = [[each for each in sequence if not isinstance(each, Constant)] for sequence in program.sequences]
    positions = [0] * len(sequences)
    clocks = [0.0] * len(sequences)
    ready = [[0.0] * len(registers) for registers in program.registers]
    sent: dict[int, float] = {}
    waiting: dict[int, int] = {}
    order: Merged = []
    heap: list[tuple[float, int]] = []

    def push(mesh: int) -> None:
        """Issue the mesh's next sends, and put what follows into the heap, unless it waits for a send."""
        while positions[mesh] < len(sequences[mesh]):
            instruction = sequences[mesh][positions[mesh]]
            if isinstance(instruction, Send):
                positions[mesh] += 1
                order.append((mesh, instruction))
                sent[instruction.channel] = ready[mesh][instruction.operand]
                if instruction.channel in waiting:
                    push(waiting.pop(instruction.channel))
                continue
            if isinstance(instruction, Call):
                start = max([clocks[mesh], *(ready[mesh][register] for register in instruction.operands)])
            elif instruction.channel in sent:
                start = sent[instruction.channel]
            else:
                waiting[instruction.channel] = mesh
                return
            heapq.heappush(heap, (start, mesh))
            return

    for mesh in range(len(sequences)):
        push(mesh)
    while heap:
        start, mesh = heapq.heappop(heap)
        instruction = sequences[mesh][positions[mesh]]
        positions[mesh] += 1
        order.append((mesh, instruction))
        if isinstance(instruction, Call):
            clocks[mesh] = start + costs.get(instruction.kind, 1.0)
            for register in instruction.results:
                ready[mesh][register] = clocks[mesh]
        elif isinstance(instruction, Receive):
            ready[mesh][instruction.result] = start
        push(mesh)
    if waiting:
        raise ProgramError(_circle(sequences, positions, waiting))
    return order


def _circle(
    sequences: Sequence[Sequence[Call | Send | Receive]], positions: Sequence[int], waiting: Mapping[int, int]
) -> str:
    """The text for meshes that wait for each other: follows one of them round."""
    mesh = next(iter(waiting.values()))
    seen: list[int] = []
    parts: list[str] = []
    while mesh not in seen:
        seen.append(mesh)
        instruction = sequences[mesh][positions[mesh]]
        assert isinstance(instruction, Receive)  # only a receive waits
        parts.append(f"mesh {mesh} waits for channel {instruction.channel} from mesh {instruction.source}")
        mesh = instruction.source
    return "deadlock: " + ", ".join(parts[seen.index(mesh) :])

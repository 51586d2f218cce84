"""What the transport of a program's values asks of their order, and the proof that a program keeps to it.

A transport that meets (rendezvous) can deadlock where one that buffers cannot, and one that knows values by their order
alone, not by a number, hands over the wrong one where both ends differ. So the order is part of the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Constant, Instruction, Program, Receive, Send


@dataclass(frozen=True, slots=True)
class Rules:
    """What waits for what where values go by a transport.

    A mesh hands its instructions to streams, in its own order. A stream runs one after the other; an instruction also
    waits for those that make its operands.

    Attributes:
        rendezvous: whether a send and its receive run together, when both are first in their streams. Else a send
            waits for nobody.
        numbered: whether a receive finds its value by the number of the channel; else by order: the k-th send from a
            mesh to another one is the k-th receive there.
        stream: which instructions of a mesh share a stream: the transfers from one mesh to one other (`direction`),
            between two meshes (`pair`), of a mesh (`mesh`), or the transfers and the tasks of a mesh (`task`).
        collectives: whether a transfer and a collective in a task can keep each other from running on devices that
            begin with different ones. Then on a mesh of several devices the stream is `task`.
        early: whether the array of a receive is allocated among the tasks: it waits for those in front of it. Then
            `insert-transfers` puts it one task earlier, if no other transfer stands in between.
    """

    rendezvous: bool = True
    numbered: bool = False
    stream: Literal["direction", "pair", "mesh", "task"] = "task"
    collectives: bool = True
    early: bool = False

    def stream_of(self, devices: int) -> str:
        """The stream of the transfers of a mesh with so many devices."""
        return "task" if self.collectives and devices > 1 else self.stream

    def is_early(self, devices: int) -> bool:
        """Whether receives of a mesh with so many devices are early."""
        return self.early and self.stream_of(devices) != "task"


RULES: Final[Mapping[str, Rules]] = {
    "pull": Rules(rendezvous=False, numbered=True),
    "nccl": Rules(stream="direction"),
    "device_put": Rules(stream="mesh", early=True),
    "pair": Rules(),
}
"""Those of each transport, by its name. What keeps to those of `pair` keeps to all, but for receives that are `early`.

`pull`: a send offers its value, a receive asks for it by number. `nccl`: point to point, a communicator for each
direction between two meshes. `device_put`: across processes, in one order for each process. `pair`: a program on the
devices of two meshes.
"""


def check_transport(name: str) -> None:
    """Raise ValueError unless a transport has this name."""
    if name not in RULES:
        raise ValueError(f"transport is '{name}', expected one of {', '.join(RULES)}")


class OrderError(ProgramError):
    """A program does not keep to the rules of a transport. transfer: one of the transfers that are to blame."""

    def __init__(self, message: str, transfer: Send | Receive, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.transfer = transfer


def check_order(program: Program, transport: str | Rules) -> None:
    """Raise OrderError unless all instructions of all meshes run by the rules of a transport. O(n).

    As no instruction ever takes anything from another one, all that can run may run at once, and what is left waits
    whatever the timing: meshes wait for one another, which the error shows as a chain of waits. Likewise where the k-th
    transfer between two meshes is one value on the one side, and another one on the other.
    """
    rules = RULES[transport] if isinstance(transport, str) else transport
    name = f"by the transport '{transport}' " if isinstance(transport, str) and transport != "pull" else ""
    hint = f"run insert-transfers{{transport={transport}}}" if name else ""
    _check_ends(program, rules, name, hint)
    waits = WaitForGraph(program, rules).waits()
    if waits:
        lines = "".join(f"\n  {wait.words(program)}" for wait in waits)
        transfer = waits[0].later
        assert not isinstance(transfer, Call | Constant)  # the mesh before waits for it
        raise OrderError(f"deadlock: {name}these meshes wait for one another{lines}", transfer, hint)


def _check_ends(program: Program, rules: Rules, name: str, hint: str) -> None:
    """Raise OrderError where the k-th send from a mesh to another one is not the k-th receive there."""
    if rules.numbered:
        return
    sent: dict[tuple[int, int], list[Send]] = {}
    received: dict[tuple[int, int], list[Receive]] = {}
    for mesh, line in enumerate(program.sequences):
        for each in line:
            if isinstance(each, Send):
                sent.setdefault((mesh, each.destination), []).append(each)
            elif isinstance(each, Receive):
                received.setdefault((each.source, mesh), []).append(each)
    for (source, target), sends in sent.items():
        for number, (send, receive) in enumerate(zip(sends, received[source, target], strict=True), 1):
            if send.channel != receive.channel:
                found = [_value(program, each.channel) for each in (send, receive)]
                raise OrderError(
                    f"{name}transfer {number} from mesh {source} to mesh {target} is {found[0]} where it is sent, "
                    f"{found[1]} where it is received",
                    receive,
                    hint,
                )


class _Wait(NamedTuple):
    """On a mesh an instruction waits for an earlier one."""

    mesh: int
    later: Instruction
    earlier: Instruction

    def words(self, program: Program) -> str:
        return f"mesh {self.mesh}: {_words(program, self.later)} comes after {_words(program, self.earlier)}"


class WaitForGraph:
    """What waits for what. A node is an instruction, or a send and its receive, where they run together.

    places: of each node the (mesh, position) of its instructions.
    before: of each node those that it waits for.
    """

    def __init__(self, program: Program, rules: Rules) -> None:
        self._sequences, self._devices = program.sequences, program.partitions
        self.places: list[list[tuple[int, int]]] = []
        self.before: list[list[int]] = []
        self._transfers: dict[tuple[bool, int], int] = {}
        """The node of (whether it is the receive, if they are two; the channel)."""
        for mesh, line in enumerate(program.sequences):
            self._read(mesh, line, rules)
        for (receives, channel), node in self._transfers.items() if not rules.rendezvous else ():
            if receives:
                self.before[node].append(self._transfers[False, channel])

    def _read(self, mesh: int, line: Sequence[Instruction], rules: Rules) -> None:
        stream, early = rules.stream_of(self._devices[mesh]), rules.is_early(self._devices[mesh])
        last: dict[object, int] = {}
        made: dict[int, int] = {}
        for position, each in enumerate(line):
            if isinstance(each, Constant):
                continue
            key: object = "task" if isinstance(each, Call) else _stream_of(each, stream)
            if isinstance(each, Call):
                node, operands = self._add(), each.operands
                made.update(dict.fromkeys(each.results, node))
            else:
                node, operands = self._end(each, rules), (each.operand,) if isinstance(each, Send) else ()
                if isinstance(each, Receive):
                    made[each.result] = node
            self.places[node].append((mesh, position))
            before = self.before[node]
            if key in last:
                before.append(last[key])
            if early and isinstance(each, Receive) and "task" in last:
                before.append(last["task"])
            if stream != "task":
                before += [made[register] for register in operands if register in made]
            last[key] = node

    def _add(self) -> int:
        self.places.append([])
        self.before.append([])
        return len(self.places) - 1

    def _end(self, transfer: Send | Receive, rules: Rules) -> int:
        """The node of one end of a transfer."""
        key = isinstance(transfer, Receive) and not rules.rendezvous, transfer.channel
        if key not in self._transfers:
            self._transfers[key] = self._add()
        return self._transfers[key]

    def _left(self) -> dict[int, list[int]]:
        """The nodes that never run, each with those of them that it waits for."""
        left = [len(before) for before in self.before]
        after: list[list[int]] = [[] for _ in self.before]
        for node, before in enumerate(self.before):
            for other in before:
                after[other].append(node)
        done = [node for node, count in enumerate(left) if not count]
        for node in done:
            for other in after[node]:
                left[other] -= 1
                if not left[other]:
                    done.append(other)
        return {node: [other for other in self.before[node] if left[other]] for node, count in enumerate(left) if count}

    def waits(self) -> list[_Wait]:
        """A cycle of nodes that never run, as what waits on each mesh for what; empty where all run."""
        left = self._left()
        if not left:
            return []
        node, chain = next(iter(left)), list[int]()
        while node not in chain:
            chain.append(node)
            node = left[node][0]
        chain = chain[chain.index(node) :]
        waits = [self._wait(one, other) for one, other in zip(chain, [*chain[1:], chain[0]], strict=True)]
        meshes = [wait.mesh if wait else None for wait in waits]
        first = next(number for number, mesh in enumerate(meshes) if mesh != meshes[number - 1])
        runs = groupby(filter(None, waits[first:] + waits[:first]), key=attrgetter("mesh"))
        found = [_Wait(mesh, run[0].later, run[-1].earlier) for mesh, run in ((mesh, list(run)) for mesh, run in runs)]
        first = found.index(min(found, key=attrgetter("mesh")))
        return found[first:] + found[:first]

    def _wait(self, node: int, other: int) -> _Wait | None:
        """How `node` waits for `other`: None if that is a send, and `node` its receive on another mesh."""
        there = dict(self.places[other])
        for mesh, position in self.places[node]:
            if there.get(mesh, position) < position:
                line = self._sequences[mesh]
                return _Wait(mesh, line[position], line[there[mesh]])
        return None


def _stream_of(transfer: Send | Receive, stream: str) -> object:
    """What names the stream of a transfer on its mesh."""
    other = transfer.destination if isinstance(transfer, Send) else transfer.source
    names: dict[str, object] = {
        "direction": (type(transfer), other),
        "pair": (other,),
        "mesh": "mesh",
        "task": "task",
    }
    return names[stream]


def _words(program: Program, instruction: Instruction) -> str:
    """What an instruction is to a user: a task, or the transfer of what a task made."""
    if isinstance(instruction, Send):
        where = f"to mesh {instruction.destination}"
    elif isinstance(instruction, Receive):
        where = f"from mesh {instruction.source}"
    else:
        return str(instruction)
    what = "send" if isinstance(instruction, Send) else "receive"
    return f"the {what} {where} of {_value(program, instruction.channel)}"


def _value(program: Program, channel: int) -> str:
    """What goes over a channel, by the task that made it."""
    mesh, register, *_ = program.hops[channel]
    for each in program.sequences[mesh]:
        if isinstance(each, Call) and register in each.results:
            maker = each.maker(each.results.index(register), program.functions[each.function])
            return f"{maker or each} (channel {channel})"
    number = next((number for number, one in program.arguments.items() if (mesh, register) in one.registers), None)
    return f"channel {channel}" if number is None else f"argument {number} (channel {channel})"

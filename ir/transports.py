"""The order in which each transport allows transfers to stand, and the proof that a program keeps to it.

A rendezvous transport can deadlock where a buffering one cannot. A transport that matches values by their order, and
not by channel number, delivers the wrong value where the two ends differ. So the order is part of the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from jaxpp._plugins import TRANSPORTS, plug_ins
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Constant, Instruction, Program, Receive, Send


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which instructions wait for one another when a transport moves the values.

    A mesh hands its instructions to streams, in its own order. A stream runs its instructions one after the other; an
    instruction also waits for those that make its operands.

    Attributes:
        rendezvous: whether a send and its receive run together, when both are first in their streams. Otherwise a send
            does not wait for its receive, and a receive finds its value by channel number. Without numbers the k-th
            send from one mesh to another belongs to the k-th receive there.
        has_stream: whether the transfers of a mesh run in a stream beside its tasks. On a mesh of several devices they
            never do: a transfer and a collective in a task would block each other, where devices begin with different
            ones.
        early: whether a receive waits for the tasks in front of it, as its array is allocated among the tasks. Then
            `insert-transfers` puts the receive one task earlier, if no other transfer stands in between.
    """

    rendezvous: bool = True
    has_stream: bool = False
    early: bool = False

    def is_beside(self, devices: int) -> bool:
        """Whether transfers on a mesh of so many devices run beside its tasks."""
        return self.has_stream and devices == 1


RULES: Final[Mapping[str, Rules]] = {
    "pull": Rules(rendezvous=False),
    "device_put": Rules(has_stream=True, early=True),
    "pair": Rules(),
}
"""The rules of each transport, by its name. An order that `pair` allows is allowed by all, but for `early` receives.

`pull`: a send offers its value, and a receive asks for it by channel number. `device_put`: across processes, in one
order for each process. `pair`: a program on the devices of two meshes.
"""


def rules_of(name: str) -> Rules:
    """Returns the rules of a transport, which a plug-in has as its attribute `rules`.

    Raises:
        ValueError: no transport has this name, or it is a plug-in that can't be used (PlugInError).
    """
    if name in RULES:
        return RULES[name]
    found = plug_ins(TRANSPORTS, RULES)
    if name not in found:
        raise ValueError(f"transport is '{name}', expected one of {', '.join({**RULES, **found})}")
    transport = found[name].load()
    rules: object = getattr(transport, "rules", None)
    if not isinstance(rules, Rules):
        raise found[name].expected("a class with `rules`, the Rules of jaxpp.ir.transports", transport)
    return rules


class OrderError(ProgramError):
    """A program does not keep to the rules of a transport. transfer: one of the transfers at fault."""

    def __init__(self, message: str, transfer: Send | Receive, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.transfer = transfer


def check_order(program: Program, transport: str | Rules) -> None:
    """Raises OrderError unless all instructions of all meshes run by the rules of a transport. O(n).

    An instruction that runs never keeps others from running. So the check runs all that it can. The instructions
    that remain wait whatever the timing: meshes wait for one another, and the error shows the chain of waits. Without
    channel numbers, the error also names the k-th transfer between two meshes if its ends are different values.
    """
    rules = rules_of(transport) if isinstance(transport, str) else transport
    name = f"by the transport '{transport}' " if isinstance(transport, str) and transport != "pull" else ""
    hint = f"run insert-transfers{{transport={transport}}}" if name else ""
    _check_ends(program, rules, name, hint)
    waits = WaitForGraph(program, rules).waits()
    if waits:
        lines = "".join(f"\n  {wait.words(program)}" for wait in waits)
        transfer = waits[0].later
        assert not isinstance(transfer, Call | Constant)  # the previous mesh of the cycle waits for it
        raise OrderError(f"deadlock: {name}these meshes wait for one another{lines}", transfer, hint)


def _check_ends(program: Program, rules: Rules, name: str, hint: str) -> None:
    """Raises OrderError where the k-th send from one mesh to another is not the k-th receive there."""
    if not rules.rendezvous:
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
    """An instruction that waits for an earlier one on the same mesh."""

    mesh: int
    later: Instruction
    earlier: Instruction

    def words(self, program: Program) -> str:
        return f"mesh {self.mesh}: {_words(program, self.later)} comes after {_words(program, self.earlier)}"


class WaitForGraph:
    """The graph of waits. A node is an instruction, or a send together with its receive where they run together.

    places: for each node the (mesh, position) of its instructions.
    before: for each node the nodes that it waits for.
    """

    def __init__(self, program: Program, rules: Rules) -> None:
        self._sequences, self._devices = program.sequences, program.partitions
        self.places: list[list[tuple[int, int]]] = []
        self.before: list[list[int]] = []
        self._transfers: dict[tuple[bool, int], int] = {}
        """The node of each transfer, by (whether the node is a receive without its send, channel)."""
        for mesh, line in enumerate(program.sequences):
            self._read(mesh, line, rules)
        for (receives, channel), node in self._transfers.items() if not rules.rendezvous else ():
            if receives:
                self.before[node].append(self._transfers[False, channel])

    def _read(self, mesh: int, line: Sequence[Instruction], rules: Rules) -> None:
        is_beside = rules.is_beside(self._devices[mesh])
        last: dict[str, int] = {}
        made: dict[int, int] = {}
        for position, each in enumerate(line):
            if isinstance(each, Constant):
                continue
            stream = "transfers" if is_beside and not isinstance(each, Call) else "task"
            if isinstance(each, Call):
                node, operands = self._add(), each.operands
                made.update(dict.fromkeys(each.results, node))
            else:
                node, operands = self._end(each, rules), (each.operand,) if isinstance(each, Send) else ()
                if isinstance(each, Receive):
                    made[each.result] = node
            self.places[node].append((mesh, position))
            before = self.before[node]
            if stream in last:
                before.append(last[stream])
            if is_beside:
                if rules.early and isinstance(each, Receive) and "task" in last:
                    before.append(last["task"])
                before += [made[register] for register in operands if register in made]
            last[stream] = node

    def _add(self) -> int:
        self.places.append([])
        self.before.append([])
        return len(self.places) - 1

    def _end(self, transfer: Send | Receive, rules: Rules) -> int:
        """Returns the node of a send or a receive."""
        key = isinstance(transfer, Receive) and not rules.rendezvous, transfer.channel
        if key not in self._transfers:
            self._transfers[key] = self._add()
        return self._transfers[key]

    def _left(self) -> dict[int, list[int]]:
        """Returns the nodes that never run, and for each one those among them that it waits for."""
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
        """Returns a cycle of nodes that never run, as one wait on each mesh; empty where all nodes run."""
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
        """Returns the wait of `node` for `other`; None where `other` is a send, and `node` its receive elsewhere."""
        there = dict(self.places[other])
        for mesh, position in self.places[node]:
            if there.get(mesh, position) < position:
                line = self._sequences[mesh]
                return _Wait(mesh, line[position], line[there[mesh]])
        return None


def _words(program: Program, instruction: Instruction) -> str:
    """Describes an instruction to a user: as a task, or as the transfer of a value that a task made."""
    if isinstance(instruction, Send):
        where = f"to mesh {instruction.destination}"
    elif isinstance(instruction, Receive):
        where = f"from mesh {instruction.source}"
    else:
        return str(instruction)
    what = "send" if isinstance(instruction, Send) else "receive"
    return f"the {what} {where} of {_value(program, instruction.channel)}"


def _value(program: Program, channel: int) -> str:
    """Describes the value on a channel by the task that made it, or the argument that it is."""
    mesh, register, *_ = program.hops[channel]
    for each in program.sequences[mesh]:
        if isinstance(each, Call) and register in each.results:
            maker = each.maker(each.results.index(register), program.functions[each.function])
            return f"{maker or each} (channel {channel})"
    number = next((number for number, one in program.arguments.items() if (mesh, register) in one.registers), None)
    return f"channel {channel}" if number is None else f"argument {number} (channel {channel})"

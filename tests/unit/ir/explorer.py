"""Small random programs, and all interleavings of one: what the proof of `jaxpp.ir.transports` is compared with."""

from collections.abc import Iterator
from random import Random

from jaxpp.ir.program import Call, Function, Instruction, Program, Receive, Send, TaskName
from jaxpp.ir.transports import Rules


def program_of(lines: list[list[Instruction]], devices: tuple[int, ...]) -> Program:
    """The program of these lines, whose tasks are of the kind `forward`."""
    forward = Function("forward", "forward", None, (), (), (), b"")
    lines_ = tuple(map(tuple, lines))
    return Program(len(lines), devices, ({},) * len(lines), {"forward": forward}, lines_, ((),) * len(lines), {}, ())


def random_program(random: Random, tasks: int) -> Program:
    """Tasks on two or three meshes that read one another's values, in an order in which every send meets its receive.

    Each value has one register, of the same number on all meshes that have it.
    """
    meshes = random.choice([2, 2, 3])
    lines: list[list[Instruction]] = [[] for _ in range(meshes)]
    homes: list[int] = []
    there: list[set[int]] = []
    channel = 0
    for task in range(tasks):
        mesh = random.randrange(meshes)
        reads = tuple(random.sample(range(task), min(task, random.choice([0, 1, 1, 2]))))
        sent = random.sample(range(task), min(task, random.choice([0, 0, 1])))
        hops = [(value, mesh) for value in reads] + [(value, random.randrange(meshes)) for value in sent]
        for value, target in hops:
            if target not in there[value]:
                lines[homes[value]].append(Send(channel, value, target, ()))
                lines[target].append(Receive(channel, value, homes[value]))
                there[value].add(target)
                channel += 1
        lines[mesh].append(Call("forward", reads, (task,), "forward", (TaskName("forward", mesh, task),), ()))
        homes.append(mesh)
        there.append({mesh})
    return program_of(lines, tuple(random.choice([1, 1, 2]) for _ in lines))


def mutated(random: Random, program: Program) -> Program:
    """`program` with an instruction elsewhere on its mesh, behind what makes its operands, before what reads it."""
    lines = list(map(list, program.sequences))
    line = random.choice([line for line in lines if len(line) > 1] or lines)
    old = random.randrange(len(line))
    moved = line.pop(old)
    makers = [n for n, each in enumerate(line) if set(made_by(each)) & set(read_by(moved))]
    readers = [n for n, each in enumerate(line) if set(read_by(each)) & set(made_by(moved))]
    line.insert(random.randint(max(makers, default=-1) + 1, min(readers, default=len(line))), moved)
    return program_of(lines, program.partitions)


def made_by(each: Instruction) -> tuple[int, ...]:
    return each.results if isinstance(each, Call) else (each.result,) if isinstance(each, Receive) else ()


def read_by(each: Instruction) -> tuple[int, ...]:
    return each.operands if isinstance(each, Call) else (each.operand,) if isinstance(each, Send) else ()


State = frozenset[tuple[int, int]]
"""The (mesh, position) of all instructions that have run."""


def always_ends(program: Program, rules: Rules) -> bool:
    """Whether all of the program runs, with the right values, in every interleaving: all of them are tried."""
    everything = frozenset((mesh, n) for mesh, line in enumerate(program.sequences) for n in range(len(line)))
    seen: set[State] = set()
    work: list[State] = [frozenset()]
    while work:
        state = work.pop()
        if state in seen:
            continue
        seen.add(state)
        moves = list(_moves(program, rules, state))
        if None in moves or (not moves and state != everything):
            return False
        work += [state.union(move) for move in moves if move]
    return True


def _moves(program: Program, rules: Rules, state: State) -> Iterator[State | None]:
    """What can run next: the instructions that run together, or None where a receive gets another one's value."""
    heads = [(mesh, n) for mesh in range(program.meshes) for n in _heads(program, rules, state, mesh)]
    for mesh, n in heads:
        each = program.sequences[mesh][n]
        if isinstance(each, Call) or (isinstance(each, Send) and not rules.rendezvous):
            yield frozenset([(mesh, n)])
        elif isinstance(each, Receive):
            sends = {k: one for k, one in enumerate(program.sequences[each.source]) if _other(one) == mesh}
            sends = {k: one for k, one in sends.items() if isinstance(one, Send)}
            sent = heads if rules.rendezvous else state
            for k in (k for m, k in sent if m == each.source and k in sends):
                if sends[k].channel == each.channel:
                    yield frozenset([(mesh, n), (each.source, k)])
                elif rules.rendezvous:
                    yield None


def _other(each: Instruction) -> int | None:
    """The mesh at the other end of a transfer."""
    return each.destination if isinstance(each, Send) else each.source if isinstance(each, Receive) else None


def _heads(program: Program, rules: Rules, state: State, mesh: int) -> Iterator[int]:
    """The instructions of a mesh that are first in their streams, and have their operands."""
    line = program.sequences[mesh]
    is_beside = rules.is_beside(program.partitions[mesh])
    made = {register for n, each in enumerate(line) if (mesh, n) in state for register in made_by(each)}
    for n, each in enumerate(line):
        waits = [
            one
            for k, one in enumerate(line[:n])
            if (mesh, k) not in state and (not is_beside or isinstance(one, Call) == isinstance(each, Call))
        ]
        if rules.early and isinstance(each, Receive):
            waits += [one for k, one in enumerate(line[:n]) if (mesh, k) not in state and isinstance(one, Call)]
        if (mesh, n) not in state and not waits and made.issuperset(read_by(each)):
            yield n

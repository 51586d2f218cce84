"""What must hold of a program that is about to run: XLA checks none of it, and crashes."""

import dataclasses

from jaxpp.runtime.program import Call, Program, Receive, Send
from jaxpp.runtime.values import ProgramError


def check_lifetimes(program: Program) -> None:
    """Nothing is read after it was freed; what a function donates is the program's own, and dies there.

    Raises ProgramError that names the mesh and the task.
    """
    for mesh, sequence in enumerate(program.sequences):
        kept = {
            register
            for argument in program.arguments.values()
            for owner, register in argument.registers
            if owner == mesh and not argument.donated
        }
        kept.update(register for result in program.results for owner, register in result.registers if owner == mesh)
        owned: set[int] = set()
        owned.update(
            register
            for argument in program.arguments.values()
            for owner, register in argument.registers
            if owner == mesh and argument.donated
        )
        dead: set[int] = set()
        for each in sequence:
            if isinstance(each, Call | Send):
                operands = each.operands if isinstance(each, Call) else (each.operand,)
                if not dead.isdisjoint(operands):
                    raise ProgramError(f"mesh {mesh}: {each} reads a value after its last use")
            if isinstance(each, Call):
                donates = [each.operands[number] for number in program.functions[each.function].donates]
                if not owned.issuperset(donates) or not kept.isdisjoint(donates):
                    raise ProgramError(f"mesh {mesh}: {each} donates a value that is not the program's to give away")
                if not set(each.frees).issuperset(donates) or any(each.operands.count(one) > 1 for one in donates):
                    raise ProgramError(f"mesh {mesh}: {each} donates a value that is read elsewhere")
                owned.update(each.results)
            elif isinstance(each, Receive):
                owned.add(each.result)
            if isinstance(each, Call | Send):
                if not kept.isdisjoint(each.frees):
                    raise ProgramError(f"mesh {mesh}: {each} frees an argument that is not donated, or a result")
                dead.update(each.frees)


def check_channels(program: Program) -> None:
    """Every receive has its one send, with the same type; and the same sharding, where the meshes have one size."""
    sends: dict[int, tuple[int, Send]] = {}
    received: set[int] = set()
    for mesh, sequence in enumerate(program.sequences):
        for instruction in sequence:
            if isinstance(instruction, Send):
                if instruction.channel in sends:
                    raise ProgramError(f"channel {instruction.channel} is sent twice")
                sends[instruction.channel] = mesh, instruction
    for mesh, sequence in enumerate(program.sequences):
        for instruction in sequence:
            if not isinstance(instruction, Receive):
                continue
            channel = instruction.channel
            source, send = sends.get(channel, (-1, None))
            if send is None or source != instruction.source or send.destination != mesh or channel in received:
                raise ProgramError(
                    f"mesh {mesh} receives channel {channel} from mesh {instruction.source}: no such send"
                )
            received.add(channel)
            sent, expected = program.registers[source][send.operand], program.registers[mesh][instruction.result]
            if program.axis_sizes[source] != program.axis_sizes[mesh]:
                sent = dataclasses.replace(sent, axes=expected.axes)
            if sent != expected:
                raise ProgramError(f"channel {channel} sends {sent}, mesh {mesh} receives {expected}")
    if unreceived := sends.keys() - received:
        raise ProgramError(f"nobody receives channel {min(unreceived)}")

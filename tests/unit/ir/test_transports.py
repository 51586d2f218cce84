"""Orders that a transport allows: the proof against all interleavings of small programs, and what it says."""

import os
from itertools import pairwise, product
from random import Random

import pytest
from unit.ir.explorer import always_ends, mutated, program_of, random_program
from unit.ir.orders import transfer_order

from jaxpp.ir.program import Call, Instruction, Receive, Send, TaskName
from jaxpp.ir.transports import RULES, OrderError, Rules, check_order, rules_of

TWO = (True, False)
EVERY = [Rules(*each) for each in product(TWO, repeat=3)]
ORDERS = int(os.environ.get("JAXPP_TEST_ORDERS", "80"))
"""How many orders are tried: with 40,000 it takes a minute."""


def test_the_proof_agrees_with_all_interleavings() -> None:
    found = {True: 0, False: 0}
    for number in range(ORDERS):
        random = Random(number)
        program = random_program(random, tasks=random.choice([3, 4, 5, 6]))
        for _ in range(random.choice([1, 2, 4, 8])):
            program = mutated(random, program)
        rules = EVERY[number % len(EVERY)]
        try:
            check_order(program, rules)
            proved = True
        except OrderError:
            proved = False
        assert proved == always_ends(program, rules), (number, rules, program.sequences)
        found[proved] += 1
    assert min(found.values()) > ORDERS // 10


def test_an_order_in_which_sends_meet_receives_is_one_for_every_transport() -> None:
    for number in range(20):
        program = random_program(Random(number), tasks=12)
        for rules in EVERY:
            order = transfer_order(program, rules).instructions
            for mesh, line in enumerate(program.sequences):
                assert [each for at, each in order if at == mesh] == list(line)
        met = transfer_order(program, "pair").instructions
        pairs = [(one, other) for (_, one), (_, other) in pairwise(met) if isinstance(one, Send)]
        assert len(pairs) == len(program.hops)
        assert all(isinstance(other, Receive) and one.channel == other.channel for one, other in pairs)


def forward(number: int, *reads: int, stage: int = 0) -> Call:
    return Call("forward", reads, (number,), "forward", (TaskName("forward", stage, number),), ())


FACING: list[list[Instruction]] = [
    [forward(0), Send(7, 0, 1, ()), Receive(8, 1, 1), forward(2, 1)],
    [forward(1, stage=1), Send(8, 1, 0, ()), Receive(7, 0, 0), forward(3, 0, stage=1)],
]
SWAPPED: list[list[Instruction]] = [
    [forward(0), forward(1), Send(7, 0, 1, ()), Send(8, 1, 1, ())],
    [Receive(8, 1, 0), Receive(7, 0, 0)],
]
WAITING: list[list[Instruction]] = [
    [Receive(8, 1, 1), forward(0, 1), Send(7, 0, 1, ())],
    [Receive(7, 0, 0), forward(1, 0, stage=1), Send(8, 1, 0, ())],
]


@pytest.mark.parametrize(
    ("transport", "lines", "devices", "text"),
    [
        ("pull", FACING, 2, None),
        *(
            (
                transport,
                FACING,
                devices,
                f"deadlock: by the transport '{transport}' these meshes wait for one another\n"
                "  mesh 0: the receive from mesh 1 of forward of stage 1, microbatch 1 (channel 8) comes after the "
                "send to mesh 1 of forward of stage 0, microbatch 0 (channel 7)\n"
                "  mesh 1: the receive from mesh 0 of forward of stage 0, microbatch 0 (channel 7) comes after the "
                "send to mesh 0 of forward of stage 1, microbatch 1 (channel 8)\n"
                f"  run insert-transfers{{transport={transport}}}",
            )
            for transport, devices in (("device_put", 2), ("device_put", 1), ("pair", 1))
        ),
        ("pull", SWAPPED, 1, None),
        (
            "pair",
            SWAPPED,
            1,
            "by the transport 'pair' transfer 1 from mesh 0 to mesh 1 is forward of stage 0, microbatch 0 (channel 7) "
            "where it is sent, forward of stage 0, microbatch 1 (channel 8) where it is received\n"
            "  run insert-transfers{transport=pair}",
        ),
        (
            "pull",
            WAITING,
            1,
            "deadlock: these meshes wait for one another\n"
            "  mesh 0: the send to mesh 1 of forward of stage 0, microbatch 0 (channel 7) comes after the receive from "
            "mesh 1 of forward of stage 1, microbatch 1 (channel 8)\n"
            "  mesh 1: the send to mesh 0 of forward of stage 1, microbatch 1 (channel 8) comes after the receive from "
            "mesh 0 of forward of stage 0, microbatch 0 (channel 7)",
        ),
    ],
)
def test_what_it_says(transport: str, lines: list[list[Instruction]], devices: int, text: str | None) -> None:
    program = program_of(lines, (devices,) * 2)
    if text is None:
        check_order(program, transport)
    else:
        with pytest.raises(OrderError) as error:
            check_order(program, transport)
        assert str(error.value) == text


def test_the_time_is_that_of_the_rules() -> None:
    """Where a send waits, so does what is behind it; a task beside a transfer goes on."""
    lines: list[list[Instruction]] = [
        [forward(0), Send(7, 0, 1, ()), forward(2), forward(4)],
        [forward(1, stage=1), forward(3, stage=1), Receive(7, 0, 0), forward(5, 0, stage=1)],
    ]
    program = program_of(lines, (1, 1))
    times = {name: transfer_order(program, name, hop=0.5).time for name in RULES}
    assert times == {"pull": 3.5, "device_put": 3.5, "pair": 4.5}


def test_a_transport_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^transport is 'tcp', expected one of pull, device_put, pair$"):
        rules_of("tcp")

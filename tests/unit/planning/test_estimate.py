"""The times of single programs on a chip."""

import dataclasses

import pytest

from jaxpp.planning import CHIPS
from jaxpp.planning.compiling import Compiled
from jaxpp.planning.estimate import seconds_of

PROGRAM = Compiled(
    argument_bytes=0,
    output_bytes=0,
    alias_bytes=0,
    temp_bytes=0,
    code_bytes=0,
    host_bytes=0,
    flops=0.0,
    transcendentals=0.0,
    accessed_bytes=3e9,
    collective_bytes=8e9,
    between_bytes=0.0,
    optimal_seconds=0.0,
    products={"bf16": int(8e15)},
    device_products={"bf16": int(1e15)},
    trips=1.0,
)


def test_a_roofline() -> None:
    """Products of a device, memory, and collectives within a host, one after the other."""
    expected = 1e15 / 989.4e12 / 0.75 + 3e9 / 3.352e12 / 0.85 + 8e9 / 450e9 / 0.8
    assert seconds_of(PROGRAM, CHIPS["h100"]) == pytest.approx(expected)


def test_collectives_between_hosts_take_the_network() -> None:
    across = dataclasses.replace(PROGRAM, between_bytes=2e9)
    more = 2e9 / 50e9 / 0.8 - 2e9 / 450e9 / 0.8
    assert seconds_of(across, CHIPS["h100"]) == pytest.approx(seconds_of(PROGRAM, CHIPS["h100"]) + more)


def test_the_times_of_a_compiler_leave_out_collectives() -> None:
    """On TPUs they send both ways around a ring of links; what a loop does is counted once."""
    timed = dataclasses.replace(PROGRAM, optimal_seconds=0.25, trips=3.0)
    assert seconds_of(timed, CHIPS["v5p"]) == pytest.approx(3 * (0.25 + 8e9 / 200e9 / 0.8))

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
    collectives=3,
    between_collectives=0,
    optimal_seconds=0.0,
    products={"bf16": int(8e15)},
    device_products={"bf16": int(1e15)},
    trips=1.0,
    compile_seconds=2.0,
)


def test_a_roofline() -> None:
    """Products of a device, memory, and collectives within a host, one after the other."""
    expected = 1e15 / 989.4e12 / 0.75, 3e9 / 3.352e12 / 0.85, 3 * 10e-6 + 8e9 / 450e9 / 0.8
    found = seconds_of(PROGRAM, CHIPS["h100"])
    assert found == pytest.approx(expected)
    assert (found.total, found.hidden) == pytest.approx((sum(expected), expected[0]))


def test_collectives_between_hosts_take_the_network() -> None:
    across = dataclasses.replace(PROGRAM, between_bytes=2e9, between_collectives=1)
    more = 2e9 / 50e9 / 0.8 - 2e9 / 450e9 / 0.8 + 20e-6 - 10e-6
    assert seconds_of(across, CHIPS["h100"]).total == pytest.approx(seconds_of(PROGRAM, CHIPS["h100"]).total + more)


def test_the_times_of_a_compiler_leave_out_collectives() -> None:
    """On TPUs they send both ways around a ring of links; what a loop does is counted once."""
    timed = dataclasses.replace(PROGRAM, optimal_seconds=0.25, trips=3.0)
    assert seconds_of(timed, CHIPS["v5p"]) == pytest.approx((0.75, 0.0, 3 * (8e9 / 200e9 / 0.8 + 3 * 2e-6)))


def test_what_products_do_not_explain_is_memory() -> None:
    """Of the time that a compiler estimates."""
    timed = dataclasses.replace(PROGRAM, optimal_seconds=9.0)
    products = 1e15 / 459e12 / 0.75
    assert seconds_of(timed, CHIPS["v5p"])[:2] == pytest.approx((products, 9.0 - products))

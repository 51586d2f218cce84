"""The table of a program, and the units of its numbers."""

import pytest
from unit.runtime.programs import Pipeline

from jaxpp.runtime.execution.compiling import FunctionStats
from jaxpp.runtime.measuring.summary import summary
from jaxpp.runtime.measuring.units import bytes_text, count_text, flops_text

TABLE = """\
step: 3 stages on 3 meshes of 2 devices, 4 microbatches, 6 programs (test device)

mesh  stages  parameters      FLOPs     sends  arguments  temporaries      peak
   0       0      1.02 k  197 kFLOP  4.00 KiB   6.00 KiB     2.93 KiB  16.9 KiB
   1       1      1.02 k  197 kFLOP  8.00 KiB   4.00 KiB     2.93 KiB  13.9 KiB
   2       2      1.02 k  197 kFLOP  4.00 KiB   4.00 KiB     2.93 KiB  12.4 KiB
-------------------------------------------------------------------------------
 all              3.07 k  590 kFLOP  16.0 KiB   6.00 KiB     2.93 KiB  16.9 KiB

FLOPs: of the matrix products and convolutions of one call, counted once where several devices repeat it.
What is sent: by one call, all devices of a mesh together.
Arguments, temporaries of the largest task and peak memory: of each device; the last row has the largest."""


def test_the_table() -> None:
    program = Pipeline(3, 4, data=2).executable().program
    stats = {(name, mesh): FunctionStats(3000, 0, {}) for name in program.functions for mesh in range(3)}
    assert summary(program, stats, name="step", device="test device", state={0, 1, 2}) == TABLE


def test_rows_of_stacked_layers_that_are_sent() -> None:
    program = Pipeline(1, 1).executable().program
    found = summary(program, {}, name="step", device="cpu", state=(), rows_sent=4096)
    assert found.endswith(
        "\nOf what is sent: 4.00 KiB of stacked layers go to the meshes of their stages, their gradients back.\n"
        "With the layers stored in the order of `jaxpp.models.rows_of_layers` none would be sent."
    )


def test_rows_of_stacked_layers_that_are_padding() -> None:
    program = Pipeline(1, 1).executable().program
    found = summary(program, {}, name="step", device="cpu", state=(), rows_padded=4096)
    assert found.endswith("\nOf the memory: 4.00 KiB are padding of stacked layers (`rows_of_layers`).")


def test_what_is_not_known() -> None:
    """Of a mesh of another process, and of a step that returns none of its arguments."""
    program = Pipeline(1, 1).executable().program
    lines = summary(program, {}, name="step", device="cpu", state=()).splitlines()
    assert lines[0] == "step: 1 stage on 1 mesh of 1 device, 1 microbatch, 5 programs (cpu)"
    assert lines[3].split() == ["0", "0", "-", "49.2", "kFLOP", "0", "B", "-", "-", "-"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(1024), "1.00 KiB"),
        (bytes_text(1024**2 - 1), "1.00 MiB"),
        (bytes_text(30.4 * 1024**3), "30.4 GiB"),
        (bytes_text(139.8 * 1024**3), "140 GiB"),
        (bytes_text(5000 * 1024**5), "5000 PiB"),
        (flops_text(999), "999 FLOP"),
        (flops_text(3.806e12), "3.81 TFLOP"),
        (flops_text(9.996e12), "10.0 TFLOP"),
        (flops_text(99.96e12), "100 TFLOP"),
        (count_text(999_999), "1.00 M"),
        (count_text(174.6e9), "175 B"),
        (count_text(12), "12"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected

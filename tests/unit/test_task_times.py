"""What a byte takes where costs or a chip say it."""

from functools import partial

import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp.memory.task_times import Rates
from jaxpp.targets.chips import CHIPS


def test_a_byte_of_a_chip() -> None:
    """The FLOPs of the types that the step multiplies while a byte is on its way."""
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2))
    lowered = jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).lower(weights(2), batch(4))
    module = lowered._lowered.module
    h200, v5p = (Rates().on(CHIPS[name], module) for name in ("h200", "v5p"))
    assert h200.host_byte == pytest.approx(0.75 * 494.7e12 / 50e9)
    assert h200.peer_byte == pytest.approx(0.75 * 494.7e12 / (0.8 * 450e9))
    assert v5p.host_byte == pytest.approx(0.75 * 459e12 / 16e9)

"""Which task is named for a value that is not finite; `end_to_end/test_debugging.py` has whole steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.runtime.programs import Pipeline, parse

from jaxpp.runtime import Call, Receive
from jaxpp.runtime.special import SpecialValues

PROGRAM = parse(Pipeline(2, 2).text())
NAN, INF, WHOLE = jnp.array([1.0, np.nan], jnp.bfloat16), jnp.array([[-np.inf]]), jnp.arange(3)


def message(special: SpecialValues, *results: jax.Array) -> str:
    with pytest.raises(FloatingPointError) as caught:
        special.check(results)
    return str(caught.value)


def test_the_first_of_its_kind_is_named() -> None:
    first, second = (each for each in PROGRAM.sequences[0] if isinstance(each, Call) and each.kind == "forward")
    special = SpecialValues(PROGRAM, ["nan", "inf"])
    special.look([WHOLE, INF], ((0, first),))
    special.look([NAN], ((0, second),))
    special.look([NAN, INF], ((1, second),))
    special.check([WHOLE, jnp.ones(3)])
    assert message(special, NAN) == "invalid value (nan) encountered in forward of stage 0, microbatch 1 on mesh 0"
    assert (
        message(special, WHOLE, INF) == "invalid value (inf) encountered in forward of stage 0, microbatch 0 on mesh 0"
    )


def test_what_another_process_sends_is_of_the_task_that_made_it() -> None:
    receive = next(each for each in PROGRAM.sequences[1] if isinstance(each, Receive))
    special = SpecialValues(PROGRAM, ["nan"])
    special.look([NAN], ((1, receive),))
    task = "forward of stage 0, microbatch 0 on mesh 0, received by mesh 1"
    assert message(special, NAN) == f"invalid value (nan) encountered in {task}"


def test_only_what_is_asked_for_in_this_thread() -> None:
    assert SpecialValues.wanted(PROGRAM) is None
    with jax.debug_infs(True):
        special = SpecialValues.wanted(PROGRAM)
    assert special is not None
    special.look_at_argument(INF, "mask")
    special.check([NAN])
    assert message(special, INF) == "invalid value (inf) encountered in argument `mask`"

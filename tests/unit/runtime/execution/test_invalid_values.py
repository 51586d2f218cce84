"""Which task is named for a value that is not finite; `end_to_end/test_debugging.py` has whole steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.runtime.programs import Pipeline, parse

from jaxpp.runtime import Call, Receive
from jaxpp.runtime.execution.invalid_values import InvalidValues

PROGRAM = parse(Pipeline(2, 2).text())
NAN, INF, WHOLE = jnp.array([1.0, np.nan], jnp.bfloat16), jnp.array([[-np.inf]]), jnp.arange(3)


def message(invalid: InvalidValues, *results: jax.Array) -> str:
    with pytest.raises(FloatingPointError) as caught:
        invalid.check(results)
    return str(caught.value)


def test_the_first_of_its_kind_is_named() -> None:
    first, second = (each for each in PROGRAM.sequences[0] if isinstance(each, Call) and each.kind == "forward")
    invalid = InvalidValues(PROGRAM, ["nan", "inf"])
    invalid.look(((0, first),), [WHOLE, INF])
    invalid.look(((0, second),), [NAN])
    invalid.look(((1, second),), [NAN, INF])
    invalid.check([WHOLE, jnp.ones(3)])
    assert message(invalid, NAN) == "invalid value (nan) encountered in forward of stage 0, microbatch 1 on mesh 0"
    assert (
        message(invalid, WHOLE, INF) == "invalid value (inf) encountered in forward of stage 0, microbatch 0 on mesh 0"
    )


def test_what_another_process_sends_is_of_the_task_that_made_it() -> None:
    receive = next(each for each in PROGRAM.sequences[1] if isinstance(each, Receive))
    invalid = InvalidValues(PROGRAM, ["nan"])
    invalid.look(((1, receive),), [NAN])
    task = "forward of stage 0, microbatch 0 on mesh 0, received by mesh 1"
    assert message(invalid, NAN) == f"invalid value (nan) encountered in {task}"


def test_only_what_is_asked_for_in_this_thread() -> None:
    assert InvalidValues.wanted(PROGRAM) is None
    with jax.debug_infs(True):
        invalid = InvalidValues.wanted(PROGRAM)
    assert invalid is not None
    invalid.look_at_argument(INF, "mask")
    invalid.check([NAN])
    assert message(invalid, INF) == "invalid value (inf) encountered in argument `mask`"

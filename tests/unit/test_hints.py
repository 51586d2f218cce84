"""What is said behind JAX's own messages about arrays of several meshes."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp
from jaxpp.hints import hint_of

PROGRAM = """
import sys
from jaxpp import hints
sys.excepthook = lambda kind, error, trace: print(*error.__notes__)
hints.install()
hints.install()
raise RuntimeError("Fetching value for `jax.Array` that spans non-addressable (non process local) devices")
"""


def test_an_error_that_ends_a_program_has_the_hint_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "jaxpp: a result of a step lives on the devices of its stage, and only the processes that have these can read "
        "it: jaxpp.fetch(x), called in all processes, gives its numbers in each\n"
    )


def test_arithmetic_over_meshes() -> None:
    """The words are JAX's, of whatever version."""
    function = partial(sgd_step, schedule=jaxpp.schedules.Std1F1B(2))
    first, second = jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=make_mesh(2))(weights(2), batch(2))[0]
    with pytest.raises(ValueError, match="incompatible devices") as caught:
        jnp.add(first, second)
    assert "jaxpp.fetch(x)" in hint_of(caught.value)


def test_a_state_that_jax_would_place() -> None:
    mesh, arguments = make_mesh(2), (weights(2), batch(2))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.schedules.Std1F1B(2)), mpmd_mesh=mesh)
    (shardings, _), _ = step.lower(*arguments).in_shardings
    with pytest.raises(ValueError, match="invalid value: MpmdSharding") as caught:
        jax.device_put(arguments[0], shardings)
    assert "jaxpp.spmd_to_mpmd_reshard(mesh, state, shardings)" in hint_of(caught.value)
    jaxpp.spmd_to_mpmd_reshard(mesh, arguments[0], shardings)


def test_what_other_processes_have() -> None:
    """In one process every array is there, and JAX 0.12 lets no test pretend otherwise: these are its words."""
    words = "Fetching value for `jax.Array` that spans non-addressable (non process local) devices is not possible."
    assert "jaxpp.fetch(x)" in hint_of(RuntimeError(words))


def test_other_errors_have_none() -> None:
    assert hint_of(KeyError("addressable")) == hint_of(ValueError("a value")) == ""

"""What JAX has for debugging works on a pipelined step: callbacks, `jax_debug_nans`, `jax.transfer_guard`."""

# pyright: reportUnknownLambdaType=false

import subprocess
import sys
import textwrap
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights
from unit.progress import without_progress

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(2)


def test_a_barrier_waits_for_the_callbacks_of_a_step_that_nobody_waited_for() -> None:
    """As the end of Python does: a callback that runs then aborts the process."""
    calls: list[float] = []

    def slow(x: Any) -> None:
        time.sleep(0.02)
        calls.append(float(x))

    def loss(params: Any, microbatch: Any) -> Any:
        x = jaxpp.mark_stage_end(microbatch["x"] @ params[0])
        jax.debug.callback(slow, x.sum())
        return jnp.mean(x @ params[1])

    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, loss=loss, schedule=SCHEDULE), make_mesh(2, data=2))
    step(weights(2), batch(8))
    jax.effects_barrier()
    assert len(calls) == 8


def log_loss(params: Any, microbatch: Any) -> Any:
    """The logarithm of a negative number in stage 1, if the microbatch has one."""
    x = jaxpp.mark_stage_end(microbatch["x"] @ params[0])
    return jnp.mean(jaxpp.mark_stage_end(jnp.log(x)) @ params[1])


def masked_loss(params: Any, microbatch: Any) -> Any:
    """An infinity that crosses to stage 1, where nothing is left of it."""
    x = jaxpp.mark_stage_end(jnp.where(microbatch["x"] > 0, microbatch["x"] @ params[0], -jnp.inf))
    return jnp.mean(jnp.exp(x) @ params[1])


def of_microbatches(*signs: int) -> dict[str, np.ndarray]:
    """A batch of ones, of which some microbatches are negative."""
    return {"x": np.ones((len(signs), 4, 8), np.float32) * np.array(signs, np.float32)[:, None, None]}


@pytest.mark.parametrize("trace", [False, True])
def test_debug_nans_names_the_task(trace: bool) -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, loss=log_loss, schedule=jaxpp.Std1F1B(3)), make_mesh(3, data=2))
    params: list[Any] = [np.eye(8, dtype=np.float32)] * 2
    compiled = step.lower(params, of_microbatches(1, 1, 1, 1)).compile()
    run = compiled.trace if trace else compiled
    run(params, of_microbatches(1, -1, 1, -1))  # off: no error
    with jax.debug_nans(True):
        run(params, of_microbatches(1, 1, 1, 1))
        place = r"^invalid value \(nan\) encountered in forward of stage 1, microbatch 1 on mesh 1$"
        with pytest.raises(FloatingPointError, match=place):
            run(params, of_microbatches(1, -1, 1, -1))
        with pytest.raises(FloatingPointError, match=r"^invalid value \(nan\) encountered in argument `params\[0\]`$"):
            run([np.full((8, 8), np.nan, np.float32), params[1]], of_microbatches(1, 1, 1, 1))
        run(params, of_microbatches(1, 1, 1, 1))


@pytest.mark.parametrize(("kind", "debug"), [("nan", jax.debug_nans), ("inf", jax.debug_infs)])
def test_an_argument_that_has_to_be_moved_is_named(kind: str, debug: Any) -> None:
    """JAX looks at what moves an argument, a slice for each device, and would name neither argument nor task."""
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=SCHEDULE), make_mesh(2, data=2), in_shardings=(P(), P(None, "data"))
    )
    params, data = weights(2), {name: jnp.asarray(each) for name, each in batch(4).items()}
    invalid = data | {"y": data["y"].at[3, 0, 0].set(float(kind))}
    with debug(True):
        step(params, data)
        place = rf"^invalid value \({kind}\) encountered in argument `batch\['y'\]`$"
        with pytest.raises(FloatingPointError, match=place):
            step(params, invalid)


def test_debug_infs_is_about_results() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, loss=masked_loss, schedule=SCHEDULE), make_mesh(2))
    params: list[Any] = [np.eye(8, dtype=np.float32)] * 2
    with jax.debug_infs(True), jax.debug_nans(True):
        step(params, of_microbatches(1, -1))
        with pytest.raises(
            FloatingPointError, match=r"\(inf\) encountered in forward of stage 0, microbatch 1 on mesh 0"
        ):
            step([params[0], params[1] * np.float32(3e38)], of_microbatches(100, -1))


def test_a_transfer_guard_is_for_what_the_user_does() -> None:
    """A step compiles, its copies go on; an argument that has to be moved is an error, as it is with `jax.jit`."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), make_mesh(2))
    params, data = weights(2), batch(4)
    with jax.transfer_guard("disallow_explicit"):
        compiled = step.lower(params, data).compile()
    (where, places), _ = compiled.in_shardings
    placed = [
        jax.device_put(each, jax.tree.map(lambda sharding: sharding.sharding, to))
        for each, to in ((params, where), (data, places))
    ]
    expected = step(*placed)
    host, other = (f"Disallowed {source}-to-device transfer" for source in ("host", "device"))
    for level in ("disallow", "disallow_explicit"):
        with jax.transfer_guard(level):
            found = step(*placed)
            compiled.trace(*placed)
            with pytest.raises(RuntimeError, match=host):
                step(placed[0], data)
            with pytest.raises(RuntimeError, match=other):
                step(placed[0][::-1], placed[1])
            with pytest.raises(RuntimeError, match=host):
                jax.jit(jnp.sin)(data["x"])
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_python_ends_when_the_callbacks_have_run() -> None:
    """Also of a step that another thread has called, which JAX itself forgets."""
    script = """
        import threading, time
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh
        import jaxpp

        def function(x):
            x = jaxpp.mark_stage_end(x @ x)
            jax.debug.callback(lambda value: time.sleep(0.2) or print("called", value.shape), x)
            return x @ x

        mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("mpmd", "data")), "mpmd")
        step = jaxpp.mpmd_jit_by_yield(function, mesh)
        thread = threading.Thread(target=step, args=[jnp.ones((4, 4))])
        thread.start()
        thread.join()
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, without_progress(ended.stderr)) == (0, "called (4, 4)\n", "")

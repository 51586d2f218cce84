"""Backends: who compiles and runs the steps of a mesh."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp
from jaxpp.backend import Backend, LocalBackend, key_bits
from jaxpp.lowering.lower import Lowered
from jaxpp.program import ProgramModule


class Numbers:
    """A backend of somebody else's: it gives its results out as numpy arrays."""

    platform = "cpu"

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Mapping[str, Any] | None) -> Any:
        made = LocalBackend("cpu").compile(lowered, program, compiler_options)
        return InNumbers(made)


class InNumbers:
    def __init__(self, made: Any) -> None:
        self.program, self.stats, self._made = made.program, made.stats, made

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        return [np.asarray(result) for result in self._made(arguments)]

    def trace(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results, events = self._made.trace(arguments)
        return [np.asarray(result) for result in results], events


def test_a_step_runs_on_a_backend_of_somebody_elses() -> None:
    mine: Backend = Numbers()
    mesh = jaxpp.MpmdMesh(make_mesh(2).jax_mesh, "mpmd", backend=mine)
    assert repr(mesh).endswith(", cpu of a Numbers)")
    function = partial(sgd_step, schedule=jaxpp.schedules.Std1F1B(2))
    step = jaxpp.mpmd_jit_with_loop(function, mesh)
    found = step(weights(2), batch(4))
    assert {type(leaf) for leaf in jax.tree.leaves(found)} == {np.ndarray}
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, jax.jit(function)(weights(2), batch(4)))
    compiled = step.compile(weights(2), batch(4))
    _, events = compiled.trace(weights(2), batch(4))
    assert compiled.costs(events)
    assert "cpu" in compiled.summary()


def test_what_is_no_backend_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^MpmdMesh: backend is of type object, without `platform`: see jaxpp.backend"):
        jaxpp.MpmdMesh(make_mesh(2).jax_mesh, "mpmd", backend=object())  # pyright: ignore[reportArgumentType]


def test_keys_of_another_generator_are_refused() -> None:
    """Keys of "rbg" and "unsafe_rbg" have bits of one type, and give other numbers."""
    key, other = (jax.random.key(0, impl=name) for name in ("rbg", "unsafe_rbg"))
    (found,) = key_bits([key], {0: key.dtype}, ["key"])
    assert found.dtype == np.uint32
    for wrong, name in [(other, "key<urbg>"), (found, "uint32"), (0, "int")]:
        with pytest.raises(TypeError) as caught:
            key_bits([wrong], {0: key.dtype}, ["key"])
        assert str(caught.value) == f"argument `key` is {name}; the program was compiled for random keys, key<rbg>"

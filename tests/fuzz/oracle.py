"""Plain `jax.jit` of a step, given the product's own state at every call, and how far rounding may move its results."""

# pyright: reportUnknownLambdaType=false

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from fuzz.case import Case, step_of

import jaxpp.api as jaxpp
from jaxpp import comparing
from jaxpp.validation.compare import Expected, Tolerance, compare

EXACT = {"xla_allow_excess_precision": False}
"""Options of XLA with which it computes in the types that the program says."""
TOLERANCE = Tolerance(1e-5)
"""The difference that another order of float32 sums may make, of an array's largest value, besides the noise."""


def host(tree: Any) -> Any:
    """Returns a copy of all arrays in the memory of the host, before they may be donated."""
    return jax.tree.map(lambda leaf: np.array(jaxpp.fetch(leaf) if jax.process_count() > 1 else leaf), tree)


def floats(tree: Any) -> list[Any]:
    """Returns the leaves that are no integers, in a type that NumPy knows."""
    return [leaf.astype(complex) for leaf in jax.tree.leaves(tree) if jax.numpy.issubdtype(leaf.dtype, np.inexact)]


def nudged(tree: Any, seed: int) -> Any:
    """Returns the arrays with each number changed by 1 ulp up or down, or not at all."""
    draw = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not jax.numpy.issubdtype(leaf.dtype, np.inexact):
            return leaf
        ulp = float(jax.numpy.finfo(leaf.dtype).eps)
        return (leaf * (1 + draw.choice((-ulp, 0, ulp), leaf.shape))).astype(leaf.dtype)

    return jax.tree.map(change, tree)


MOST = 1e3
"""A step whose results are larger diverges: rounding decides what is infinite."""


class Reference:
    """The results that a step has to have.

    Attributes:
        diverged: whether the last call had results too large to compare.
    """

    def __init__(self, case: Case, step: Callable[..., Any], mesh: jaxpp.MpmdMesh, pipelined: Any) -> None:
        self._case, self._mesh, self._pipelined = case, mesh, pipelined
        if case.frozen:
            step, _ = step_of(dataclasses.replace(case, loss=partial(without_gradients, case.loss, case.frozen)))
        self._plain = jax.jit(step, compiler_options=EXACT)
        self.diverged = False

    def run(self, arguments: Sequence[Any]) -> Any:
        """Returns the results of plain `jax.jit`; with explicit axes on the devices of a stage, as types name these."""
        if self._case.mesh == "explicit":
            return self.on_devices(arguments)
        return host(self._plain(*arguments))

    def on_devices(self, arguments: Sequence[Any]) -> Any:
        """Returns the results of plain `jax.jit` on all devices of a stage."""
        with jax.set_mesh(self._mesh.lowering_mesh()):
            specs = self._case.options["in_shardings"]
            placed = [put(value, spec) for value, spec in zip(arguments, specs, strict=True)]
            return host(self._plain(*placed))

    def difference(self, arguments: Sequence[Any], found: Any) -> str:
        """Returns what is wrong with the results of a call; "" for nothing."""
        self._case.calls.clear()
        expected = self.run(arguments)
        self.diverged = any(not np.abs(leaf).max(initial=0) < MOST for leaf in floats(expected))
        if self.diverged:
            return ""
        jax.effects_barrier()
        calls = sorted(self._case.calls)
        noise = [self._nudged(arguments, seed) for seed in range(2)]
        problem = different(found, expected, noise, TOLERANCE)
        if problem:  # of two maxima that are almost equal it is chance which one a nudge makes the larger
            noise += [self._nudged(arguments, seed) for seed in range(2, 12)]
            problem = different(found, expected, noise, TOLERANCE)
        self._case.calls[:] = calls
        if problem and self._case.mesh == "data" and self._case.loop is None:
            # XLA divides a stage's work over its devices in both: an error of its own is none of ours.
            problem = different(found, self.on_devices(arguments), noise, TOLERANCE) and problem
        if problem and not {"brain", "half"}.isdisjoint(self._case.words):
            # Sums in 16 bits, in another order: then both agree in float32, from which jax.jit is as far in 16 bits.
            report = jaxpp.compare(self._pipelined, *arguments)
            if report.is_rounding:
                rounding = max(each.of_jit or 0.0 for each in report.results)
                problem = different(found, expected, noise, Tolerance(comparing.MOST * rounding))
        return problem

    def _nudged(self, arguments: Sequence[Any], seed: int) -> Any:
        """Returns the results for arguments that are 1 ulp away."""
        return self.run(nudged(arguments, seed))


def without_gradients(loss: Callable[..., Any], stages: Collection[int], params: Sequence[Any], microbatch: Any) -> Any:
    """Returns the loss, of which the parameters of these stages have no gradient."""
    held = [jax.lax.stop_gradient(each) if k in stages else each for k, each in enumerate(params)]
    return loss(held, microbatch)


def put(value: Any, spec: Any) -> Any:
    """Returns arguments with the shardings of a prefix tree."""
    whole = jax.tree.broadcast(spec, value, is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec))
    return jax.tree.map(jax.device_put, value, whole)


def different(found: Any, expected: Any, moved: Sequence[Any], tolerance: Tolerance) -> str:
    """Returns where results differ by more than the tolerance and the noise."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return f"results {jax.tree.structure(found)} instead of {jax.tree.structure(expected)}"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)]
    every = zip(paths, *map(jax.tree.leaves, (found, expected, *moved)), strict=True)
    for path, one, other, *others in every:
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{path}: {one.dtype}{one.shape} instead of {other.dtype}{other.shape}"
        wanted = max((Expected.of(other, each) for each in others), key=lambda each: each.noise)
        problem = compare(wanted, one, tolerance)[1]
        if problem:
            return f"{path} {problem}"
    return ""

"""`compare`: compares a step with plain `jax.jit` of the same function, and tells rounding from errors."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp._keys import bits_of, is_key
from jaxpp.ir.program import Program
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime.measuring.analysis import stages
from jaxpp.runtime.processes.fetch import Handle, fetch
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.validation.compare import Expected, Tolerance, nudged
from jaxpp.validation.compare import compare as compare_arrays
from jaxpp.validation.cpu import Runner, partitions_of
from jaxpp.validation.runnable import RunError
from jaxpp.validation.widen import widen

NUDGES = 3
"""The number of times that the last bit of all arguments is changed, to measure how far rounding moves the results."""
MOST = 16.0
"""The ratio of difference to noise up to which rounding explains the difference. Few changes measure the noise."""
LEAST = 1e-5
"""The difference that rounding always explains: a sum in another order."""


@dataclass(frozen=True)
class ResultComparison:
    """One result of the step beside that of `jax.jit`. Differences are shares of the result's largest number.

    Attributes:
        name: `state['w']` for the new value of an argument, otherwise `result[1]`.
        stages: the stages that read the argument, or all stages of the meshes that have the result.
        meshes: the meshes that have the result.
        difference: the difference between the step and `jax.jit`.
        noise: how far the result of `jax.jit` moves if the arguments change in their last bit.
        of_step: the difference between the step and float32; None if nothing computes in less than float32.
        of_jit: the difference between `jax.jit` and float32, or None.
        at_float32: the difference between the step and `jax.jit` if both compute in float32, or None.
        noise_at_float32: the noise if `jax.jit` computes in float32.
        varies: the difference between two runs of `jax.jit` with the same arguments.
        most_of_jit: the largest `of_jit` of all results: by chance a single number may be hardly rounded.
    """

    name: str
    stages: tuple[int, ...]
    meshes: tuple[int, ...]
    difference: float
    noise: float
    of_step: float | None = None
    of_jit: float | None = None
    at_float32: float | None = None
    noise_at_float32: float = 0.0
    varies: float = 0.0
    most_of_jit: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the difference."""
        if self.is_random:
            return False
        if self.at_float32 is not None and self.at_float32 > max(MOST * self.noise_at_float32, LEAST):
            return False
        return self.difference <= max(MOST * max(self.noise, self.most_of_jit, self.of_jit or 0.0), LEAST)

    @property
    def is_random(self) -> bool:
        """Whether `jax.jit` differs from itself, so that nothing can be said of the step."""
        return self.varies > LEAST

    def __str__(self) -> str:
        """Formats the comparison as one line."""
        what, numbers = ("stage", self.stages) if self.stages else ("mesh", self.meshes)
        where = f"{what} {', '.join(map(str, numbers))}"
        text = f"{self.name} of {where}: {self.difference:.1e} from jax.jit"
        if self.of_step is not None and self.of_jit is not None:
            text += f", {self.of_step:.1e} from float32 where jax.jit is {self.of_jit:.1e} from it"
        if self.at_float32 is not None:
            text += f"; {self.at_float32:.1e} where both compute in float32"
        return f"{text}; {self.varies:.1e} between two runs of jax.jit" if self.is_random else text


@dataclass(frozen=True)
class Comparison:
    """The report of `jaxpp.compare`.

    Attributes:
        results: one comparison for each result of the step.
        unknown: the reason why nothing ran in float32, or "".
    """

    results: tuple[ResultComparison, ...]
    unknown: str = ""

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains all differences."""
        return all(each.is_rounding for each in self.results)

    def __str__(self) -> str:
        """Formats the verdict and the results that differ; if none does, the result with the largest difference."""
        note = f"\n  (not run in float32: {self.unknown})" if self.unknown else ""
        random = [each for each in self.results if each.is_random]
        wrong = [each for each in self.results if not (each.is_rounding or each.is_random)]
        for verdict, found in (("differs", wrong), ("not deterministic", random)):
            if found:
                lines = "".join(f"\n  {each}" for each in sorted(found, key=lambda each: -each.difference))
                return f"{verdict}, in {len(found)} of {len(self.results)} results:{lines}{note}"
        worst = max(self.results, key=lambda each: each.difference, default=None)
        return f"rounding: {worst}{note}" if worst else "no results"


class _Comparable(Protocol):
    """A step that `mpmd_jit_with_loop` returns."""

    def to_compare(self, args: Sequence[Any]) -> tuple[Any, LoweredStep]:
        """Returns plain `jax.jit` of the function, and the step, lowered."""
        ...


def compare(step: _Comparable, *args: Any) -> Comparison:
    """Runs a step and plain `jax.jit` of the same function; reports whether rounding explains how they differ.

        print(jaxpp.compare(step, state, batch))

    Sums in another order round differently. In bfloat16, a norm of gradients can differ by tens of per cent for this
    reason. To tell this from an error, both are compared with float32. Operations in bfloat16 or float16 are compiled
    again in float32, in which a correct step agrees with `jax.jit`. The effect of rounding is measured: `jax.jit` runs
    with arguments that are changed in their last bit. No argument is donated.

    `jax.jit` runs the whole model on one device of each process, so take a small model. In a job all processes call
    this function.

    Args:
        step: a step of `mpmd_jit_with_loop` or `mpmd_jit_by_yield`.
        args: its positional arguments.

    Returns:
        The report. As text it is "rounding: ..." or "differs, in 1 of 9 results: ...", with the parameter and its
        stage; or "not deterministic, ..." where two runs of `jax.jit` differ.

    Raises:
        TypeError: `step` is no such step.
        PassError, TypeError, ValueError: as when the step is called.
    """
    if not hasattr(step, "to_compare"):
        raise TypeError(f"compare: expected a step of mpmd_jit_with_loop, found {type(step).__name__}")
    numbers = jax.tree.map(number_of, args)
    plain, lowered = step.to_compare(numbers)
    compiled = lowered.compile()
    leaves = jax.tree.leaves((numbers, {}))
    ours, unknown, wide = on_host(compiled.run(leaves)), "", None
    with mesh_of(lowered.lowered):
        theirs, again = on_host(plain(*numbers)), on_host(plain(*numbers))
        moved = [on_host(plain(*_nudged(numbers, seed))) for seed in range(NUDGES)]
        module = own_copy(plain.lower(*numbers).compiler_ir())
    try:
        wide = _at_float32(lowered, module, leaves)
    except RunError as error:
        unknown = error.message
    found = [
        ResultComparison(
            *_place(compiled, number),
            _difference(one, other),
            max(_difference(each[number], other) for each in moved),
            *(wide(number, one, other) if wide else ()),
            varies=_difference(again[number], other),
        )
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True))
    ]
    most = max((each.of_jit or 0.0 for each in found), default=0.0)
    return Comparison(tuple(dataclasses.replace(each, most_of_jit=most) for each in found), unknown)


def mesh_of(lowered: Lowered) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which plain `jax.jit` can name axes of the mesh: the first mesh, if it is here."""
    mesh = lowered.mpmd_mesh.unstack[0]
    is_here = lowered.mpmd_mesh.backend is None and jax.process_count() == 1
    return jax.set_mesh(mesh) if is_here and jax.sharding.get_abstract_mesh().empty else contextlib.nullcontext()


def _at_float32(
    lowered: LoweredStep, module: ir.Module, leaves: Sequence[Any]
) -> Callable[[int, Any, Any], tuple[float, ...]] | None:
    """Runs the step, and the module of plain `jax.jit`, in float32; returns None if both compute in that already.

    Otherwise returns a function. It takes the index of a result, and the results of the step and of `jax.jit` there. It
    returns the last four numbers of a `ResultComparison`.
    """
    step = lowered.at_float32()
    if step is None or not widen(module):
        return None
    given = [_wide(np.asarray(bits_of(leaf))) for leaf in leaves]
    run = _alone(module, lowered.lowered)
    arguments = [_as_given(*pair) for pair in zip(leaves, given, strict=True)]
    expected, ours = run(given), on_host(step.compile().run(arguments))
    moved = [run(_nudged(given, seed)) for seed in range(NUDGES)]

    def of(number: int, one: Any, other: Any) -> tuple[float, ...]:
        right = expected[number]
        noise = max(_difference(each[number], right) for each in moved)
        return _difference(one, right), _difference(other, right), _difference(ours[number], right), noise

    return of


def _alone(module: ir.Module, lowered: Lowered) -> Callable[[Sequence[Any]], list[Any]]:
    """Compiles a module as one program, on devices of one mesh of the step."""
    partitions = partitions_of(module)
    here = lowered.mpmd_mesh.unstack[0].local_devices
    runner = Runner(partitions, devices=here if len(here) == partitions and lowered.mpmd_mesh.backend is None else ())
    with module.context:
        run = runner.compile(module, "main")
    return lambda numbers: [np.asarray(each) for each in run([runner.put(each) for each in numbers])]


def _place(step: CompiledStep, number: int) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Returns the name of a result, its stages, and the meshes that have it, as for `ResultComparison`."""
    program, lowered = step.executable.program, step.lowered
    meshes = tuple(mesh for mesh, _ in program.results[number].registers)
    argument = lowered.feeds.get(number)
    of_meshes = tuple(sorted({each for mesh in meshes for each in stages(program, mesh)}))
    if argument is None:
        return lowered.out_names[number], of_meshes, meshes
    return lowered.in_names[argument], _readers(program, argument) or of_meshes, meshes


def _readers(program: Program, argument: int) -> tuple[int, ...]:
    places = program.arguments[argument].registers if argument in program.arguments else ()
    calls = (each for mesh, register in places for each in program.calls[mesh] if register in each.operands)
    return tuple(sorted({task.stage for each in calls for task in each.tasks}))


def number_of(leaf: Any) -> Any:
    """Returns an array on any devices as a numpy array, and anything else as it is."""
    return fetch(leaf) if isinstance(leaf, jax.Array | Handle) else leaf


def on_host(tree: Any) -> list[Any]:
    """Returns all leaves as numpy arrays; for random keys their bits."""
    return list(map(np.asarray, fetch(list(map(bits_of, jax.tree.leaves(tree))))))


def _as_given(leaf: Any, number: Any) -> Any:
    return leaf if is_key(leaf) or not hasattr(leaf, "dtype") else number


def _is_narrow(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating)) and array.dtype.itemsize < 4


def _wide(array: Any) -> Any:
    canonical = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return canonical.astype(np.float32) if _is_narrow(canonical) else canonical


def _nudged(tree: Any, seed: int) -> Any:
    """Returns the arrays with about the last bit of each floating-point number changed at random."""
    generator = np.random.default_rng(seed)

    def nudge(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or is_key(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return nudged(np.asarray(leaf), generator)

    return jax.tree.map(nudge, tree)


def _difference(found: Any, right: Any) -> float:
    """Returns the largest difference, as a share of the largest number."""
    return compare_arrays(Expected(right, 0.0), found, Tolerance(math.inf))[0]

"""Steps of explicit tasks, in the form of NVIDIA's JaxPP: each task names its mesh, and each transfer is written.

    @mpmd.mpmd(mesh, in_shardings=(on_first, on_second))
    def step(x, y):
        hidden = mpmd.task(first, out_shardings=on_first)(x)
        hidden = mpmd.transfer(hidden, out_shardings=on_second).done()
        return mpmd.task(second, out_shardings=on_second)(hidden, y)

The step becomes a program as any other: it is proven, and its transfers go by the same transports
(docs/jaxpp-compatibility.md).
"""

import functools
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, TypeVar

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpp._compat import own_copy
from jaxpp._system import setting
from jaxpp.hlo_passes.base import run_unwritten
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.place_tasks import PlaceTasks
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir import attributes as at
from jaxpp.ir.kinds import ARGUMENT, TASK, TRANSFER
from jaxpp.jit import MpmdFunction
from jaxpp.lowering.arguments import per_leaf
from jaxpp.lowering.locations import here, name_of_function
from jaxpp.lowering.lower import lower
from jaxpp.lowering.mesh import MpmdMesh, check_mesh
from jaxpp.lowering.placing import Axes, place
from jaxpp.program import ProgramModule, transport_of
from jaxpp.step import LoweredStep

__all__ = ["LoweredMpmdFun", "MpmdFunction", "MpmdMesh", "mpmd", "slice", "stack", "task", "transfer"]

T = TypeVar("T")

_inside: ContextVar[MpmdMesh | str] = ContextVar("jaxpp_explicit_mesh", default="outside of a function of mpmd.mpmd")
"""The mesh of the step that is being traced, or the place where no task may be called."""


def mpmd(
    mpmd_mesh: MpmdMesh,
    *,
    in_shardings: Any,
    donate_argnums: int | Sequence[int] | None = None,
    infer_donation: bool = False,
) -> Callable[[Callable[..., Any]], MpmdFunction]:
    """Returns a decorator for a function of tasks and transfers, which becomes a step on several meshes.

    Args:
        mpmd_mesh: the mesh and its mpmd axis.
        in_shardings: a pytree prefix of the arguments, of NamedShardings over one mesh of `mpmd_mesh.unstack` each.
        donate_argnums: as for `jax.jit`.
        infer_donation: for JaxPP's scripts. Every value is donated to the task that uses it last.
    """
    del infer_donation
    check_mesh(mpmd_mesh)

    def decorate(fun: Callable[..., Any]) -> MpmdFunction:
        return _ExplicitFunction(fun, mpmd_mesh, in_shardings, donate_argnums)

    return decorate


def task(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    out_shardings: Any,
    name: str | None = None,
    in_shardings: Any = None,
    mesh: Mesh | None = None,
    donate_argnums: int | Sequence[int] | None = None,
) -> Callable[..., Any]:
    """Returns `fun` as a task of one mesh, on which all its arguments and results are.

    Args:
        fun: a function of arrays. Without it, `task` returns a decorator.
        out_shardings: a pytree prefix of the results: NamedShardings over one mesh, or PartitionSpecs.
        name: the name of the task; the name of `fun` if it is None.
        in_shardings: a pytree prefix of the arguments, in the same form. None: the arguments as they are.
        mesh: the mesh, if no sharding names it. None: the mesh of the arguments.
        donate_argnums: for JaxPP's scripts. Every value is donated to the task that uses it last.

    Raises (when called):
        ValueError: the call is outside of a function of `mpmd`, or the shardings are over several meshes.
        TypeError: a sharding is of another kind.
    """
    if fun is None:
        return functools.partial(
            task,
            out_shardings=out_shardings,
            name=name,
            in_shardings=in_shardings,
            mesh=mesh,
            donate_argnums=donate_argnums,
        )
    called = re.sub(r"\W+", "_", name or name_of_function(fun))  # also the name of a file of XLA's cache

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        step_mesh = _step_mesh("task")
        given = [*args, *kwargs.values()]
        rows = [] if in_shardings is None else per_leaf("in_shardings", in_shardings, given)
        shardings = [sharding for row in rows for sharding in row]

        def inner(*args: Any, **kwargs: Any) -> Any:
            if shardings:
                leaves, tree = jax.tree.flatten((args, kwargs))
                args, kwargs = jax.tree.unflatten(tree, map(_resharded, leaves, shardings))
            with setting(_inside, f"inside of the task '{called}'"):
                leaves, tree = jax.tree.flatten(results := fun(*args, **kwargs))
            (wanted,) = per_leaf("out_shardings", (out_shardings,), [results])
            return jax.tree.unflatten(tree, map(_resharded, leaves, wanted))

        inner.__name__ = called
        results = jax.jit(inner)(*args, **kwargs)
        leaves, tree = jax.tree.flatten(results)
        if not leaves:
            raise ValueError(f"{here()}task '{called}' returns no array")
        (wanted,) = per_leaf("out_shardings", (out_shardings,), [results])
        named = [_mesh_of(step_mesh, sharding) for sharding in (*shardings, *wanted)]
        meshes = {number for number in named if number is not None}
        meshes |= set() if mesh is None else {_index(step_mesh, mesh)}
        if len(meshes) > 1:
            raise ValueError(f"{here()}task '{called}': its shardings are over meshes {sorted(meshes)}, expected one")
        homes = [meshes.pop() if meshes else -1] * len(leaves)
        return jax.tree.unflatten(tree, place(leaves, TASK, homes, [_axes(step_mesh, each) for each in wanted]))

    return run


class TransferFuture(Generic[T]):
    """The values of a transfer, which `done()` returns once."""

    def __init__(self, values: T) -> None:
        self._values: list[T] = [values]

    def done(self) -> T:
        """Returns the values on their new mesh. Raises RuntimeError at a second call."""
        if not self._values:
            raise RuntimeError(f"{here()}done() was called before: keep the values that it returned")
        return self._values.pop()


def transfer(arrays: T, *, out_shardings: Any) -> TransferFuture[T]:
    """Sends arrays to another mesh, each in the sharding that it has.

    The order of the calls does not count: a value is sent as soon as it is computed.

    Args:
        arrays: a pytree of arrays.
        out_shardings: a pytree prefix of NamedShardings over the other mesh.

    Raises:
        ValueError: the call is outside of a function of `mpmd`, or there is no array.
        TypeError: a sharding is no NamedSharding.
    """
    step_mesh = _step_mesh("transfer")
    leaves, tree = jax.tree.flatten(arrays)
    if not leaves:
        raise ValueError(f"{here()}transfer: expected an array at least")
    (wanted,) = per_leaf("out_shardings", (out_shardings,), [arrays])
    meshes = [_named(step_mesh, "transfer", sharding) for sharding in wanted]
    placed = place(leaves, TRANSFER, meshes, [_axes(step_mesh, each) for each in wanted])
    return TransferFuture(jax.tree.unflatten(tree, placed))


def stack(*arrays: Any) -> NoReturn:
    """Raises NotImplementedError: it joins arrays of several meshes to one for a task on all of them."""
    what = "it joins arrays of several meshes for a task on all of them, and a task is on one mesh here"
    raise NotImplementedError(f"{here()}mpmd.stack: {what}; transfer them to one mesh, and join them in a task there")


def slice(array: Any, groups: Any) -> NoReturn:
    """Raises NotImplementedError: it cuts an array of several meshes into one for each group of these."""
    what = "it cuts an array of several meshes, and a value is on one mesh here"
    raise NotImplementedError(f"{here()}mpmd.slice: {what}; cut it in a task, and transfer the parts")


def _step_mesh(name: str) -> MpmdMesh:
    """Returns the mesh of the step that is being traced. Raises ValueError if there is none."""
    mesh = _inside.get()
    if isinstance(mesh, str):
        raise ValueError(f"{here()}mpmd.{name} was called {mesh}")
    return mesh


def _index(step_mesh: MpmdMesh, mesh: Any) -> int:
    """Returns the index of a mesh of `unstack`. Raises ValueError for any other mesh."""
    found = step_mesh.mpmd_indices_for_mesh(mesh)
    if found is None or len(found) != 1:
        what = "other devices" if found is None else f"meshes {', '.join(map(str, found))}"
        raise ValueError(f"{here()}a mesh of {what}, expected one mesh of mpmd_mesh.unstack")
    return found[0]


def _mesh_of(step_mesh: MpmdMesh, sharding: Any) -> int | None:
    """Returns the index of the mesh that a sharding names, if it does. Raises TypeError or ValueError."""
    if isinstance(sharding, PartitionSpec):
        return None
    return _named(step_mesh, "task", sharding)


def _named(step_mesh: MpmdMesh, what: str, sharding: Any) -> int:
    if not isinstance(sharding, NamedSharding):
        expected = "a NamedSharding over one mesh of mpmd_mesh.unstack"
        raise TypeError(f"{here()}{what}: found a sharding of type {type(sharding).__name__}, expected {expected}")
    if sharding.memory_kind not in (None, "device", "unpinned_host"):
        hint = "values of a step are on the devices, expected no memory_kind"
        raise ValueError(f"{here()}{what}: a sharding with memory_kind={sharding.memory_kind!r}: {hint}")
    return _index(step_mesh, sharding.mesh)


def _resharded(leaf: Any, sharding: Any) -> Any:
    """Returns an array inside of a task in a sharding."""
    spec, mesh = getattr(sharding, "spec", sharding), jax.sharding.get_abstract_mesh()
    if not isinstance(spec, PartitionSpec) or mesh.empty:  # `task` refuses the first; the other is plain `jax.jit`
        return leaf
    if AxisType.Explicit in mesh.axis_types:
        return jax.sharding.reshard(leaf, spec)
    return jax.lax.with_sharding_constraint(leaf, spec)


def _axes(step_mesh: MpmdMesh, sharding: Any) -> Axes:
    """Returns the axes of each dimension. Raises ValueError for a partial sum or an unknown sharding."""
    spec: Any = getattr(sharding, "spec", sharding)
    if getattr(spec, "unreduced", None) or PartitionSpec.UNCONSTRAINED in spec:
        raise ValueError(f"{here()}{spec}: expected the axes of each dimension; sum partial sums inside of the task")
    rows = ((entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec)
    return tuple(tuple(axis for axis in row if axis != step_mesh.mpmd_axis_name) for row in rows)


class LoweredMpmdFun(LoweredStep):
    """A lowered step of explicit tasks. A call compiles it, if need be, and runs it."""

    def program(self) -> ProgramModule:
        """Returns the verified program module, with one function per mesh.

        Raises:
            PassError: an operation is outside of tasks, or a task takes a value of another mesh.
        """
        if self._program is None:
            mesh = self._lowered.mpmd_mesh
            module = own_copy(self._lowered.module)
            transport = transport_of(mesh)
            with module.context:
                module.operation.attributes[at.MESHES] = at.i64(mesh.mpmd_dim)
            passes = PlaceTasks(), InsertTransfers(transport), PlanBuffers(), VerifyProgram("", "", transport)
            self._program = ProgramModule(module, lines=run_unwritten(module, passes))
        return self._program

    def with_schedule(self, schedule: Any) -> NoReturn:
        """Raises ValueError: the order is that of the function."""
        raise ValueError("with_schedule: a step of explicit tasks has the order in which its function calls them")

    def __call__(self, *args: Any) -> Any:
        """Runs one step."""
        return self.compile()(*args)


class _ExplicitFunction(MpmdFunction):
    """A function of tasks and transfers as a step on several meshes."""

    def __init__(
        self, fun: Callable[..., Any], mesh: MpmdMesh, in_shardings: Any, donate_argnums: int | Sequence[int] | None
    ) -> None:
        options = {"in_shardings": in_shardings, "donate_argnums": donate_argnums}
        options |= dict.fromkeys(("static_argnums", "static_argnames", "donate_argnames"))
        super().__init__(self._placed(fun, mesh, in_shardings), mesh, None, options, None, {})

    @staticmethod
    def _placed(fun: Callable[..., Any], mesh: MpmdMesh, in_shardings: Any) -> Callable[..., Any]:
        """Returns `fun` with the mesh of each argument noted, and `mesh` for the tasks that it calls."""

        @functools.wraps(fun)
        def placed(*args: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            shardings = [each for row in per_leaf("in_shardings", in_shardings, args) for each in row]
            meshes = [_named(mesh, "in_shardings", each) for each in shardings]
            with setting(_inside, mesh):
                return fun(*jax.tree.unflatten(tree, place(leaves, ARGUMENT, meshes) if leaves else []))

        return placed

    def to_tune(self, args: Sequence[Any], seconds: float, memory_limit: Any) -> NoReturn:
        """Raises ValueError: there is nothing to choose."""
        raise ValueError("tune: a step of explicit tasks has the order in which its function calls them")

    def _lower(self, args: Sequence[Any], kwargs: Any) -> LoweredStep:
        if kwargs:
            raise TypeError(f"the step takes arguments by position only, found {', '.join(kwargs)}")
        with self._explained(args, kwargs):
            lowered = lower(self._fun, args, {}, mpmd_mesh=self._mesh, state=0, **self._options)
        return LoweredMpmdFun(lowered, None, None, {})

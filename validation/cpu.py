"""Runs one function of a module by XLA on the CPU, for numeric validation."""

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp import _compat
from jaxpp._xla import NO_FMA, quick_options
from jaxpp.hlo_passes.loop.propagate_shardings import as_input
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import first_line
from jaxpp.ir.functions import clone_alone, functions, nested, reachable
from jaxpp.ir.locations import source_of
from jaxpp.ir.tensors import DTYPES
from jaxpp.validation.bound import MOST_TRIPS, bound_loops
from jaxpp.validation.compare import HostArray
from jaxpp.validation.runnable import RunError, check_runnable

Array = Any  # a jax.Array that is replicated over the runner's devices


class Runner:
    """Compiles and runs functions of modules on `partitions` virtual CPU devices; arguments and results are replicated.

    Values inside of a function keep their shardings. Functions that differ only in `jaxpp.*` attributes are compiled
    once. JAX is imported when the first runner is made.

    Args:
        partitions: the number of devices.
        most_trips: how often a loop may run.
        devices: other devices to use instead, as many as `partitions`.
    """

    def __init__(self, partitions: int, most_trips: int = MOST_TRIPS, devices: Sequence[Any] = ()) -> None:
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.partitions = partitions
        self._most_trips = most_trips
        self._compiled: dict[str, Any] = {}
        self._devices = tuple(devices) or _compat.cpu_devices(partitions)
        mesh = Mesh(np.array(self._devices, dtype=object), ("validate",))
        self._sharding = NamedSharding(mesh, PartitionSpec())

    def put(self, numbers: HostArray) -> Array:
        """Returns `numbers` as an array that compiled functions take."""
        import jax

        with jax.enable_x64(True):
            return jax.device_put(numbers, self._sharding)

    def compile(self, module: ir.Module, function: str) -> Callable[[Sequence[Array]], list[Array]]:
        """Compiles `function` to a function of arrays, without donation and boundary shardings.

        Raises:
            RunError: XLA refuses the function. The compiled function raises it too, also where a loop does not end.
        """
        alone = extract(module, function, self.partitions)
        loops = [source_of(each) for each in bound_loops(alone, self._most_trips)]
        results = ir.FunctionType(ir.TypeAttr(functions(alone)["main"].attributes["function_type"]).value).results
        handlers = [self._handler(type_) for type_ in results]
        text = str(alone)
        if text not in self._compiled:
            self._compiled[text] = _by_xla(lambda: _compat.compile_program(text.encode(), self._devices, _options()))
        executable = self._compiled[text]

        def run(arguments: Sequence[Array]) -> list[Array]:
            found = _by_xla(lambda: list(executable.execute_sharded(list(arguments)).consume_with_handlers(handlers)))
            if loops and (number := int(found.pop())):
                place = loops[number - 1]
                raise RunError(
                    f"the loop {f'at {place} ' if place else ''}did not end within {self._most_trips} trips: look at "
                    "what it waits for, or allow more with --validate-trips"
                )
            return found

        return run

    def _handler(self, type_: ir.Type) -> Any:
        shape, dtype = shape_and_dtype(type_)
        return _compat.result_handler(_compat.abstract_value(shape, dtype, self._sharding), self._sharding)


def _options() -> dict[str, int]:
    """Returns XLA's options. With excess precision a bfloat16 would keep more bits where XLA fuses."""
    level = int(NO_FMA not in os.environ.get("XLA_FLAGS", "").split())
    return quick_options() | {"xla_allow_excess_precision": False, "xla_backend_optimization_level": level}


def _by_xla(run: Callable[[], Any]) -> Any:
    import jax

    try:
        return run()
    except jax.errors.JaxRuntimeError as error:
        raise RunError(first_line(error)) from None


def partitions_of(module: ir.Module) -> int:
    """Returns the number of devices that the module is for."""
    return at.integer(module.operation, "mhlo.num_partitions") or 1


def shape_and_dtype(type_: ir.Type) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Returns the shape and dtype of a tensor type of static shape. Raises RunError for any other type."""
    if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape and str(type_.element_type) in DTYPES:
        return tuple(type_.shape), DTYPES[str(type_.element_type)]
    raise RunError(f"a value of type {type_} can't be made or compared")


def extract(module: ir.Module, function: str, partitions: int) -> ir.Module:
    """Copies `function`, as `@main`, and the functions that it calls into a new module for XLA.

    Raises RunError as `check_runnable`.
    """
    alone = ir.Module.create(module.operation.location)
    for name in module.operation.attributes:
        alone.operation.attributes[name] = module.operation.attributes[name]
    alone.operation.attributes["sym_name"] = ir.StringAttr.get("validate")
    known = functions(module)
    check_runnable(module, {name: known[name] for name in reachable(function, known)})
    main = clone_alone(module, function, alone)
    _replicate(main, _mesh_name(alone, partitions) if partitions > 1 else None)
    for op in [alone.operation, *nested(alone.operation)]:
        _strip(op)
        as_input(op)
    return alone


def _mesh_name(module: ir.Module, partitions: int) -> str | None:
    """Returns the name of the mesh over all partitions; None without such a mesh."""
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(op.operation.attributes["mesh"]).axes)
            if prod(axis.size for axis in axes) == partitions:
                return ir.StringAttr(op.operation.attributes["sym_name"]).value
    return None


def _replicate(main: ir.Operation, mesh: str | None) -> None:
    """Replicates arguments and results over `mesh` (None: no shardings), and remove donation."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    tables = (at.argument_attributes(main), at.result_attributes(main))
    for table, types in zip(tables, (type_.inputs, type_.results), strict=True):
        for entry, value_type in zip(table, types, strict=True):
            entry.clear()
            if mesh is not None and isinstance(value_type, ir.RankedTensorType):
                dimensions = ", ".join("{}" for _ in range(value_type.rank))
                entry[at.SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{mesh}, [{dimensions}]>")
    at.set_tables(main, *tables)


def _strip(op: ir.Operation) -> None:
    """Removes the `jaxpp.*` attributes, which do not change what the module computes."""
    for name in list(op.attributes):
        if at.is_ours(name):
            del op.attributes[name]
    if op.name == "func.func" and len(op.regions[0].blocks):
        tables = (at.argument_attributes(op), at.result_attributes(op))
        at.set_tables(op, *([_without_marks(entry) for entry in table] for table in tables))


def _without_marks(entry: dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    return {name: attribute for name, attribute in entry.items() if not at.is_ours(name)}

"""Finds why a module can't be run for validation: it never ends, waits for another program, or lacks a callee."""

from collections.abc import Iterable, Mapping

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.counted import never_ends
from jaxpp.ir.custom_calls import calls_python, custom_calls, unregistered
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import callee, calls_in, name_of, nested_by_name, recursive
from jaxpp.ir.locations import source_of

_WAITS = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send")


class RunError(PassError):
    """XLA can't compile or run the function. The message is XLA's first line, or names the obstacle."""


def check_runnable(module: ir.Module, called: Mapping[str, ir.Operation]) -> None:
    """Raises RunError for functions that XLA does not know how to run, or on which it would crash or wait forever.

    module: the module with the number of replicas.
    called: the functions, by their names.
    """
    replicas = at.integer(module.operation, "mhlo.num_replicas") or 1
    if replicas != 1:
        raise RunError(f"it is for {replicas} replicas, expected one: shard it over partitions")
    again = recursive({name: map(callee, calls_in(function)) for name, function in called.items()})
    if again is not None:
        raise RunError(f"@{again} calls itself")
    for name, function in called.items():
        if not function.regions[0].blocks:
            raise RunError(f"@{name} has no body in this module", location=function.location)
        ops = nested_by_name(function)
        _check_loops(ops["stablehlo.while"])
        waiting = next((op for name in _WAITS for op in ops[name]), None)
        if waiting is not None:
            raise RunError(
                f"a {waiting.name} in @{name_of(function)} waits for another program, which does not run here",
                location=waiting.location,
            )
        _check_custom_calls(function)


def _check_loops(loops: Iterable[ir.Operation]) -> None:
    for loop in loops:
        if never_ends(loop):
            place = source_of(loop.location)
            raise RunError(f"the loop {f'at {place} ' if place else ''}never ends: it does not come to its limit")


def _check_custom_calls(function: ir.Operation) -> None:
    for target, op in custom_calls(function):
        if calls_python(target):
            raise RunError(
                f"custom call @{target}: a callback into Python, which only the process that lowered the module has",
                location=op.location,
                hint="lower the step without callbacks (jax.debug.print, jax.pure_callback) to validate it",
            )
    unknown = unregistered(function, "cpu")
    if unknown is not None:
        raise RunError(
            f"custom call @{unknown[0]}, for which nothing is registered on CPUs: it can't be run here",
            location=unknown[1].location,
        )

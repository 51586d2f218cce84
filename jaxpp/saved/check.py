"""Checks the description of a saved step against its program, so that a wrong file fails when it is loaded."""

from collections.abc import Sequence
from typing import Any

from jaxpp._keys import bits_of
from jaxpp.ir.program import Argument, Program, Result
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime.execution.compiling import callers
from jaxpp.runtime.execution.options import check_options, from_json, variants
from jaxpp.saved.saved_step import SavedStep


def check_saved(saved: SavedStep, lowered: Lowered, program: Program) -> None:
    """Checks that the description, the program and the machine code of a saved step fit together.

    Raises:
        ValueError: they do not; the message names the mismatch.
    """
    if program.meshes > lowered.mpmd_mesh.mpmd_dim:
        raise ValueError(f"a program for {program.meshes} meshes, for which there are {lowered.mpmd_mesh.mpmd_dim}")
    nodes = [child.node_data() for child in lowered.in_tree.children()]
    if [node and node[0] for node in nodes] != [tuple, dict]:
        raise ValueError("its arguments are no tuple and a dict of keywords")
    _check_counts("arguments", lowered.in_tree, lowered.in_avals, lowered.in_names, lowered.donated)
    _check_counts("results", lowered.out_tree, lowered.out_avals, lowered.out_names, program.results)
    if any(number not in range(len(lowered.in_avals)) for number in program.arguments):
        raise ValueError(f"its program has arguments {sorted(program.arguments)} of {len(lowered.in_avals)}")
    for number, argument in program.arguments.items():
        _check_type(lowered.in_names[number], lowered.in_avals[number], argument)
        if argument.registers and lowered.donated[number] is not argument.donated:
            raise ValueError(f"{lowered.in_names[number]} is donated in its description or its program alone")
    for name, aval, result in zip(lowered.out_names, lowered.out_avals, program.results, strict=True):
        _check_type(name, aval, result)
    _check_feeds(lowered)
    _check_code(saved, lowered, program)


def _check_counts(what: str, tree: Any, avals: Sequence[Any], names: Sequence[Any], others: Sequence[Any]) -> None:
    counts = [tree.num_leaves, len(avals), len(names), len(others)]
    if len(set(counts)) > 1:
        raise ValueError(f"{' or '.join(map(str, dict.fromkeys(counts)))} {what}")


def _check_type(name: str, aval: Any, value: Argument | Result) -> None:
    """Checks the shape and dtype of an argument or a result; in a program, a random key is its bits."""
    if not value.registers:  # no mesh has it
        return
    bits = bits_of(aval)
    shape = value.spec.shape
    if value.stacked:
        shape = (shape[0] * len(value.registers), *shape[1:])
    if (tuple(bits.shape), bits.dtype) != (shape, value.spec.dtype):
        raise ValueError(f"{name} is {aval.str_short()}, in its program {value.spec.dtype.name}{list(shape)}")


def _check_feeds(lowered: Lowered) -> None:
    for result, argument in lowered.feeds.items():
        if result not in range(len(lowered.out_avals)) or argument not in range(len(lowered.in_avals)):
            raise ValueError(f"result {result} is said to be argument {argument} of the next step")


def _check_code(saved: SavedStep, lowered: Lowered, program: Program) -> None:
    """Checks that the step has machine code for exactly the functions that this process runs."""
    options = from_json(saved.description["compiler_options"])
    try:
        check_options(options, lowered.mpmd_mesh.mpmd_dim)
    except TypeError as error:
        raise ValueError(str(error)) from None
    here = [number for number, mesh in enumerate(lowered.mpmd_mesh.unstack[: program.meshes]) if mesh.local_devices]
    called = {
        each for function, meshes in callers(program, here).items() for each in variants(function, meshes, options)
    }
    if wrong := sorted(called ^ saved.code.keys()):
        raise ValueError(f"machine code {'is missing' if wrong[0] in called else 'of nobody'}: {wrong[0]}")

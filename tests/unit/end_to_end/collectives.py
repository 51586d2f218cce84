"""How many collectives the compiled programs of a step run."""

import re
from collections import Counter
from typing import Any

import jaxpp.api as jaxpp
from jaxpp.ir.program import Call
from jaxpp.runtime import load
from jaxpp.runtime.execution.compiling import compile_program

_COLLECTIVE = re.compile(r"= (\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")


def collectives(lowered: Any, mesh: jaxpp.MpmdMesh) -> Counter[tuple[str, str]]:
    """For each (kind of task, collective): how many of them one call of a step, for `mesh`, runs on all its meshes.

    XLA may combine collectives of one program: each array that one of them moves counts.
    """
    program = load(lowered.program().module)
    executables, _ = compile_program(program, dict(enumerate(mesh.unstack[: program.meshes])))
    found: dict[str, Counter[str]] = {}
    total: Counter[tuple[str, str]] = Counter()
    for number, sequence in enumerate(program.sequences):
        for each in sequence:
            if isinstance(each, Call):
                if each.function not in found:
                    found[each.function] = count(executables[each.function, number].hlo_modules()[0].to_string())
                for name, times in found[each.function].items():
                    total[each.kind, name] += times
    return total


def count(hlo: str) -> Counter[str]:
    """The arrays that the collectives of a module move."""
    found: Counter[str] = Counter()
    for line in hlo.splitlines():
        match = _COLLECTIVE.search(line)
        if match:
            found[match[2]] += max(1, match[1].count("["))
    return found

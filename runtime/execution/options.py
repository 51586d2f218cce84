"""XLA's options for the programs of a step: common options, and options for the programs of one mesh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

Options = Mapping[Any, Any]
"""Option names to values. An integer key is a mesh; its value is a mapping of options that override the common ones."""

_RANGES: Final = {
    "xla_cpu_parallel_codegen_split_count": (1, 1 << 16),
    "xla_reduce_window_rewrite_base_length": (0, math.inf),
}
"""The least and the greatest value of numbers that XLA (0.10.2) does not check. With other values its CPU compiler
aborts the process, or does not terminate. All its other numbers for CPUs were tried with -5, -1, 0 and 2^31 - 1.
"""

_CRASHES: Final = {
    "xla_disable_all_hlo_passes": False,
    "xla_disable_hlo_passes": "",
    "xla_enable_hlo_passes_only": "",
    "xla_unsupported_crash_on_hlo_pass_noop_change": False,
}
"""Options with which XLA (0.10.2) ends the process unless they have this value, their default. They disable passes
that every compilation needs, or exist to crash. `xla_disable_hlo_passes` crashes with three of 93 passes, and with
pairs of others, when the program is compiled or run. All other flags for CPUs were tried."""


def options_of(options: Options, mesh: int) -> dict[str, Any]:
    """Returns the options of the programs of one mesh."""
    common = {name: value for name, value in options.items() if isinstance(name, str)}
    return common | dict(options.get(mesh, {}))


def named(options: Options) -> dict[str, str]:
    """Returns the options under the names that errors use, with their values as text."""
    found = {f"compiler_options[{name}]": value for name, value in options.items() if isinstance(name, str)}
    for mesh in (key for key in options if isinstance(key, int)):
        found |= {f"compiler_options[{mesh}][{name}]": value for name, value in options[mesh].items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def variants(function: str, meshes: Sequence[int], options: Options) -> dict[str, list[int]]:
    """Groups the meshes that call a function by their options. The function is compiled once for each group.

    The key of the first group is the function's name. The keys of the others also name their first mesh.
    """
    found: list[list[int]] = []
    for mesh in meshes:
        alike = next((each for each in found if options_of(options, each[0]) == options_of(options, mesh)), None)
        if alike is None:
            found.append([mesh])
        else:
            alike.append(mesh)
    return {f"{function} on mesh {each[0]}" if number else function: each for number, each in enumerate(found)}


def from_json(options: Mapping[str, Any]) -> Options:
    """Converts options whose mesh indices JSON has turned into strings."""
    return {int(name) if name.isdecimal() else name: value for name, value in options.items()}


def check_options(options: Any, meshes: int) -> None:
    """Raises TypeError or ValueError if `options` are not valid options of a step on so many meshes."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"compiler_options: expected names of XLA's options and their values, found {options!r}")
    for name, value in (options or {}).items():
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise TypeError(
                f"compiler_options: expected the name of an option, or the number of a mesh as an int, found {name!r}"
            )
        if isinstance(name, str):
            if isinstance(value, Mapping):
                raise TypeError(f"compiler_options: options of one mesh go by its number as an int, found {name!r}")
            _check_value("", name, value)
            continue
        if not 0 <= name < meshes:
            raise ValueError(f"compiler_options: there is no mesh {name}, the meshes are 0 to {meshes - 1}")
        if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
            raise TypeError(f"compiler_options of mesh {name}: expected names of options and values, found {value!r}")
        for own, each in value.items():
            _check_value(f" of mesh {name}", own, each)


def _check_value(where: str, name: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str):
        expected = "expected a bool, int, float or str of Python"
        raise TypeError(f"compiler_options{where}: {name} is {value!r}, {expected}; leave it out for XLA's default")
    if name in _CRASHES and value not in (_CRASHES[name], "false", ""):
        raise ValueError(f"compiler_options{where}: XLA ends the process with {name}={value!r}: leave it out")
    least, most = _RANGES.get(name, (-math.inf, math.inf))
    if (number := _number(value)) is not None and not least <= number <= most:
        expected = f"{least} to {most:,}" if most < math.inf else f"at least {least}"
        raise ValueError(f"compiler_options{where}: {name} is {value!r}, expected {expected}: XLA does not check it")


def _number(value: bool | float | str) -> int | None:
    """Returns the whole number that XLA reads; None for a value that XLA refuses."""
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None

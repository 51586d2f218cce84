"""Plug-ins: the passes, schedules and transports that other packages name as entry points.

A plug-in is found when somebody asks for a name that jaxpp lacks, or for a list. Only its use imports its module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

TRANSPORTS: Final = "jaxpp.transports"
"""The group of entry points that are classes of transports with `rules`."""


class PlugInError(ValueError):
    """A plug-in can't be imported, has a name that is taken, or is not what its user expects."""


@dataclass(frozen=True)
class PlugIn:
    """A plug-in, whose module may not be imported yet.

    Attributes:
        name: the name of the pass, schedule or transport.
        reference: where it is: `package.module:Class`.
        package: the name of the package that has it; "" for a plug-in of `--load-pass`.
        taken_by: the owner of the name, if that is another package.
    """

    name: str
    reference: str
    package: str = ""
    taken_by: str = ""

    def load(self) -> object:
        """Imports and returns the plug-in. Raises PlugInError."""
        from importlib.metadata import EntryPoint

        if self.taken_by:
            raise self.taken(self.taken_by)
        try:
            return EntryPoint(self.name, self.reference, "").load()
        except Exception as error:  # of any kind: the module runs as it is imported
            message = " ".join(str(error).split())
            raise self.error(f" can't be imported: {type(error).__name__}: {message}") from error

    def taken(self, owner: str) -> PlugInError:
        """Returns the error for a name that has another owner."""
        return self.error(f": the name is taken by {owner}")

    def error(self, problem: str) -> PlugInError:
        """Returns an error that begins with the plug-in and its package."""
        return PlugInError(f"plug-in '{self.name}'{f' of package {self.package}' * bool(self.package)}{problem}")

    def expected(self, expected: str, found: object) -> PlugInError:
        """Returns the error for a plug-in that is something else."""
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        return self.error(f": expected {expected}, found {what}")


@cache
def _installed(group: str) -> Mapping[str, PlugIn]:
    """Returns the plug-ins of a group of entry points. It reads the metadata of all packages, and imports none."""
    from importlib.metadata import entry_points

    found: dict[str, PlugIn] = {}
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist else ""
        first = found.setdefault(entry.name, PlugIn(entry.name, entry.value, package))
        if first.package != package:
            found[entry.name] = replace(first, taken_by=f"package {package}")
    return found


def plug_ins(group: str, own: Collection[str]) -> Mapping[str, PlugIn]:
    """Returns the plug-ins of a group by name, without importing them. They can't be used under jaxpp's `own` names."""
    return {name: replace(each, taken_by="jaxpp") if name in own else each for name, each in _installed(group).items()}

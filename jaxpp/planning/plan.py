"""`Plan`: the predicted time and memory of a step on devices that are not here, to show, save and load."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxpp._system import write_file
from jaxpp.planning.numbers import HopPlan, MeshPlan, Numbers, ProgramPlan
from jaxpp.planning.show import as_page, as_text
from jaxpp.targets.chips import CHIPS
from jaxpp.targets.target import PlanError

_VERSION = 2
"""The version of the format of saved plans; increase it when the format changes."""


class Plan(Numbers):
    """The predicted time and memory of a step on a target. `print(plan)` shows tables; `Numbers` has the attributes."""

    def __str__(self) -> str:
        """Returns tables in plain text: the step as a whole, meshes, programs and messages."""
        return as_text(self)

    def page(self, path: str | Path) -> None:
        """Writes the tables as an HTML page that needs no network.

        Raises:
            OSError: the file can't be written.
        """
        write_file(str(path), as_page(self))

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON for `Plan.load`, completely or not at all.

        Raises:
            OSError: the file can't be written.
        """
        text = json.dumps({"jaxpp plan": _VERSION} | dataclasses.asdict(self), indent=1, allow_nan=False)
        write_file(str(path), f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Reads a plan that `save` wrote.

        Raises:
            PlanError: the file holds no plan, or a plan of another version.
            OSError: the file can't be read.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("jaxpp plan") != _VERSION:
                raise ValueError("of another version of jaxpp")
            parts = {"meshes": MeshPlan, "programs": ProgramPlan, "hops": HopPlan}
            read: dict[str, Any] = {
                name: tuple(_read(kind, each) for each in found.pop(name)) for name, kind in parts.items()
            }
            made = cls(**found, **read)
            if made.chip not in CHIPS:
                raise ValueError(f"no chip {made.chip!r} is known; there are {', '.join(CHIPS)}")
            made.costs()
            return made
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PlanError(f"{path}: no plan: {error}") from None


def _read(kind: Any, values: dict[str, Any]) -> Any:
    """Returns an object of class `kind` from its JSON, in which tuples are lists."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

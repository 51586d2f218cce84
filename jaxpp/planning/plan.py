"""`Plan`: what a step takes on devices that are not here, saved, loaded and shown."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxpp._system import write_file
from jaxpp.planning.chips import CHIPS
from jaxpp.planning.numbers import HopPlan, MeshPlan, Numbers, ProgramPlan
from jaxpp.planning.show import as_page, as_text
from jaxpp.planning.target import PlanError


class Plan(Numbers):
    """What a step takes on a target: `print(plan)` shows it as tables, `Numbers` says what they are."""

    def __str__(self) -> str:
        """Tables in plain text: meshes, programs, hops, and the step as a whole."""
        return as_text(self)

    def page(self, path: str | Path) -> None:
        """Write the tables as a page: HTML that needs no network.

        Raises:
            OSError: it can't be written.
        """
        write_file(str(path), as_page(self).encode())

    def save(self, path: str | Path) -> None:
        """Write what `Plan.load` reads: JSON, whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        text = json.dumps({"jaxpp plan": 1} | dataclasses.asdict(self), indent=1, allow_nan=False)
        write_file(str(path), f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan that was saved.

        Raises:
            PlanError: the file holds no plan, or one of another version.
            OSError: it can't be read.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("jaxpp plan") != 1:
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
    """An object of a class from JSON, in which tuples are lists."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

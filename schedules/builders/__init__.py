"""Ways to write a schedule: the language of orders, repeated blocks, priorities, several optimizer steps."""

from __future__ import annotations

from jaxpp.schedules.builders.blocks import block
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.builders.steps import in_steps, repeat

__all__ = ["block", "by_priority", "in_steps", "repeat"]

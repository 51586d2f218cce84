"""How much of the bubbles of a traced step side work has filled."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxpp.runtime.measuring.trace import Event


@dataclass(frozen=True, slots=True)
class BubbleUse:
    """The bubbles of a traced step, over all meshes.

    Attributes:
        used: seconds of side work.
        idle: seconds in which a mesh still has nothing to do, between the first task and the last of all.
    """

    used: float
    idle: float

    @property
    def share(self) -> float:
        """The share of the bubbles that side work has filled."""
        return self.used / (self.used + self.idle) if self.used else 0.0


def bubble_use(events: Sequence[Event], kinds: Collection[str]) -> BubbleUse:
    """What the tasks of these kinds, functions of the user's, made of the bubbles of a traced step.

    Args:
        events: of one step, from `CompiledStep.trace`.
        kinds: those of the side work.

    Raises:
        ValueError: there is no task among the events.
    """
    tasks = [event for event in events if event.target is None]
    if not tasks:
        raise ValueError("bubble_use: no task is among the events; give those of CompiledStep.trace")
    span = max(event.end for event in tasks) - min(event.start for event in tasks)
    meshes = {event.mesh for event in tasks}
    used = sum(event.end - event.start for event in tasks if event.kind in kinds)
    busy = sum(event.end - event.start for event in tasks)
    return BubbleUse(used, max(span * len(meshes) - busy, 0.0))

"""The share of a traced step's bubbles that side work has filled."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxpp.runtime.measuring.events import Event


@dataclass(frozen=True, slots=True)
class BubbleUse:
    """The bubbles of a traced step, over all meshes.

    Attributes:
        used: seconds of side work.
        idle: seconds in which a mesh runs nothing, between the first start and the last end of a task on any mesh.
    """

    used: float
    idle: float

    @property
    def share(self) -> float:
        """The share of the bubbles that side work has filled."""
        return self.used / (self.used + self.idle) if self.used else 0.0


def bubble_use(events: Sequence[Event], kinds: Collection[str]) -> BubbleUse:
    """Returns the time in the bubbles of a traced step that tasks of the given kinds used, and the idle rest.

    Args:
        events: the events of one step, from `CompiledStep.trace`.
        kinds: the kinds of the user's functions that count as side work.

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

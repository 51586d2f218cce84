"""The numbers of a rehearsed job as plain data."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property

from jaxpp.planning.conditions import DAY, Conditions
from jaxpp.planning.failures import Saves
from jaxpp.planning.numbers import Numbers


@dataclasses.dataclass(frozen=True)
class LostTime:
    """The share of a job's time that failures and saves take.

    Attributes:
        saves: the saves of the state, and the restarts.
        expected: the share in closed form.
        drawn: the share in each drawn job; empty if there are no failures, or if the job does not advance.
    """

    saves: Saves
    expected: float
    drawn: Sequence[float]


@dataclasses.dataclass(frozen=True)
class RehearsedJob:
    """A rehearsed job. Times are in seconds.

    Attributes:
        plan: the plan of its step.
        conditions: the conditions of the job.
        first: the parts of the time to the first results.
        parts: the parts of a step without stragglers, on average over the meshes. "links" are collectives and messages
            that no computation hides; "bubble" is the rest of the idle time.
        steps: the times of the drawn steps.
        losses: the losses by failures, without and with healing. Without failures there is one entry.
    """

    plan: Numbers
    conditions: Conditions
    first: Mapping[str, float]
    parts: Mapping[str, float]
    steps: Sequence[float]
    losses: Mapping[str, LostTime]

    @cached_property
    def step(self) -> float:
        """The mean time of a step."""
        return statistics.fmean(self.steps)

    @cached_property
    def overlapped_step(self) -> float:
        """The time of a step in which the longest of products, memory accesses and collectives hides the others.

        Each mesh has its planned speed. With `jitter`, a drawn step may be faster.
        """
        return with_dispatch(self.plan.hidden_seconds, self.plan, self.conditions)

    @property
    def bound_by(self) -> str:
        """The largest part of a step."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def chips(self) -> float:
        """The number of chips that run the step."""
        return self.plan.devices / self.plan.facts.devices

    @property
    def loss(self) -> float:
        """The least expected loss."""
        return min(each.expected for each in self.losses.values())

    @property
    def cost_per_day(self) -> float:
        """The price of all chips for a day."""
        return 24 * self.conditions.price * self.chips

    def tokens_per_day(self, loss: float) -> float:
        """Returns the tokens of a day of which failures take the share `loss`."""
        return self.conditions.tokens * DAY / self.step * (1 - loss)


def with_dispatch(seconds: float, plan: Numbers, conditions: Conditions) -> float:
    """Returns the time of a step whose devices take `seconds`: the hosts may take longer to issue its calls."""
    return max(seconds, conditions.dispatch * max(mesh.calls for mesh in plan.meshes))

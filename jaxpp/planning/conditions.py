"""`Conditions`: what a rehearsal assumes of a job, such as prices and rates of failures."""

import dataclasses
import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from jaxpp.targets.target import PlanError

HOUR, DAY = 3600.0, 86400.0
"""Their seconds."""

DISPATCH = 150e-6
"""The seconds in which a host issues one call. In two processes on CPUs 143 us were measured (benchmarks/README.md)."""


_TINY, _LARGE = 1e-9, 1e15
"""The least number where 0 makes no sense, and the largest one. Beyond it, times and costs would overflow."""


def _number(default: float | None, expected: str, *, least: float = 0.0, most: float = _LARGE) -> Any:
    """Returns a field with a default, the numbers that it may have in words, and their bounds."""
    return dataclasses.field(default=default, metadata={"expected": expected, "least": least, "most": most})


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a rehearsed job. The defaults of times are assumed, those of rates are 0.

    Attributes:
        tokens: the tokens of a step; 0 if they are not known.
        price: the price of a chip for an hour, in any currency; 0 if it is not known.
        mtbf: the mean time between failures of one chip, with its share of the host and the network, in hours.
        restart: the seconds from a failure until all processes run again, if the whole job is started again.
        heal: the seconds from a failure until all processes run again in a training that heals. The default is the
            heartbeat timeout, after which a vanished host is noticed.
        checkpoint: the seconds for which a checkpoint stops the training; by default, the time in which the arguments
            of the step reach the memory of the hosts.
        interval: the seconds from one checkpoint to the next; by default, the optimum of Daly.
        stragglers: the probability that a chip is slow in a step.
        slowdown: the factor by which a slow chip is slower.
        jitter: the standard deviation of the time of a mesh from step to step, as a share of the time.
        dispatch: the seconds for which the host of a mesh issues one call.
        days: the length of each drawn job, in days; at least one step.
        seed: the seed of the draws.

    Raises:
        PlanError: a number is wrong.
    """

    tokens: float = _number(0.0, "tokens of a step, at least 0")
    price: float = _number(0.0, "the price of a chip for an hour, at least 0")
    mtbf: float = _number(math.inf, "hours, more than 0", least=_TINY)
    restart: float = _number(600.0, "seconds, at least 0")
    heal: float = _number(60.0, "seconds, at least 0")
    checkpoint: float | None = _number(None, "seconds, at least 0")
    interval: float | None = _number(None, "seconds, more than 0", least=_TINY)
    stragglers: float = _number(0.0, "a probability from 0 to 1", most=1.0)
    slowdown: float = _number(1.5, "a factor, at least 1", least=1.0)
    jitter: float = _number(0.0, "a share from 0 to 1", most=1.0)
    dispatch: float = _number(DISPATCH, "seconds, at least 0")
    days: float = _number(30.0, "days, more than 0", least=_TINY)
    seed: int = _number(0, "a whole number, at least 0", most=math.inf)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value, kinds = getattr(self, each.name), int if each.name == "seed" else int | float
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if (value is None or is_number) and value == each.default:  # which may be None, or infinite
                continue
            if not is_number or not each.metadata["least"] <= value <= each.metadata["most"]:
                raise _wrong(each, value)

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Conditions":
        """Reads conditions such as `tokens=4e6`.

        Raises:
            PlanError: a word is no condition, or its number is wrong.
        """
        fields, found = {each.name: each for each in dataclasses.fields(cls)}, dict[str, Any]()
        for word in words:
            name, _, text = word.partition("=")
            if name not in fields:
                close = get_close_matches(name, fields, 1)
                meant = f" (did you mean {close[0]}?)" if close else ""
                raise PlanError(f"rehearse: no condition {name!r} is known{meant}; there are {', '.join(fields)}")
            if name in found:
                raise PlanError(f"rehearse: {name} is given twice, expected one number")
            try:
                found[name] = int(text) if name == "seed" else float(text)
            except ValueError:
                raise _wrong(fields[name], text) from None
        return cls(**found)


def _wrong(condition: "dataclasses.Field[Any]", value: object) -> PlanError:
    expected, most = condition.metadata["expected"], condition.metadata["most"]
    if most == _LARGE and isinstance(value, int | float) and value > most:
        expected += f", and at most {most:g}"
    return PlanError(f"rehearse: {condition.name} is {value!r}, expected {expected}")

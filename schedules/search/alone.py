"""A lower bound from one mesh: its best order if all other meshes ran every task as soon as it is ready.

Of the other meshes only least times remain, from a task of the mesh to the next one of the same microbatch. This
problem is small enough for an exhaustive search. A *state* of the mesh is the number of tasks of each type that have
run. A path to a state is dropped if another path is at least as good: after that one nothing is ready later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import le
from typing import Final, NamedTuple

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.problem import Problem
from jaxpp.schedules.search.effort import Effort

_MOST: Final = 24
"""The most paths to one state that are kept apart. The rest are merged into one, in which everything is ready as early
as in any of them."""

_UNITS: Final = 100
"""The units of effort to run a task."""

_State = tuple[int, ...]
"""The number of tasks of each type that have run."""


class _Way(NamedTuple):
    """A path to a state.

    Attributes:
        value: a lower bound on the objective from the tasks that have run.
        clock: when the mesh is free.
        ready: for each type, when its tasks can run, at `clock` or later. Only tasks whose predecessor on the mesh has
            run are listed.
    """

    value: float
    clock: float
    ready: tuple[tuple[float, ...], ...]

    def flat(self) -> list[float]:
        """Returns all numbers of the path, which should be small."""
        return [self.value, self.clock, *(time for times in self.ready for time in times)]


def alone(problem: Problem, mesh: int, effort: Effort, below: float) -> float:
    """Returns a lower bound on the objective from the tasks of one mesh.

    Args:
        problem: a problem. The other meshes run every task as soon as it is ready.
        mesh: the mesh that the bound is from.
        effort: the budget; a smaller budget gives a weaker bound.
        below: the value of a known schedule. The bound is at most this value.
    """
    types = _Types(problem, mesh)
    nothing = (0,) * len(types.times)
    layer = {nothing: [_Way(0.0, 0.0, ((),) * len(nothing))]}
    for _ in range(problem.microbatches * len(nothing)):
        if not effort.spend(_UNITS * len(nothing) * sum(map(len, layer.values()))):
            return min(types.promise(state, way) for state, ways in layer.items() for way in ways)
        longer: dict[_State, list[_Way]] = {}
        for state, ways in layer.items():
            for each in types.runnable(state):
                after = (*state[:each], state[each] + 1, *state[each + 1 :])
                longer.setdefault(after, []).extend(types.run(state, each, way) for way in ways)
        least = below * (1 - TOLERANCE)
        kept = {
            state: _best(way for way in ways if types.promise(state, way) < least) for state, ways in longer.items()
        }
        layer = {state: ways for state, ways in kept.items() if ways}
        if not layer:
            return below
    return min(way.value for ways in layer.values() for way in ways)


def _best(ways: Iterable[_Way]) -> list[_Way]:
    """Returns the paths that no other path dominates. If there are too many, it merges the last ones into one."""
    found: list[tuple[_Way, list[float]]] = []
    for way in sorted(set(ways)):
        flat = way.flat()
        if not any(all(map(le, other, flat)) for _, other in found):
            found.append((way, flat))
    best = [way for way, _ in found]
    if len(best) <= _MOST:
        return best
    values, clocks, ready = zip(*best[_MOST - 1 :], strict=True)
    earliest = tuple(tuple(map(min, zip(*times, strict=True))) for times in zip(*ready, strict=True))
    return [*best[: _MOST - 1], _Way(min(values), min(clocks), earliest)]


class _Types:
    """The types of one mesh in the order of the chain: forwards first, weight gradients last."""

    def __init__(self, problem: Problem, mesh: int) -> None:
        self.problem = problem
        chain = [each for each in problem.chain if problem.mesh_of[each] == mesh]
        weights = [each for each in problem.types_of[mesh] if each >= 2 * problem.stages]
        types = [*chain, *weights]
        self.times = [problem.times[each] for each in types]
        self.memory = [problem.memory[each] for each in types]
        self.room = problem.rooms[mesh]
        self.needs = [*range(-1, len(chain) - 1), *(chain.index(each - problem.stages) for each in weights)]
        self.users = [[user for user, need in enumerate(self.needs) if need == each] for each in range(len(types))]
        ends = [problem.heads[each] + problem.times[each] for each in types]
        self.lags = [problem.heads[each] - ends[need] for each, need in zip(types, self.needs, strict=True)]
        self.arrivals = self._arrivals(types[0])
        self.rests = [self._rests(each) for each in types]
        self.last = min(rests[-1] for rests in self.rests)

    def _arrivals(self, first: int) -> list[float]:
        """Returns when the microbatches reach the mesh, limited by the slowest earlier stage.

        For the objective "longest_stage" all arrivals are 0, because the mesh may begin late.
        """
        problem = self.problem
        if problem.objective == "longest_stage":
            return [0.0] * problem.microbatches
        slowest = max(problem.times[:first], default=0.0)
        return [problem.heads[first] + number * slowest for number in range(problem.microbatches)]

    def _rests(self, each: int) -> list[float]:
        """Returns for each microbatch the least time from the end of its task of this type to the end of all tasks."""
        problem = self.problem
        if problem.objective == "longest_stage":
            return [0.0] * problem.microbatches
        after = problem.chain[problem.chain.index(each) + 1 :] if each < 2 * problem.stages else []
        end = problem.heads[each] + problem.times[each]
        ways = [(problem.heads[user] - end, problem.times[user], float(problem.tails[user].max())) for user in after]
        tail = float(problem.tails[each].max())
        return [
            max([tail, *(way + number * time + rest for way, time, rest in ways)])
            for number in range(problem.microbatches, 0, -1)
        ]

    def runnable(self, state: _State) -> Iterator[int]:
        """Yields the types that may run next: their predecessor has run, and they fit the memory."""
        kept = sum(map(float.__mul__, self.memory, map(float, state)))
        for each, (count, need) in enumerate(zip(state, self.needs, strict=True)):
            most = state[need] if need >= 0 else self.problem.microbatches
            if count < most and kept + self.memory[each] <= self.room:
                yield each

    def run(self, state: _State, each: int, way: _Way) -> _Way:
        """Returns the path after one more task of a type."""
        ready = list(way.ready)
        begin = max(way.clock, ready[each][0] if ready[each] else self.arrivals[state[each]])
        clock = begin + self.times[each]
        ready[each] = ready[each][1:]
        for user in self.users[each]:
            ready[user] = (*ready[user], clock + self.lags[user])
        value = max(way.value, clock + self.rests[each][state[each]])
        # Inputs arrive in order: if the first does not wait for the mesh, no input does.
        late = [tuple([max(time, clock) for time in times]) if times and times[0] < clock else times for times in ready]
        return _Way(value, clock, tuple(late))

    def promise(self, state: _State, way: _Way) -> float:
        """Returns a lower bound on the objective: the mesh must still run all remaining tasks."""
        counts = [self.problem.microbatches - count for count in state]
        left = sum(map(float.__mul__, self.times, map(float, counts)))
        return max(way.value, way.clock + left + self.last) if left else way.value

"""What the layers of a step cost, and the cuts that are found for them."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Final, TypeAlias, cast

import numpy as np

from jaxpp import schedules
from jaxpp.hlo_passes.loop.stage_graph import Reads
from jaxpp.hlo_passes.program.verify_program import limits_of
from jaxpp.schedules import Costs, Partition, Placement, Schedule, ScheduleError
from jaxpp.schedules.search.cuts import Cuts, even_cuts

Peaks: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""For each mesh the most bytes that each of its devices needs at once: until the end of the loop, and in all."""

_ROUNDS: Final = 3
"""How often cuts are looked for where the program of what was found needs more memory than was reckoned."""


@dataclass(frozen=True)
class Layers:
    """What the layers of a step cost.

    Attributes:
        costs: with a stage for each layer, in milliseconds; the speed of each mesh is that of all its devices.
        resident: the bytes that each layer takes at all times on each device of each mesh: [layer][mesh].
        shares: of each mesh, how much of an activation each of its devices has: 1 if all of it, as where it is
            replicated.
        microbatches: how many there are.
        speeds: what is known of the speed of each mesh, as of `mesh_speeds`; the costs know it.
        reads: for each layer those whose results it reads.
        peaks: the most bytes that each device of each mesh needs at once in such cuts and order, by the program: until
            the end of the loop over microbatches, and in all.
    """

    costs: Costs
    resident: list[list[float]]
    shares: list[float]
    microbatches: int
    speeds: list[float]
    reads: Reads
    peaks: Callable[[Cuts, Schedule], Peaks]

    def cut(self, cuts: Sequence[int]) -> "Layers":
        """What so many neighbours together cost, each as one layer."""
        ends = list(accumulate(cuts))
        stages = [self.resident[end - size : end] for size, end in zip(cuts, ends, strict=True)]
        resident = [list(map(math.fsum, zip(*stage, strict=True))) for stage in stages]
        stage_of = [stage for stage, size in enumerate(cuts) for _ in range(size)]
        reads: list[set[int]] = [set() for _ in cuts]
        for stage, read in zip(stage_of, self.reads, strict=True):
            reads[stage].update(stage_of[layer] for layer in read if stage_of[layer] != stage)
        whole = tuple(tuple(sorted(each)) for each in reads)

        def peaks(of_stages: Cuts, schedule: Schedule) -> Peaks:
            sizes = iter(cuts)
            return self.peaks(tuple(sum(islice(sizes, size)) for size in of_stages), schedule)

        return replace(self, costs=self.costs.cut(cuts), resident=resident, reads=whole, peaks=peaks)

    @property
    def is_chain(self) -> bool:
        """Whether each layer comes after the one before it: then no two of them can run side by side."""
        return all(layer in read for layer, read in enumerate(self.reads[1:]))

    def partition(
        self,
        memory_limit: str,
        *,
        by_program: bool = True,
        split_backward: bool = True,
        seconds: float,
        seed: int = 0,
        **options: Any,
    ) -> Partition:
        """`schedules.partition` of them; the limit is in bytes per device, as the option of `verify-program`.

        Costs are of whole activations: a mesh has room for as many bytes of these as lie on a device, divided by its
        share. The cuts are those of a chain. Where the stages that they make are a graph, its order is taken if it is
        shorter. With `by_program` the program of what is found says what it needs: where that is above the limit, the
        search is repeated with so much less room. Else the layers alone say it, and no program is rewritten.

        Raises:
            ScheduleError: nothing fits the memory.
        """
        options |= {"split_backward": split_backward, "seconds": seconds, "seed": seed}
        if not memory_limit:
            return self._within([math.inf] * len(self.shares), **options)
        limits = limits_of(memory_limit, len(self.shares))
        if not by_program:
            return self._within(limits, **options)
        unreckoned, rounds = self._unreckoned, 0
        while True:
            found = self._within(list(map(operator.sub, limits, unreckoned)), **options)
            needed = self.peaks(found.cuts, found.schedule)[1]
            over = list(map(operator.sub, needed, limits))
            rounds += 1
            if max(over) <= 0:
                return found
            if rounds == _ROUNDS:
                mesh = over.index(max(over))
                needs, has = f"needs {needed[mesh]:,} bytes on mesh {mesh}", f"its limit is {limits[mesh]:,}"
                raise ScheduleError(f"partition: no cuts fit the memory: the best that was found {needs}, {has}")
            more = map(operator.sub, needed, self._reckoned(found.cuts, found.schedule))
            unreckoned = [new if by > 0 else old for new, old, by in zip(more, unreckoned, over, strict=True)]

    @cached_property
    def _unreckoned(self) -> list[float]:
        """For each mesh by how many bytes the loop of equal cuts in 1F1B needs more, by the program, than is reckoned.

        It may need less: a stack that is whole on every mesh takes no more for more layers.
        """
        meshes = len(self.shares)
        cuts, order = even_cuts(len(self.resident), meshes), schedules.one_f_one_b(meshes, self.microbatches)
        return list(map(operator.sub, self.peaks(cuts, order)[0], self._reckoned(cuts, order)))

    def _reckoned(self, cuts: Cuts, schedule: Schedule) -> list[float]:
        """The bytes that each device of each mesh needs in such cuts and order, by the layers."""
        stages = self.cut(cuts)
        kept = schedules.simulate(schedule, stages.costs).peak_bytes()
        there = stages._there(schedule.placement)
        return [own + peak * share for own, peak, share in zip(there, kept, self.shares, strict=True)]

    def _there(self, placement: Placement) -> list[float]:
        """The bytes that each device of each mesh has at all times, of these layers as stages."""
        found = [0.0] * len(self.shares)
        for resident, (mesh, *_) in zip(self.resident, placement.homes, strict=True):
            found[mesh] += resident[mesh]
        return found

    def _within(
        self, limits: Sequence[float], *, split_backward: bool, seconds: float, seed: int, **options: Any
    ) -> Partition:
        """What is found within so many bytes of each device of each mesh, as they are reckoned."""
        by_mesh = [max(1.0, limit) / share for limit, share in zip(limits, self.shares, strict=True)]
        parts = 1 if self.is_chain else 2
        same: dict[str, Any] = {"split_backward": split_backward, "seconds": seconds / parts, "seed": seed}
        found = schedules.partition(
            self.costs,
            len(self.shares),
            self.microbatches,
            memory_bytes=by_mesh,
            resident_bytes=[list(map(operator.truediv, layer, self.shares)) for layer in self.resident],
            **same,
            **options,
        )
        return found if self.is_chain else self._side_by_side(found, by_mesh, same)

    def _side_by_side(self, found: Partition, limits: Sequence[float], options: Mapping[str, Any]) -> Partition:
        """What was found for a chain, or the order of the graph of its stages where that takes less.

        limits: the bytes of each mesh. options: of the search.
        """
        found = replace(found, lower_bound=min(found.lower_bound, self._least()))
        stages, placement = self.cut(found.cuts), found.schedule.placement
        if stages.is_chain:
            return found
        there = map(operator.truediv, stages._there(placement), self.shares)
        left = list(map(operator.sub, limits, there))
        placement = replace(placement, after=stages.reads)
        try:
            order = schedules.search(
                len(left), self.microbatches, found.costs, placement=placement, memory_bytes=left, **options
            )
        except ScheduleError:  # no order that was tried fits the memory
            return found
        return replace(found, schedule=order, value=order.value) if order.value < found.value else found

    def _least(self) -> float:
        """What any order takes of any graph of these layers: their work, divided by the speed of all meshes."""
        kinds = ("forward", "input_grad", "weight_grad")
        times = [cast("Sequence[float]", getattr(self.costs, kind)) for kind in kinds]
        speed = float(np.broadcast_to(np.array(self.costs.speed), len(self.shares)).sum())
        return self.microbatches * math.fsum(map(math.fsum, times)) / speed

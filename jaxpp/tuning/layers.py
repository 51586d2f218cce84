"""The costs of the layers of a step, and the search for cuts."""

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
from jaxpp.schedules import Costs, Placement, Schedule, ScheduleError
from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.search import Partition
from jaxpp.schedules.search.cuts import Cuts, even_cuts

Peaks: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""For each mesh the peak bytes on each of its devices: until the end of the loop, and over the whole step."""

_ROUNDS: Final = 3
"""The most searches for cuts, if the program of the cuts needs more memory than estimated."""


@dataclass(frozen=True)
class Layers:
    """The costs of the layers of a step.

    Attributes:
        costs: the costs with one stage per layer, in milliseconds. Their speed of a mesh counts all its devices.
        resident: the bytes that each layer takes at all times on each device of each mesh: [layer][mesh].
        shares: for each mesh the share of an activation that is on each of its devices: 1 if it is replicated.
        microbatches: the number of microbatches.
        speeds: the speed of each mesh, as `mesh_speeds` returns it; `costs` includes it already.
        reads: for each layer the layers whose results it reads.
        peaks: rewrites the step with given cuts and schedule, and returns the peaks of its program.
    """

    costs: Costs
    resident: list[list[float]]
    shares: list[float]
    microbatches: int
    speeds: list[float]
    reads: Reads
    peaks: Callable[[Cuts, Schedule], Peaks]

    def cut(self, cuts: Sequence[int]) -> "Layers":
        """Returns the costs with neighbouring layers merged: entry i of `cuts` layers become layer i."""
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
        """Whether each layer reads its predecessor, so that no two layers can run side by side."""
        return all(layer in read for layer, read in enumerate(self.reads[1:]))

    def partition(
        self,
        memory_limit: str,
        *,
        by_program: bool = True,
        chunks: int | None = 1,
        placement: str | Placement = "any",
        **search: Any,
    ) -> Partition:
        """Finds cuts and a schedule with `schedules.partition`.

        The costs count whole activations. So the room of a mesh is the room of one device divided by the device's share
        of an activation. The cuts are found for a chain of layers. If the resulting stages are a graph, an order of
        the graph is searched too, and taken if it is shorter.

        Args:
            memory_limit: bytes per device, as the option of `verify-program`; "" for none.
            by_program: whether to check the result against the peaks of its program, and to repeat the search with less
                room if they exceed the limit. If False, no program is rewritten: the estimate from the layers decides.
            chunks: as for `schedules.partition`.
            placement: as for `schedules.partition`.
            search: `seconds`, and other arguments of both `schedules.partition` and `schedules.search`.

        Raises:
            ScheduleError: no cuts that were found fit the memory.
        """
        options = {"chunks": chunks, "placement": placement}
        if not memory_limit:
            return self._within([math.inf] * len(self.shares), options, search)
        limits = limits_of(memory_limit, len(self.shares))
        if not by_program:
            return self._within(limits, options, search)
        unreckoned, rounds = self._unreckoned, 0
        while True:
            found = self._within(list(map(operator.sub, limits, unreckoned)), options, search)
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
        """For each mesh the peak bytes of the loop minus the estimate, for equal cuts in 1F1B.

        The difference may be negative: a stack that is whole on every mesh takes the same bytes for any layers.
        """
        meshes = len(self.shares)
        cuts, order = even_cuts(len(self.resident), meshes), one_f_one_b(meshes, self.microbatches)
        return list(map(operator.sub, self.peaks(cuts, order)[0], self._reckoned(cuts, order)))

    def _reckoned(self, cuts: Cuts, schedule: Schedule) -> list[float]:
        """Returns an estimate of the peak bytes of each device of each mesh, from the layers."""
        stages = self.cut(cuts)
        kept = schedules.simulate(schedule, stages.costs).peak_bytes()
        there = stages._there(schedule.placement)
        return [own + peak * share for own, peak, share in zip(there, kept, self.shares, strict=True)]

    def _there(self, placement: Placement) -> list[float]:
        """Returns the resident bytes on each device of each mesh, where each layer is a stage."""
        found = [0.0] * len(self.shares)
        for resident, (mesh, *_) in zip(self.resident, placement.homes, strict=True):
            found[mesh] += resident[mesh]
        return found

    def _within(self, limits: Sequence[float], options: Mapping[str, Any], search: Mapping[str, Any]) -> Partition:
        """Returns the partition within estimated limits: the bytes per device of each mesh."""
        by_mesh = [max(1.0, limit) / share for limit, share in zip(limits, self.shares, strict=True)]
        if not self.is_chain:
            search = {**search, "seconds": search["seconds"] / 2}
        found = schedules.partition(
            self.costs,
            len(self.shares),
            self.microbatches,
            memory_bytes=by_mesh,
            resident_bytes=[list(map(operator.truediv, layer, self.shares)) for layer in self.resident],
            **options,
            **search,
        )
        return found if self.is_chain else self._side_by_side(found, by_mesh, search)

    def _side_by_side(self, found: Partition, limits: Sequence[float], options: Mapping[str, Any]) -> Partition:
        """Returns the partition of a chain, with an order of the graph of its stages if that is shorter.

        limits: the limit of each mesh in bytes of whole values; resident bytes count too.
        options: the options of `schedules.search`.
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
        """Returns a lower bound on the makespan of all orders: the work of all layers over the speed of all meshes."""
        kinds = ("forward", "input_grad", "weight_grad")
        times = [cast("Sequence[float]", getattr(self.costs, kind)) for kind in kinds]
        speed = float(np.broadcast_to(np.array(self.costs.speed), len(self.shares)).sum())
        return self.microbatches * math.fsum(map(math.fsum, times)) / speed

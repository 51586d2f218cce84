"""The times of tasks that `memory_limit` compares: estimated from their FLOPs, or taken from given costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from jaxpp.ir.flops import products_of
from jaxpp.ir.kinds import HALVES
from jaxpp.schedules import Costs, Schedule
from jaxpp.schedules.model.values import PerPair
from jaxpp.targets.chips import Chip

_COPIES, _SENDS = ("offload", "reload"), ("evict", "load")


@dataclass(frozen=True)
class Rates:
    """The time of a transferred byte, in FLOPs.

    Attributes:
        host_byte: the FLOPs that a device does while one byte goes to its host. The default assumes 400 TFLOP/s and
            40 GB/s.
        peer_byte: the FLOPs that a device does while one byte goes to a peer. The default assumes 400 GB/s.
        costs: the costs of tasks, copies and sends, used instead of FLOPs. Times that they lack follow from the rates
            above and the time of a FLOP in the forward.
        has_host: whether devices can keep values in the memory of a host.
    """

    host_byte: float = 1e4
    peer_byte: float = 1e3
    costs: Costs | None = None
    has_host: bool = True

    def on(self, chip: Chip, module: ir.Module) -> "Rates":
        """Returns the rates of a chip for the element type that has most of the FLOPs of products in a module."""
        products = products_of(module)
        element = max(products, key=products.__getitem__, default="f32")
        flops = chip.peak(element) * chip.efficiency.products
        peer = chip.inside.bandwidth * chip.efficiency.links
        return replace(self, host_byte=flops / chip.host.bandwidth, peer_byte=flops / peer)


@dataclass(frozen=True)
class TaskTimes:
    """The times of the tasks of a step.

    Attributes:
        flops: the FLOPs of the function of each (kind, stage).
        entering: the bytes that the forward of each stage reads from other tasks. They may be offloaded or evicted
            together with the residuals of the stage.
        rates: the times of transferred bytes.
    """

    flops: Mapping[tuple[str, int], int]
    entering: Mapping[int, int]
    rates: Rates

    def costs(self, plan: Schedule, kept: Sequence[tuple[int, int]]) -> Costs:
        """Returns the costs of a schedule, in FLOPs or in the unit of the given costs.

        Recomputes, copies and sends cost at least a billionth of the cheapest forward.

        Args:
            plan: the schedule.
            kept: for each stage the bytes that it keeps, and the FLOPs that it recomputes.
        """
        stages, given = range(plan.stages), self.rates.costs
        forward = [1.0] * plan.stages
        if given is not None:
            forward = [time / self._flops("forward", n) for n, time in enumerate(given.at_home("forward", plan))]
        least = 1e-9 * min(time * self._flops("forward", n) for n, time in enumerate(forward))
        sizes = [size + self.entering.get(stage, 0) for stage, (size, _) in enumerate(kept)]
        times = {"recompute": [flops * forward[stage] for stage, (_, flops) in enumerate(kept)]}
        times |= {kind: [self._copy(kind, plan, n, sizes[n], forward[n]) for n in stages] for kind in _COPIES}
        times |= {kind: [self._send(plan, n, sizes[n], forward[n]) for n in stages] for kind in _SENDS}
        kinds = {kind: [max(time, least) for time in each] for kind, each in times.items()}
        if given is not None:
            return replace(given, kinds={**given.kinds, **kinds})
        present = {task.kind for task in plan}
        return Costs(kinds={kind: [self._flops(kind, n) for n in stages] for kind in present} | kinds)

    def _flops(self, kind: str, stage: int) -> float:
        halves = HALVES if kind == "backward" else ()
        return max(float(sum(self.flops.get((each, stage), 0) for each in (kind, *halves))), 1.0)

    def _copy(self, kind: str, plan: Schedule, stage: int, size: int, flop: float) -> float:
        """Returns the time of an offload or reload of `size` bytes; `flop` is the time of a FLOP."""
        if (costs := self.rates.costs) is not None:
            bandwidth = costs.per_mesh("copy_bandwidth", plan)[plan.placement[stage]]
            moved = costs.bytes("activation_bytes", plan)[stage]
            if math.isfinite(bandwidth):
                return size / bandwidth
            if kind in costs.kinds and moved:
                return costs.at_home(kind, plan)[stage] * size / moved
        return self.rates.host_byte * size * flop

    def _send(self, plan: Schedule, stage: int, size: int, flop: float) -> float:
        """Returns the time of a transfer of `size` bytes to another mesh; `flop` is the time of a FLOP."""
        if (costs := self.rates.costs) is not None:
            hop, bandwidth = max(_numbers(costs.hop)), min(_numbers(costs.bandwidth))
            message = max(costs.bytes("message_bytes", plan), default=0.0)
            if math.isfinite(bandwidth):
                return hop + size / bandwidth
            if hop and message:  # `hop` is the measured time of a whole message
                return hop * size / message
        return self.rates.peer_byte * size * flop


def _numbers(pairs: PerPair) -> list[float]:
    return [pairs] if isinstance(pairs, float | int) else [number for row in pairs for number in row]

"""Steps with `schedule="auto"` whose costs and times are given, so that tests know what is chosen."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from jaxpp.schedules import Costs
from jaxpp.tuning.layered_step import LayeredStep
from jaxpp.tuning.layers import Layers
from jaxpp.tuning.tuner import Tuner
from jaxpp.tuning.ways import Ways

SECONDS = 0.6
_FOUND: dict[str, Any] = {}


def of_layers(times: Sequence[float], **options: Any) -> Costs:
    """Costs in which all three tasks of each layer take as long."""
    return Costs(forward=times, input_grad=times, weight_grad=times, unit="ms", **options)


@contextmanager
def given(layers: Sequence[float], times: Callable[[Tuner], float], steps: int = 1) -> Generator[None]:
    """Layers cost so much, and a step takes what `times` says of it; so many steps are run to be timed."""
    measured = LayeredStep.layers

    def costs(self: LayeredStep, *events: Any, **options: Any) -> Layers:
        found = measured(self, *events, **options)
        assert found.costs.stages == len(layers)
        return replace(found, costs=of_layers(layers), speeds=[1.0] * len(found.shares))

    def timed(self: Tuner) -> Generator[Any, None, float]:
        for _ in range(steps):
            yield self.current.run
        return times(self)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LayeredStep, "layers", costs))
        stack.enter_context(mock.patch.object(Tuner, "_timed", timed))
        stack.enter_context(quick())
        yield


@contextmanager
def quick() -> Generator[None]:
    """Searches are short, and find nothing with several stages per mesh; of equal ones only the first one is made."""
    search = Ways.search

    def short(self: Ways, layers: Layers) -> Any:
        limit = self.memory_limit or self.room
        asked = repr((layers if limit else replace(layers, resident=[]), limit, self.first.key))
        if asked not in _FOUND:
            _FOUND[asked] = search(replace(self, seconds=SECONDS), layers)
        found, bound = _FOUND[asked]
        return [each for each in found if each.schedule.stages == each.schedule.meshes], bound

    with mock.patch.object(Ways, "search", short):
        yield

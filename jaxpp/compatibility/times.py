"""`collect_task_times_ms`: how long the tasks of the steps run inside a `with` block take."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from jaxpp._system import setting
from jaxpp.runtime import Event
from jaxpp.schedules.engine.spans import Label

Times = dict[str, list[float]]

_times: ContextVar[Times | None] = ContextVar("jaxpp_task_times", default=None)


@contextmanager
def collect_task_times_ms(enabled: bool = True) -> Generator[Times | None]:
    """Measures every task of the steps that run in a `with` block, each task alone.

        with jaxpp.api.collect_task_times_ms() as times:
            step(state, batch)
        print(times["forward 0"])  # of stage 0: one number per microbatch and step

    Steps run slowly in the block, as each task waits for the one before it. `CompiledStep.trace` reports more: when
    each task runs, and how long copies take.

    Args:
        enabled: False: nothing is measured, and the block gets None.

    Yields:
        Milliseconds by task: `forward 0`, `backward 0`... by stage; `before on mesh 0`, `after on mesh 0`... for the
        operations outside of the loop. Of two nested blocks, only the inner one gets times.
    """
    times: Times | None = defaultdict(list) if enabled else None
    with setting(_times, times):
        yield times


def current_times() -> Times | None:
    """Returns the table to record times in, or None."""
    return _times.get()


def record(times: Times, events: Sequence[Event]) -> None:
    """Adds the times of the tasks of a step; a task of several calls takes the sum of their times."""
    tasks: defaultdict[tuple[str, int, tuple[Label, ...]], float] = defaultdict(float)
    for event in events:
        if event.target is not None:
            continue
        labels = tuple([each for each in event.labels if each.stage is not None])
        if labels:
            name = " + ".join(f"{each.kind} {each.stage}" for each in labels)
            tasks[name, event.mesh, labels] += 1e3 * event.seconds
        else:
            times.setdefault(f"{event.kind} on mesh {event.mesh}", []).append(1e3 * event.seconds)
    for (name, *_), milliseconds in tasks.items():
        times.setdefault(name, []).append(milliseconds)

"""`collect_task_times_ms`: how long the tasks of the steps run inside a `with` block take."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from jaxpp.runtime import Event
from jaxpp.schedules.formats.chrome_trace import Label

Times = dict[str, list[float]]

_times: ContextVar[Times | None] = ContextVar("jaxpp_task_times", default=None)


@contextmanager
def collect_task_times_ms(enabled: bool = True) -> Generator[Times | None]:
    """Measure every task of the steps that are run in a `with` block, each task alone.

        with jaxpp.collect_task_times_ms() as times:
            step(state, batch)
        print(times["forward 0"])  # of stage 0: one number per microbatch and step

    Steps run slowly meanwhile: one task at a time, each waited for. `CompiledStep.trace` tells more: when each task
    runs, and what copies cost.

    Args:
        enabled: False: measures nothing, and gives None.

    Yields:
        Milliseconds by task: `forward 0`, `backward 0`... by stage; `before on mesh 0`, `after on mesh 0`... what runs
        outside the loop. Inside another such block, the inner one gets them.
    """
    times: Times | None = defaultdict(list) if enabled else None
    token = _times.set(times)
    try:
        yield times
    finally:
        _times.reset(token)


def current_times() -> Times | None:
    """Where to record, if anywhere."""
    return _times.get()


def record(times: Times, events: Sequence[Event]) -> None:
    """Add the tasks among the events of a step; one of several calls takes the time of all of them."""
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

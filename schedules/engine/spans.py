"""The tasks and transfers of one step with their times, and the answers to: what did a mesh wait for?

Simulated and measured steps have the same form: a list of `Span`s. `bubbles_of` finds the idle times of the meshes with
their causes, and `critical_path` the chain of tasks and transfers that makes the step as long as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

COMPUTE: Final = "compute"
"""The track of a mesh's own tasks."""

TRACKS: Final = {"copy_out": "offload", "copy_in": "reload", "net": "move"}
"""The track of a resource that tasks use beside the turn of their mesh; other resources have their own name."""

HOST_TRACKS: Final = ("offload", "reload")
"""The tracks of copies between a mesh and its host."""

Cause: TypeAlias = Literal["task", "transfer", "host", "weights", "end"]
CAUSES: Final[dict[Cause, str]] = {
    "task": "waits for a task of another mesh",
    "transfer": "waits for a transfer",
    "host": "waits for a copy from or to the host",
    "weights": "gathers weights or scatters gradients",
    "end": "has no more tasks",
}
"""The causes of bubbles, in words."""


class Label(NamedTuple):
    """The name of a task: its kind, stage, microbatch and slice; stage and microbatch may be None."""

    kind: str
    stage: int | None
    microbatch: int | None
    slice: int = 0

    def __str__(self) -> str:
        """Returns `forward 0, 3`, or `forward 0, 3, 1` for a later slice; only the kind if there is no stage."""
        numbers = [str(number) for number in (self.stage, self.microbatch, self.slice or None) if number is not None]
        return f"{self.kind} {', '.join(numbers)}".rstrip()


class Span(NamedTuple):
    """A task, several fused tasks, or a transfer.

    Attributes:
        mesh: the mesh that runs the task, or sends.
        track: the track of the mesh; `COMPUTE` for its own tasks, "" for a transfer.
        labels: the names of the tasks. A transfer has the name of the task whose result it carries.
        start: the start, in the unit of the step.
        end: the end, in the unit of the step.
        after: the index of the span that this one waited for last; None if it waited for nothing.
        target: the mesh that receives a transfer; None for a task.
        bytes: the bytes of a transfer.
        function: the name of the compiled function of a task, if it is known.
    """

    mesh: int
    track: str
    labels: tuple[Label, ...]
    start: float
    end: float
    after: int | None = None
    target: int | None = None
    bytes: float = 0.0
    function: str = ""

    def __str__(self) -> str:
        return " + ".join(map(str, self.labels))


class Bubble(NamedTuple):
    """An idle time of a mesh, and its cause.

    Attributes:
        mesh: the idle mesh.
        start: the start of the idle time.
        length: its length.
        cause: the cause, a key of `CAUSES`.
        after: the index of the task or transfer that the mesh waited for; None if it waited for nothing.
    """

    mesh: int
    start: float
    length: float
    cause: Cause
    after: int | None


def own_spans(spans: Sequence[Span], meshes: int) -> list[list[int]]:
    """Returns for each mesh the indices of its own tasks, in their order; the tasks of a mesh don't overlap."""
    rows: list[list[int]] = [[] for _ in range(meshes)]
    for number, span in enumerate(spans):
        if span.target is None and span.track == COMPUTE:
            rows[span.mesh].append(number)
    return rows


def bubbles_of(spans: Sequence[Span], meshes: int) -> list[Bubble]:
    """Returns the idle times of all meshes between 0 and the end of the step, mesh by mesh."""
    makespan = makespan_of(spans)
    least = 1e-9 * makespan  # without a wait, two sums of times differ at most in their last digits
    found: list[Bubble] = []
    for mesh, row in enumerate(own_spans(spans, meshes)):
        free = 0.0
        for number in row:
            span = spans[number]
            if span.start - free > least:
                found.append(Bubble(mesh, free, span.start - free, *_cause(spans, number, free)))
            free = span.end
        if makespan - free > least:
            found.append(Bubble(mesh, free, makespan - free, "end", None))
    return found


def _cause(spans: Sequence[Span], number: int, free: float) -> tuple[Cause, int | None]:
    """Returns why a task did not start when its mesh became free at `free`, and what it waited for."""
    span = spans[number]
    if span.after is None:
        return "weights", None
    last = spans[span.after]
    if last.target is not None:
        return ("transfer" if last.start <= free else "task"), span.after
    if last.mesh != span.mesh:
        return "task", span.after
    if last.track in HOST_TRACKS:
        return "host", span.after
    return ("weights" if last.track == COMPUTE else "transfer"), span.after


def critical_path(spans: Sequence[Span]) -> list[int]:
    """Returns the indices of the spans of a critical path, from the start of the step to the task that ends last."""
    tasks = (number for number, span in enumerate(spans) if span.target is None)
    number = max(tasks, key=lambda each: spans[each].end, default=None)
    path: list[int] = []
    while number is not None:
        path.append(number)
        number = spans[number].after
    return path[::-1]


def makespan_of(spans: Sequence[Span]) -> float:
    """Returns the end of the last task; transfers that arrive later don't count."""
    return max((span.end for span in spans if span.target is None), default=0.0)


class HopTotal(NamedTuple):
    """The transfers from one mesh to another in a step."""

    source: int
    target: int
    transfers: int
    bytes: float
    longest: float


def hops_of(spans: Sequence[Span]) -> list[HopTotal]:
    """Returns the transfers of each pair of meshes, sorted."""
    found: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        if span.target is not None:
            found[span.mesh, span.target].append(span)
    return [
        HopTotal(*pair, len(each), sum(span.bytes for span in each), max(span.end - span.start for span in each))
        for pair, each in sorted(found.items())
    ]


def waited_for(spans: Sequence[Span], number: int) -> str:
    """Returns what a span waited for last, in words: `backward 1, 0 of mesh 1`; "" if it waited for nothing."""
    after = spans[number].after
    return "" if after is None else named(spans[after])


def named(span: Span) -> str:
    """Returns the name of a span with its mesh; a transfer is `send 0, 3 of mesh 0 to mesh 1`."""
    if span.target is None:
        return f"{span} of mesh {span.mesh}"
    return f"{span.labels[0]._replace(kind='send')} of mesh {span.mesh} to mesh {span.target}"


def parts(spans: Sequence[Span], chosen: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Yields the kind and the duration of each of the chosen spans; a transfer has the kind "transfer"."""
    for number in chosen:
        span = spans[number]
        yield "transfer" if span.target is not None else span.labels[0].kind, span.end - span.start

"""Kinds of tasks, and what each kind needs before it can run.

The dependences of a pipeline are a small table: one row per kind, one entry per thing it waits for. A user's own
operation (offload, recompute, ...) is one more row, and a row of the same name replaces a built-in one:

    offload = Kind.parse("offload: forward")
    reload = Kind.parse("reload: offload")
    backward = Kind.parse("backward: forward backward|input_grad@+1 ?reload")    # waits for its reload, if there is one

Where it runs, for how long, and what it does to memory stand behind the needs:

    spill = Kind.parse("spill: forward; track copy; memory -1; time 0.5")

What is moved from one mesh to another is there, on the mesh where the task stands, from its start, and until its end on
the mesh of the task that it comes `from`; such a task may stand on a mesh that does not hold its stage:

    evict = Kind.parse("evict: forward; track net; memory +1; from forward; on peer")
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from jaxpp.schedules.errors import ScheduleError

_NAME: Final = r"[a-z]+(?:_[a-z]+)*"
_NEED: Final = re.compile(
    rf"(?P<optional>\??)(?P<kinds>{_NAME}(?:\|{_NAME})*)"
    r"(?:@(?P<offset>[+-][0-9]{1,9}))?(?:~(?P<slice>[+-][0-9]{1,9}))?"
)
_KIND: Final = re.compile(rf"(?P<name>{_NAME}) *:(?P<needs>[^;]*)(?P<effects>(?:;[^;]*)*)")

KIND_NAME: Final = re.compile(_NAME)
"""Lower-case words: no digits, so that a cell such as `3offload12` reads in one way."""

LETTERS: Final = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
"""Letters of the built-in kinds, as in PyTorch's pipelining tables; a user's kind stands under its full name."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a task waits for: a task of the same microbatch, `offset` stages further on.

    Attributes:
        kinds: any one of these will do; the first that the schedule has is taken.
        offset: the stage of the needed task, relative to the one that waits; past either end of the pipeline nothing
            is needed.
        optional: waited for where the schedule has it; otherwise its absence is an error.
        slice_offset: the slice of the sequence of the needed task, relative to the one that waits; before the first
            and behind the last nothing is needed.
    """

    kinds: tuple[str, ...]
    offset: int = 0
    optional: bool = False
    slice_offset: int = 0

    def __str__(self) -> str:
        """`?backward|input_grad@+1`: optional, alternatives, offset; `forward~-1` is the slice before."""
        offset = f"@{self.offset:+d}" if self.offset else ""
        part = f"~{self.slice_offset:+d}" if self.slice_offset else ""
        return f"{'?' if self.optional else ''}{'|'.join(self.kinds)}{offset}{part}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: its name, what such a task needs, and what it does.

    Attributes:
        name: in lower case.
        needs: what it waits for.
        track: where it runs, beside the tasks of its mesh; "" is the mesh itself. A copy to the host has track "copy":
            it starts when the cell before it has ended, and what follows does not wait for it.
        memory: the activations that it makes (positive, from its start) or gives back (negative, at its end), as a
            share of what the forward of its stage makes. The built-in kinds have their own rules (`Report`).
        source: the kind of the task of the same stage and microbatch whose mesh gives back, at the end, what this task
            makes; "" where it makes something new.
        peer: it stands on a mesh that does not hold its stage.
        time: how long it takes, for one microbatch on a whole mesh, where the costs do not say.

    Raises:
        ScheduleError: a name is not in lower case, or a number is not one.
    """

    name: str
    needs: tuple[Need, ...] = ()
    track: str = ""
    memory: float = 0.0
    time: float | None = None
    source: str = ""
    peer: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, self.track or "copy", self.source or "forward"):
            if not KIND_NAME.fullmatch(name):
                raise ScheduleError(
                    f"the kind of a task must be a name in lower case, such as 'offload', found {name!r}"
                )
        if not math.isfinite(self.memory):
            raise ScheduleError(f"the memory of {self.name} must be a number, found {self.memory!r}")
        if self.time is not None and not 0 < self.time < math.inf:
            raise ScheduleError(f"the time of {self.name} must be a positive number, found {self.time!r}")
        if self.source and (self.memory <= 0 or not any(self.source in need.kinds for need in self.needs)):
            raise ScheduleError(
                f"{self.name} moves memory from the mesh of its {self.source}: it must need that task, and make memory"
            )
        for need in self.needs:
            _parse_need(str(need))

    def __str__(self) -> str:
        """`backward: forward backward|input_grad@+1`, which `Kind.parse` reads."""
        effects = {
            "track": self.track,
            "memory": f"{self.memory:+.17g}" if self.memory else "",
            "time": "" if self.time is None else f"{self.time:.17g}",
            "from": self.source,
            "on": "peer" if self.peer else "",
        }
        words = "".join(f"; {key} {value}" for key, value in effects.items() if value)
        return " ".join([f"{self.name}:", *map(str, self.needs)]) + words

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read `name: need need ...; track copy; memory -1; time 0.5`; what stands behind the needs may be left out.

        Two more say that memory moves from mesh to mesh: `from forward` and `on peer` (`source`, `peer`).

        Raises:
            ScheduleError: the text is not of that form.
        """
        match = _KIND.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(f"cannot read kind {text!r}: expected 'name: need need ...', the name in lower case")
        effects: dict[str, str] = {}
        for effect in match["effects"].split(";")[1:]:
            key, _, value = effect.strip().partition(" ")
            value = value.strip()
            known = key in ("track", "memory", "time", "from") or (key, value) == ("on", "peer")
            if not known or key in effects or not value:
                expected = "expected 'track NAME', 'memory NUMBER', 'time NUMBER', 'from KIND' or 'on peer', each once"
                raise ScheduleError(f"cannot read {effect.strip()!r} of kind {match['name']}: {expected}")
            effects[key] = value
        needs = tuple(_parse_need(word) for word in match["needs"].split())
        memory, time = (_number(effects, key) for key in ("memory", "time"))
        source, peer = effects.get("from", ""), "on" in effects
        return cls(match["name"], needs, effects.get("track", ""), memory or 0.0, time, source, peer)


def _number(effects: dict[str, str], key: str) -> float | None:
    if key not in effects:
        return None
    try:
        return float(effects[key])
    except ValueError:
        raise ScheduleError(f"cannot read {key} {effects[key]!r}: expected a number") from None


def _parse_need(word: str) -> Need:
    match = _NEED.fullmatch(word)
    if match is None:
        raise ScheduleError(f"cannot read need {word!r}: expected 'kind', 'kind|kind', 'kind@+1', 'kind~-1' or '?kind'")
    return Need(
        tuple(match["kinds"].split("|")), int(match["offset"] or 0), bool(match["optional"]), int(match["slice"] or 0)
    )


BUILTIN_KINDS: Final = tuple(
    map(
        Kind.parse,
        (
            "forward: forward@-1 forward~-1",
            "backward: forward backward|input_grad@+1 backward|input_grad~+1 ?reload ?load ?recompute",
            "input_grad: forward backward|input_grad@+1 backward|input_grad~+1 ?reload ?load ?recompute",
            "weight_grad: input_grad",
            "offload: forward; track copy; memory -1",
            "reload: offload; track copy; memory +1",
            "evict: forward; track net; memory +1; from forward; on peer",
            "load: evict; track net; memory +1; from evict",
            "recompute: forward ?reload ?load",
        ),
    )
)
"""Activations flow up the stages, gradients down; a weight gradient waits for the input gradient of its own stage
(Zero Bubble, arXiv 2401.10241, section 2). Slices of a sequence run forward in order and backward in reverse, as later
ones attend to earlier ones (Seq1F1B, arXiv 2406.03488). Activations may go to the host and come back (PipeOffload,
arXiv 2503.01328), or to another mesh: `evict` stands on that mesh, `load` on the one that needs them again (BPipe, Kim
et al., ICML 2023); a stage that recomputes runs forward again before it runs backward."""

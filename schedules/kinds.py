"""Kinds of tasks: what each kind needs, what it uses, and what it does to memory.

The dependences of a pipeline are a small table: one row per kind, one entry per thing it waits for. A user's own
operation is one more row, and a row of the same name replaces a built-in one:

    reload = Kind.parse("reload: offload")
    backward = Kind.parse("backward: forward backward|input_grad@+1 ?reload")    # waits for its reload, if there is one
    optimizer = Kind.parse("optimizer: backward|weight_grad#all; time 2")        # waits for those of all microbatches

What it uses stands behind the needs: `compute` is the turn of its mesh, and what is not named else. What does without
runs beside: it starts when the cell before it has ended and all that it uses is free, and what is behind it does not
wait for its end. `copy_out` and `copy_in` carry copies to the host and back, `net` those to other meshes; any other
name will do.

What it does to memory is an amount per pool, in activations of its stage: it takes what is positive from its start, and
gives back what is negative at its end. The pools are `here`, the mesh where it stands; `peer`, the mesh of the first
task that it needs; `host`, the memory of its host:

    spill = Kind.parse("spill: forward; uses copy_out; here -1; host +1; time 0.5")
    evict = Kind.parse("evict: forward; uses net; here +1; peer -1; on peer")    # stands where its stage is not at home
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import NoneType
from typing import Final, Literal, cast

from jaxpp.schedules.errors import ScheduleError

_NAME: Final = r"[a-z]+(?:_[a-z]+)*"
_NEED: Final = re.compile(
    rf"(?P<optional>\??)(?P<kinds>{_NAME}(?:\|{_NAME})*)"
    r"(?:@(?P<stage>[+-][0-9]{1,9}))?(?:#(?P<microbatch>[+-][0-9]{1,9}|all))?(?:~(?P<slice>[+-][0-9]{1,9}))?"
)
_KIND: Final = re.compile(rf"(?P<name>{_NAME}) *:(?P<needs>[^;]*)(?P<effects>(?:;[^;]*)*)")

KIND_NAME: Final = re.compile(_NAME)
"""Lower-case words: no digits, so that a cell such as `3offload12` reads in one way."""

LETTERS: Final = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
"""Letters of the built-in kinds, as in PyTorch's pipelining tables; a user's kind stands under its full name."""


POOLS: Final = ("here", "peer", "host")
"""The memories that a kind says something of."""

COMPUTE: Final = "compute"
"""The resource of a mesh that its tasks use one after the other, in their order."""

ALL: Final = "all"
"""The microbatch of a need for the tasks of all microbatches."""

_HOMES: Final = ("home", "peer", "any")
_PARTS: Final = ("activation", "rest", "input")


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a task waits for: another task, which may be of another stage, microbatch or slice.

    Attributes:
        kinds: any one of these will do; the first that the schedule has is taken.
        stage: that of the needed task, relative to the one that waits; past either end of the pipeline nothing is
            needed.
        optional: waited for where the schedule has it; otherwise its absence is an error.
        slice: that of the needed task in the sequence, relative to the one that waits; before the first and behind the
            last nothing is needed.
        microbatch: that of the needed task, relative to the one that waits; before the first and behind the last
            nothing is needed. `ALL`: the tasks of all microbatches and slices are.
    """

    kinds: tuple[str, ...]
    stage: int = 0
    optional: bool = False
    slice: int = 0
    microbatch: int | Literal["all"] = 0

    def __str__(self) -> str:
        """`?backward|input_grad@+1`: optional, alternatives, stage; `forward#-1~+1` also microbatch and slice."""
        stage = f"@{self.stage:+d}" if self.stage else ""
        microbatch = self.microbatch and f"#{self.microbatch if self.microbatch == ALL else f'{self.microbatch:+d}'}"
        part = f"~{self.slice:+d}" if self.slice else ""
        return f"{'?' if self.optional else ''}{'|'.join(self.kinds)}{stage}{microbatch or ''}{part}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: its name, what such a task needs, and what it does.

    Attributes:
        name: in lower case.
        needs: what it waits for.
        uses: the resources of its mesh that it has to itself while it runs; none is as the built-in kind of its name,
            or else `compute`.
        amounts: (pool, amount) for each pool whose memory it changes, the amount as a share of what the forward of its
            stage makes: positive from its start, negative at its end.
        makes: it makes the activation of its stage and microbatch here, anew.
        holds: "activation", the whole of it is there until its end, if not longer; "rest", what the weight gradient
            reads of it; "input", what a recompute starts from; "" where it reads nothing of it.
        stands: where: on a mesh that holds its stage ("home"), on one that doesn't ("peer"), or on "any".
        time: how long it takes, for one microbatch on a whole mesh, where the costs do not say; or the kinds of tasks
            that take as long together. None: as long as what it moves.

    Raises:
        ScheduleError: a name is not in lower case, a number is not one, or a pool, a part or a place is none.
    """

    name: str
    needs: tuple[Need, ...] = ()
    uses: tuple[str, ...] = ()
    amounts: tuple[tuple[str, float], ...] = ()
    makes: bool = False
    holds: str = ""
    stands: str = "home"
    time: float | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._check_types()
        times = self.time if isinstance(self.time, tuple) else ()
        for name in (self.name, *self.uses, *times):
            if not KIND_NAME.fullmatch(name):
                raise ScheduleError(
                    f"the kind of a task must be a name in lower case, such as 'offload', found {name!r}"
                )
        amounts = dict(self.amounts)
        if len(amounts) < len(self.amounts):
            raise ScheduleError(f"the memory of {self.name} must be one number for each pool, found {self.amounts}")
        for pool, amount in amounts.items():
            if pool not in POOLS or not _is_finite(amount):
                raise ScheduleError(f"the memory of {self.name} must be a number for each pool, found {pool} {amount}")
        # One form for all that mean the same.
        object.__setattr__(self, "amounts", tuple((pool, amounts[pool]) for pool in POOLS if amounts.get(pool)))
        is_wrong = isinstance(self.time, float | int) and not (self.time > 0 and _is_finite(self.time))
        if is_wrong or self.time == () or not _NO_NAMES.isdisjoint(times):
            raise ScheduleError(f"the time of {self.name} must be a positive number, found {self.time!r}")
        for value, known in ((self.holds or "input", _PARTS), (self.stands, _HOMES)):
            if value not in known:
                raise ScheduleError(f"{self.name}: expected one of {', '.join(known)}, found {value!r}")
        if len(set(self.uses)) < len(self.uses):
            raise ScheduleError(f"{self.name} must use one resource or several, each once, found {self.uses}")
        if self.moves and (not self.needs or self.needs[0].optional or self.needs[0].microbatch == ALL):
            raise ScheduleError(f"{self.name} takes memory from a peer: the first that it needs must be one task there")
        for need in self.needs:
            if _parse_need(str(need)) != need:
                raise ScheduleError(f"{self.name}: expected a need such as '{_parse_need(str(need))}', found {need!r}")

    def _check_types(self) -> None:
        numbers, time = (float, int), cast("object", self.time)
        fields: dict[str, tuple[object, type | tuple[type, ...]]] = {
            "needs": (self.needs, Need),
            "uses": (self.uses, str),
            "amounts": (self.amounts, tuple),
            "time": (time if isinstance(time, tuple) else (), str),
        }
        wrong = [name for name, (value, kind) in fields.items() if not _is_tuple_of(value, kind)]
        for need in () if "needs" in wrong else self.needs:
            offsets = (need.stage, need.slice, 0 if need.microbatch == ALL else need.microbatch)
            if not _is_tuple_of(need.kinds, str) or {*map(type, offsets)} != {int}:
                wrong.append("needs")
        pairs = () if "amounts" in wrong else cast("tuple[tuple[object, ...], ...]", self.amounts)
        if not all(len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], numbers) for pair in pairs):
            wrong.append("amounts")
        if not isinstance(time, (*numbers, tuple, NoneType)):
            wrong.append("time")
        if not isinstance(cast("object", self.name), str):
            wrong.append("name")
        for name in wrong:
            raise ScheduleError(f"kind {self.name!r}: {name} is of a wrong type, found {getattr(self, name)!r}")

    @property
    def moves(self) -> bool:
        """Whether it takes memory from the mesh of the first task that it needs: a message from there."""
        return any(pool == "peer" for pool, _ in self.amounts)

    def over(self, known: Kind) -> Kind:
        """This kind in place of a known one of its name: all but the needs that it does not say is as it was."""
        said = self if self.makes or self.holds else known
        return replace(
            known,
            needs=self.needs,
            uses=self.uses or known.uses,
            amounts=self.amounts or known.amounts,
            makes=said.makes,
            holds=said.holds,
            stands=known.stands if self.stands == "home" else self.stands,
            time=known.time if self.time is None else self.time,
        )

    def amount(self, pool: str) -> float:
        """How much it takes of a pool, or gives back."""
        return dict(self.amounts).get(pool, 0.0)

    def __str__(self) -> str:
        """`backward: forward backward|input_grad@+1`, which `Kind.parse` reads."""
        time = self.time if self.time is None or isinstance(self.time, tuple) else (f"{self.time:.17g}",)
        effects = {
            "uses": " ".join(self.uses),
            "makes": "activation" if self.makes else "",
            "holds": self.holds,
            **{pool: f"{amount:+.17g}" for pool, amount in self.amounts},
            "on": "" if self.stands == "home" else self.stands,
            "time": " ".join(time or ()),
        }
        words = "".join(f"; {key} {value}" for key, value in effects.items() if value)
        return " ".join([f"{self.name}:", *map(str, self.needs)]) + words

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read `name: need need ...; uses copy_out; here -1; time 0.5`; what stands behind the needs may be left out.

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
            known = key in ("uses", "holds", "time", *POOLS) or (key, value) in _FLAGS
            if not known or key in effects or not value:
                raise ScheduleError(f"cannot read {effect.strip()!r} of kind {match['name']}: {_EXPECTED}")
            effects[key] = value
        names = effects.get("time", "").split()
        is_number = len(names) == 1 and (names[0] in _NO_NAMES or not KIND_NAME.fullmatch(names[0]))
        return cls(
            match["name"],
            tuple(_parse_need(word) for word in match["needs"].split()),
            tuple(effects.get("uses", "").split()),
            tuple((pool, _number(pool, effects[pool])) for pool in POOLS if pool in effects),
            "makes" in effects,
            effects.get("holds", ""),
            effects.get("on", "home"),
            _number("time", names[0]) if is_number else tuple(names) or None,
        )


_NO_NAMES: Final = frozenset(["inf", "infinity", "nan"])
_FLAGS: Final = (("makes", "activation"), ("on", "peer"), ("on", "any"))
_EXPECTED: Final = (
    "expected 'uses NAME ...', 'here NUMBER', 'peer NUMBER', 'host NUMBER', 'makes activation', 'holds PART', "
    "'on peer', 'on any' or 'time NUMBER', each once"
)


def _is_tuple_of(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, kind) for each in cast("tuple[object, ...]", value))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float is as large as
        return False


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScheduleError(f"cannot read {key} {text!r}: expected a number") from None


def _parse_need(word: str) -> Need:
    match = _NEED.fullmatch(word)
    if match is None:
        expected = "expected 'kind', 'kind|kind', 'kind@+1', 'kind#-1', 'kind#all', 'kind~-1' or '?kind'"
        raise ScheduleError(f"cannot read need {word!r}: {expected}")
    if match["microbatch"] == ALL and match["slice"]:
        raise ScheduleError(f"cannot read need {word!r}: #all is all microbatches and slices, so ~ says nothing")
    microbatch: int | Literal["all"] = "all" if match["microbatch"] == "all" else int(match["microbatch"] or 0)
    kinds = tuple(match["kinds"].split("|"))
    return Need(kinds, int(match["stage"] or 0), bool(match["optional"]), int(match["slice"] or 0), microbatch)


_BACKWARD: Final = "forward backward|input_grad@+1 backward|input_grad~+1 ?reload ?load ?recompute; holds activation"

BUILTIN_KINDS: Final = tuple(
    map(
        Kind.parse,
        (
            "forward: forward@-1 forward~-1; makes activation",
            f"backward: {_BACKWARD}; time input_grad weight_grad",
            f"input_grad: {_BACKWARD}",
            "weight_grad: input_grad; holds rest",
            "offload: forward; uses copy_out; here -1; host +1",
            "reload: offload; uses copy_in; here +1; host -1",
            "evict: forward; uses net; here +1; peer -1; on peer",
            "load: evict; uses net; here +1; peer -1",
            "recompute: forward ?reload ?load; makes activation; holds input; time forward",
            "all_reduce: backward|weight_grad#all; uses net",
            "optimizer: backward|weight_grad#all ?all_reduce",
        ),
    )
)
"""Activations flow up the stages, gradients down; a weight gradient waits for the input gradient of its own stage
(Zero Bubble, arXiv 2401.10241, section 2). Slices of a sequence run forward in order and backward in reverse, as later
ones attend to earlier ones (Seq1F1B, arXiv 2406.03488). Activations may go to the host and come back (PipeOffload,
arXiv 2503.01328), or to another mesh: `evict` stands on that mesh, `load` on the one that needs them again (BPipe, Kim
et al., ICML 2023); a stage that recomputes runs forward again before it runs backward. The gradients of a stage are
summed over copies of it, and its weights updated, when those of all microbatches are there."""

_BUILTIN: Final = {kind.name: replace(kind, uses=kind.uses or (COMPUTE,)) for kind in BUILTIN_KINDS}


def rules_of(kinds: Iterable[Kind]) -> dict[str, Kind]:
    """What each kind needs and does, by name: the built-in kinds, and these beside or in place of them.

    What one in place of another does not say, but for its needs, is as it was.
    """
    rules = dict(_BUILTIN)
    for kind in kinds:
        rules[kind.name] = kind.over(rules.get(kind.name) or Kind(kind.name, uses=(COMPUTE,)))
    return rules

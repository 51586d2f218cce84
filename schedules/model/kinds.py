"""Kinds of tasks: what each kind waits for, which resources it uses, and how it changes memory.

The dependences of a pipeline are a small table. It has one row per kind, and one entry per task that the kind waits
for. A user's operation is one more row. A row with the name of a built-in kind replaces that kind:

    reload = Kind.parse("reload: offload")
    backward = Kind.parse("backward: forward backward|input_grad@+1 ?reload")    # waits for its reload, if there is one
    optimizer = Kind.parse("optimizer: backward|weight_grad#all; time 2")        # waits for all microbatches

The resources follow the needs. `compute` is the turn of the mesh, and the default. A task whose kind does not use
`compute` runs beside the other tasks of its mesh. It starts when the previous cell has ended and all its resources are
free, and the next cell does not wait for its end. `copy_out` and `copy_in` are for copies to the host and back, `net`
is for copies to other meshes. Any other name is a resource, too.

The effect on memory is an amount per pool, in activations of the task's stage. A positive amount is taken at the start
of the task, a negative amount is given back at its end. The pools are `here`, the mesh that runs the task; `peer`, the
mesh of the first task that it needs; and `host`, the memory of the mesh's host:

    spill = Kind.parse("spill: forward; uses copy_out; here -1; host +1; time 0.5")
    evict = Kind.parse("evict: forward; uses net; here +1; peer -1; on peer")    # runs on a mesh without the stage
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
"""Lower-case words. They have no digits, so that there is only one way to read a cell such as `3offload12`."""

LETTERS: Final = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
"""The letters of some built-in kinds, as in PyTorch's pipelining tables. Other kinds are written with their names."""

INPUT_GRADIENTS: Final = ("backward", "input_grad")
"""The built-in kinds that compute the gradients with respect to a stage's inputs."""

POOLS: Final = ("here", "peer", "host")
"""The memories whose use a kind can change."""

COMPUTE: Final = "compute"
"""The resource that the tasks of a mesh use one after the other, in their order."""

ALL: Final = "all"
"""The value of `Need.microbatch` that stands for the tasks of all microbatches."""

_HOMES: Final = ("home", "peer", "any")
_PARTS: Final = ("activation", "rest", "input")


@dataclass(frozen=True, slots=True)
class Need:
    """A task that another task waits for, possibly of another stage, microbatch or slice.

    Attributes:
        kinds: alternatives; the needed task is of the first kind for which the schedule has it.
        stage: the needed task's stage, relative to the waiting task's. Past either end of the pipeline nothing is
            needed.
        optional: whether the task may be absent from the schedule; otherwise its absence is an error.
        slice: the needed task's slice of the sequence, relative to the waiting task's. Before the first slice and after
            the last nothing is needed.
        microbatch: the needed task's microbatch, relative to the waiting task's. Before the first and after the last
            nothing is needed. With `ALL` the tasks of all microbatches and slices are needed.
    """

    kinds: tuple[str, ...]
    stage: int = 0
    optional: bool = False
    slice: int = 0
    microbatch: int | Literal["all"] = 0

    def __str__(self) -> str:
        """Returns the text, such as `?backward|input_grad@+1` or `forward#-1~+1`.

        `?` marks an optional need, `|` separates alternatives. Offsets follow `@` (stage), `#` (microbatch) and `~`
        (slice).
        """
        stage = f"@{self.stage:+d}" if self.stage else ""
        microbatch = self.microbatch and f"#{self.microbatch if self.microbatch == ALL else f'{self.microbatch:+d}'}"
        part = f"~{self.slice:+d}" if self.slice else ""
        return f"{'?' if self.optional else ''}{'|'.join(self.kinds)}{stage}{microbatch or ''}{part}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: its name, the tasks that it waits for, its resources, and its effect on memory.

    Attributes:
        name: in lower case.
        needs: the tasks that it waits for.
        uses: the resources of its mesh that it occupies while it runs. Empty: the resources of the built-in kind with
            its name, or `compute` if there is none.
        amounts: (pool, amount) for each pool that it changes, as a share of the activation of its stage. A positive
            amount is taken at the start, a negative amount is given back at the end.
        makes: whether it makes the activation of its stage and microbatch on this mesh.
        holds: the part of the activation that must stay until its end: "activation" (the whole), "rest" (the part that
            the weight gradient reads), "input" (the part that a recompute starts from), or "" (none).
        stands: on which meshes it may run: "home" (one that holds its stage), "peer" (one that does not) or "any".
        time: its duration for one microbatch on a whole mesh, where the costs give none; or kinds of tasks whose
            durations it is the sum of. None: the duration of the copy that it makes.

    Raises:
        ScheduleError: when a name is not in lower case, a number is not finite, the time is not positive, or a pool,
            `holds` or `stands` is unknown.
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
        # Equal kinds must have equal attributes: pools in one order, without zeros.
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
        """Whether it changes the memory of the mesh of its first need, which is then the source of a message."""
        return any(pool == "peer" for pool, _ in self.amounts)

    def over(self, known: Kind) -> Kind:
        """Returns the kind that results when this kind replaces `known`, a kind of the same name.

        It has the needs of this kind. Each other attribute that this kind leaves at its default comes from `known`;
        `makes` and `holds` come from `known` only together.
        """
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
        """Returns the amount that it takes from a pool; a negative amount is given back."""
        return dict(self.amounts).get(pool, 0.0)

    def __str__(self) -> str:
        """Returns the text that `Kind.parse` reads, such as `backward: forward backward|input_grad@+1`."""
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
        """Reads `name: need need ...; uses copy_out; here -1; time 0.5`; all entries after the needs are optional.

        Raises:
            ScheduleError: when the text has another form.
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
    except OverflowError:  # an int beyond the range of floats
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
"""The built-in kinds.

- Activations pass from each stage to the next, gradients to the previous stage. A weight gradient waits for the input
  gradient of its own stage (Zero Bubble, arXiv 2401.10241, section 2).
- Slices of a sequence run forward in order and backward in reverse, because later slices attend to earlier slices
  (Seq1F1B, arXiv 2406.03488).
- An activation may move to the host and return (PipeOffload, arXiv 2503.01328), or to another mesh. `evict` runs on
  that mesh, `load` on the mesh that needs the activation again (BPipe, Kim et al., ICML 2023).
- A stage that recomputes runs its forward again before its backward.
- Once the gradients of a stage are there for all microbatches, they are summed over the stage's copies (`all_reduce`),
  and the weights are updated (`optimizer`).
"""

_BUILTIN: Final = {kind.name: replace(kind, uses=kind.uses or (COMPUTE,)) for kind in BUILTIN_KINDS}


def rules_of(kinds: Iterable[Kind]) -> dict[str, Kind]:
    """Returns the rules of all kinds by name: the built-in kinds, extended or replaced by `kinds`.

    A kind that replaces a built-in kind inherits all that it leaves out, except for the needs (see `Kind.over`).
    """
    rules = dict(_BUILTIN)
    for kind in kinds:
        rules[kind.name] = kind.over(rules.get(kind.name) or Kind(kind.name, uses=(COMPUTE,)))
    return rules

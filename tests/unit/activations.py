"""An account of activations: of how many microbatches a mesh keeps residuals at once, read out of a program."""

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate, repeat
from typing import TypeAlias

from jaxpp.ir.kinds import FORMS, form_of
from jaxpp.ir.program import Call, Function, Instruction, Program, Receive, Send
from jaxpp.ir.tensors import TensorSpec
from jaxpp.schedules.model.task import Unit

_Slice: TypeAlias = tuple[int, int]
"""A microbatch, and a slice of its sequence: 0 where that is not cut."""


def peak_activations(program: Program) -> list[int]:
    """For each mesh the most microbatches of a stage whose residuals wait at once: what a schedule promises."""
    makers = {name for name, function in program.functions.items() if "recompute" in function.kind.split("+")}
    made = (each for line in program.sequences for each in line if isinstance(each, Call) and each.function in makers)
    remade = {task[1:] for each in (made if makers else ()) for task in each.tasks if task.kind == "recompute"}
    lent = _lent(program) - remade
    alive = [_activations_on(program, mesh, remade, lent) for mesh in range(program.meshes)]
    of_none = set[int]().union(*(each.of_none for each in alive))
    return [each.peak(of_none) for each in alive]


def _lent(program: Program) -> Set[Unit]:
    """The (stage, microbatch, slice) of which one mesh runs the forward and another one the backward."""
    forwards: dict[Unit, int] = {}
    backwards: dict[Unit, int] = {}
    found = {"forward": forwards, "backward": backwards, "input_grad": backwards}
    for mesh, sequence in enumerate(program.sequences):
        for each in sequence:
            if not isinstance(each, Call):
                continue
            if each.stage is not None and each.microbatch is not None:
                if each.kind in found:
                    found[each.kind][each.stage, each.microbatch, each.slice] = mesh
                continue
            for task in each.fused:
                if task.kind in found:
                    found[task.kind][task[1:]] = mesh
    return {unit for unit, mesh in forwards.items() if backwards.get(unit, mesh) != mesh}


def _activations_on(program: Program, mesh: int, remade: Set[Unit], lent: Set[Unit]) -> "_Activations":
    sequence = program.sequences[mesh]
    gathering = {name: function.gathered for name, function in program.functions.items() if function.gathered}
    calls = (each for each in sequence if isinstance(each, Call) and each.function in gathering)
    gathered = {each.results[number] for each in calls for number in gathering[each.function]}
    several = {name: function for name, function in program.functions.items() if function.result_parts}
    return _Activations(sequence, program.registers[mesh], remade, lent, gathered, several)


class _Activations:
    """The (stage, microbatch, slice) whose residuals are alive.

    Where the sequence is not cut, all of it is slice 0; else a slice is what a microbatch is below.

    A residual is what a call of a microbatch received or made, and a later call of the same stage and microbatch uses:
    what the forward hands to the backward, and the input gradient to the weight gradient. What no task made, such as a
    weight that another mesh sends, is none. The residuals of a microbatch are alive from the call that makes or first
    reads one of them until the last that reads one; from its recompute on, if it has one, even where what that reads
    was moved; and not while they are in the memory of the host. Those that are evicted are alive on their mesh in the
    forward, on the other one until they are sent back, and from the load on.

    remade: the (stage, microbatch, slice) that are recomputed, on any mesh.
    lent: those whose forward and backward run on different meshes, and that are not recomputed: on each of these alive
        while its task runs.
    gathered: the registers of weights that a task gathers for tasks after it.
    several: the functions that are several tasks.

    Attributes:
        of_none: the channels on which the mesh sends what no task made, such as a weight.
    """

    def __init__(
        self,
        sequence: Sequence[Instruction],
        specs: Sequence[TensorSpec],
        remade: Set[Unit],
        lent: Set[Unit],
        gathered: Set[int],
        several: Mapping[str, Function],
    ) -> None:
        self._sequence, self._specs, self._remade, self._lent = sequence, specs, remade, lent
        self._made_for: list[Sequence[_Slice] | None] = [()] * len(specs)  # None: any, as it came from another mesh
        self._calls: dict[Unit, list[tuple[int, Call, str, Sequence[int]]]] = {}
        """The calls of each: the index of each, as what kind of task it counts, and what it reads as that."""
        self._received: list[tuple[int, int]] = []
        self.of_none: set[int] = set()
        for index, each in enumerate(sequence):
            if isinstance(each, Receive):
                self._made_for[each.result] = None
                self._received.append((each.channel, each.result))
            elif isinstance(each, Send):
                made_for = self._made_for[each.operand]
                if made_for is not None and not made_for:
                    self.of_none.add(each.channel)
            elif isinstance(each, Call):
                tasks = each.fused
                if each.stage is not None and each.microbatch is not None:
                    tasks = ((each.kind, each.stage, each.microbatch, each.slice),)
                here = [task[2:] for task in tasks]
                function = several.get(each.function) if len(here) > 1 else None
                for task in tasks:
                    reads = each.operands
                    if function is not None:  # what only a task of another microbatch reads is none of this one's
                        readers = zip(reads, function.argument_parts, strict=True)
                        reads = [register for register, part in readers if here[part] == task[2:]]
                    self._calls.setdefault(task[1:], []).append((index, each, task[0], reads))
                makers = [here[part : part + 1] for part in function.result_parts] if function is not None else ()
                for register, made_for in zip(each.results, makers or repeat(here), strict=False):
                    self._made_for[register] = () if register in gathered else made_for

    def peak(self, of_none: Set[int]) -> int:
        """The most that are alive at once, given the channels of all meshes that carry something of no microbatch."""
        for channel, register in self._received:
            if channel in of_none:
                self._made_for[register] = ()
        change = [0] * (len(self._sequence) + 2)
        for unit, calls in self._calls.items():
            for start, stop in self._spans(unit, calls):
                change[start] += 1
                change[stop + 1] -= 1
        return max(accumulate(change))

    def _spans(self, unit: Unit, calls: Sequence[tuple[int, Call, str, Sequence[int]]]) -> list[tuple[int, int]]:
        """From which call to which the residuals of one stage and microbatch are alive."""
        specs, made_for, one, is_remade = self._specs, self._made_for, unit[1:], unit in self._remade
        since: dict[int, tuple[int, str]] = {}  # by register, the call that made or first read it, and its kind
        own_results: set[int] = set()
        last: dict[int, int] = {}  # by register, the last call of these that reads it: another stage may later
        residuals: list[tuple[int, int]] = []  # (index, register), from which call on each is alive
        alone: list[tuple[int, int]] = []
        forward = None
        for index, call, kind, reads in calls:
            # A sum to which earlier microbatches added is no residual of this one.
            own = [each for each in reads if (made := made_for[each]) is None or one in made]
            if kind == "recompute":  # the operands of a recompute are no residuals, nor are other inputs of its stage
                since = {each: found for each, found in since.items() if each in own_results and each not in own}
            # Nor are values of a recomputed microbatch that are only copied, or read by a function of the user's.
            moved = is_remade and (form_of(kind).is_copy or kind not in FORMS)
            if kind == "evict" and not moved:
                residuals += [(index, register) for register in call.results]
            elif not moved:
                found = [(*since[each], each) for each in own if each in since and not specs[each].memory]
                residuals += [(start, each) for start, maker, each in found if maker != kind]  # not within one task
            if unit in self._lent and kind in ("forward", "backward", "input_grad"):
                alone.append((index, index))  # a lent microbatch is alive here only while this task runs
            if kind == "forward":
                forward = index
            elif kind == "load" and not moved and forward is not None:
                alone.append((forward, forward))  # its residuals are sent away right after the forward
            if is_remade and not moved:
                own_results.update(call.results)
            for register in call.results:
                since[register] = index, kind
            for register in own:
                last[register] = index
                if register not in since:
                    since[register] = index, kind
        ends = [(start, last[each] if each in last else self._deaths[each]) for start, each in residuals]
        return _merged({*alone, *ends})

    @cached_property
    def _deaths(self) -> dict[int, int]:
        """By register, the index of the instruction that frees it; the end where none does."""
        deaths = dict.fromkeys(range(len(self._specs)), len(self._sequence))
        for index, each in enumerate(self._sequence):
            if isinstance(each, Call | Send):
                deaths.update(dict.fromkeys(each.frees, index))
        return deaths


def _merged(spans: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order; spans that overlap or touch are joined."""
    if len(spans) < 2:
        return list(spans)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged

"""Published schedules by name.

A new schedule needs two things: a function in a file of this folder, and an entry in `LIBRARY` below. The function is
best written in the language of `builders.language`. The tests report whatever else a new schedule lacks. Other packages
add schedules as entry points of the group `jaxpp.schedules`.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, cast

from jaxpp._plugins import PlugInError, plug_ins
from jaxpp._system import collector_paused
from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.library.bidirectional import bitpipe, chimera, dualpipe
from jaxpp.schedules.library.classic import eager_one_f_one_b, gpipe, looped_bfs, one_f_one_b, pipedream_2bw
from jaxpp.schedules.library.exchange import slimpipe
from jaxpp.schedules.library.interleaved import interleaved_1f1b, interleaved_zb, kimi_k2
from jaxpp.schedules.library.offload import bpipe, gis, po_f, po_h
from jaxpp.schedules.library.sequence import seq1f1b, seq1f1b_i, seq1f1b_zb
from jaxpp.schedules.library.v_shaped import dualpipe_v, hanayo, stp, v_half, v_min, zb_v
from jaxpp.schedules.library.vocabulary import vocab_1f1b, vocab_v_half
from jaxpp.schedules.library.zero_bubble import zb_1p, zb_2p, zb_h1, zb_h2
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule

LIBRARY: Final[dict[str, Callable[..., Schedule]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_one_f_one_b,
    "pipedream-2bw": pipedream_2bw,
    "interleaved-1f1b": interleaved_1f1b,
    "kimi-k2": kimi_k2,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-1p": zb_1p,
    "zb-2p": zb_2p,
    "interleaved-zb": interleaved_zb,
    "zb-v": zb_v,
    "stp": stp,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
    "chimera": chimera,
    "hanayo": hanayo,
    "bitpipe": bitpipe,
    "seq1f1b": seq1f1b,
    "seq1f1b-i": seq1f1b_i,
    "seq1f1b-zb": seq1f1b_zb,
    "slimpipe": slimpipe,
    "vocab-1f1b": vocab_1f1b,
    "vocab-v-half": vocab_v_half,
    "gis": gis,
    "po-h": po_h,
    "po-f": po_f,
    "bpipe": bpipe,
}
"""The function of each schedule. Its docstring names the paper; its parameters after the first two are the schedule's
options."""


_MULTIPLIES: Final = ("chunks", "slices", "steps", "layers")
"""The options that give a schedule more tasks."""

_OTHER_NAMES: Final = {
    **dict.fromkeys(("zerobubble", "zbh", "zb1"), "zb-h1"),
    **dict.fromkeys(("zerobubblev", "zbvzerobubble"), "zb-v"),
    "interleavedzerobubble": "interleaved-zb",
    **dict.fromkeys(("pipedream", "pipedreamflush", "dapple", "onefoneb"), "1f1b"),
    **dict.fromkeys(("loopedbreadthfirst", "breadthfirst", "bfs"), "looped-bfs"),
    "filldrain": "gpipe",
}
"""Names that other projects use for a schedule of the library. The keys have only lower-case letters and digits."""


PLUG_INS: Final = "jaxpp.schedules"
"""The group of entry points that are functions as those of `LIBRARY`."""


def is_known(name: object) -> bool:
    """Whether the library or a plug-in has a schedule of this name."""
    return isinstance(name, str) and (name in LIBRARY or name in plug_ins(PLUG_INS, LIBRARY))


def check_name(name: object) -> None:
    """Checks that the library or a plug-in has a schedule of this name.

    Raises ScheduleError if none has.
    """
    if not is_known(name):
        raise ScheduleError(f"no schedule is named {name!r}{_nearest(str(name).lower())}{', '.join(names())}")


def names() -> tuple[str, ...]:
    """Returns the names that `make` knows: those of the library, then those of plug-ins."""
    return tuple({**LIBRARY, **plug_ins(PLUG_INS, LIBRARY)})


def function_of(name: str) -> Callable[..., Schedule]:
    """Returns the function of a known schedule. Raises ScheduleError if it is a plug-in that can't be used."""
    if name in LIBRARY:
        return LIBRARY[name]
    plug_in = plug_ins(PLUG_INS, LIBRARY)[name]
    try:
        function = plug_in.load()
        if not callable(function) or len(inspect.signature(function).parameters) < 2:
            raise plug_in.expected("a function of meshes, microbatches and options", function)
    except PlugInError as error:
        raise ScheduleError(str(error)) from error.__cause__
    return cast("Callable[..., Schedule]", function)


@cache
def options_of(name: str) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters that the function of a schedule has after meshes and microbatches."""
    return dict(list(inspect.signature(function_of(name)).parameters.items())[2:])


def make(name: str, *, meshes: int, microbatches: int, **options: object) -> Schedule:
    """Builds a schedule of the library: `make("1f1b", meshes=4, microbatches=8)`.

    Args:
        name: one of `names()`.
        meshes: number of meshes.
        microbatches: number of microbatches.
        options: the schedule's own options, e.g. `chunks=2`.

    Raises:
        ScheduleError: the name or an option is unknown, or the schedule does not exist for these numbers.
    """
    if isinstance(cast("object", name), str) and "{" in name and is_known(name.partition("{")[0]):
        raise ScheduleError(f"make takes options as arguments, as slices=4; S.resolve reads a text such as {name!r}")
    check_name(name)
    known = options_of(name)
    for option in options:
        if option not in known:
            raise ScheduleError(f"schedule {name!r} has no option {option!r}: it takes {', '.join(known) or 'none'}")
    sizes = {"meshes": whole_number(meshes, "meshes", least=1)}
    sizes["microbatches"] = whole_number(microbatches, "microbatches", least=1)
    for option in [each for each, value in options.items() if each in _MULTIPLIES and value is not None]:
        sizes[option] = whole_number(options[option], option, least=1)
    check_size(name, **sizes)
    with collector_paused():
        made = function_of(name)(sizes["meshes"], sizes["microbatches"], **options)
    if not isinstance(cast("object", made), Schedule):
        raise ScheduleError(f"the function of schedule {name!r} returned a {type(made).__name__}, expected a Schedule")
    if name not in LIBRARY:
        check(made)
    return made


def _nearest(name: str) -> str:
    """Returns the text between an unknown name and the list of all names.

    The text suggests up to three schedules whose names begin with `name`. If there are none, it suggests the schedule
    that others call so, or the most similar name.
    """
    found = [known for known in names() if name and known.startswith(name)][:3]
    found = found or [*filter(None, [_OTHER_NAMES.get(re.sub("[^a-z0-9]", "", name))])]
    found = found or difflib.get_close_matches(name, names(), n=1)
    *others, last = map(repr, found or [""])
    return (
        f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}? There are " if found else ": there are "
    )

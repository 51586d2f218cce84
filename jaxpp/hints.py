"""Hints for errors of JAX and flax whose own advice fails too."""

import sys
from types import TracebackType

_HINTS = {
    "addressable": (
        "a result of a step lives on the devices of its stage, and only the processes that have these can read it: "
        "jaxpp.fetch(x), called in all processes, gives its numbers in each"
    ),
    "incompatible devices": (
        "results of a step live on the devices of their stages: compute with several of them inside of the step, or on "
        "their numbers, as jaxpp.fetch(x) gives them"
    ),
    "invalid value: MpmdSharding": (
        "an MpmdSharding names meshes as well as a sharding: jaxpp.spmd_to_mpmd_reshard(mesh, state, shardings) places "
        "a state by a step's in_shardings"
    ),
    "different trace level": (
        "an nnx module is taken apart outside of the step, by nnx.split; where treduce calls it, put it together by "
        "nnx.merge(graph, params, rest, copy=True), and give dropout a key of the microbatch by "
        "nnx.reseed(model, default=key): docs/frameworks.md"
    ),
}
"""The hints, by a part of the message."""


def hint_of(error: BaseException) -> str:
    """Returns the hint for an error that JAX or flax raised; "" for other errors."""
    is_known = isinstance(error, RuntimeError | ValueError) or type(error).__module__.startswith("flax.")
    text = str(error) if is_known else ""
    return next((hint for part, hint in _HINTS.items() if part in text and "jaxpp" not in text), "")


def add_hint(error: BaseException) -> None:
    """Adds the hint, if there is one, as a note, which a traceback shows after the message."""
    note = f"jaxpp: {hint}" if (hint := hint_of(error)) else ""
    if note and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def install() -> None:
    """Makes Python show the hint as a note after an error that ends the program; another hook runs as before."""
    shown = sys.excepthook
    if getattr(shown, "__module__", "") == __name__:
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        add_hint(error)
        shown(kind, error, trace)

    sys.excepthook = show

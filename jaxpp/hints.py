"""What to do where the messages of JAX and flax send a user to what fails, too."""

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
    "different trace level": (
        "an nnx module is taken apart outside of the step, by nnx.split; where treduce calls it, put it together by "
        "nnx.merge(graph, params, rest, copy=True), and give dropout a key of the microbatch by "
        "nnx.reseed(model, default=key): docs/frameworks.md"
    ),
}
"""By a part of JAX's message."""


def hint_of(error: BaseException) -> str:
    """Returns what to do about an error that JAX or flax raised; "" for others."""
    is_known = isinstance(error, RuntimeError | ValueError) or type(error).__module__.startswith("flax.")
    text = str(error) if is_known else ""
    return next((hint for part, hint in _HINTS.items() if part in text and "jaxpp" not in text), "")


def add_hint(error: BaseException) -> None:
    """Add the hint, if there is one, as a note, which a traceback shows behind the message."""
    note = f"jaxpp: {hint}" if (hint := hint_of(error)) else ""
    if note and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def install() -> None:
    """From now on, show the hint behind an error that ends the program, as a note. Another hook goes on as before."""
    shown = sys.excepthook
    if getattr(shown, "__module__", "") == __name__:
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        add_hint(error)
        shown(kind, error, trace)

    sys.excepthook = show

"""What to do where JAX's own messages about arrays of several meshes send a user to what fails, too."""

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
}
"""By a part of JAX's message."""


def hint_of(error: BaseException) -> str:
    """Returns what to do about an error that JAX raised; "" for others."""
    text = str(error) if isinstance(error, RuntimeError | ValueError) else ""
    return next((hint for part, hint in _HINTS.items() if part in text and "jaxpp" not in text), "")


def install() -> None:
    """From now on, show the hint behind an error that ends the program, as a note. Another hook goes on as before."""
    shown = sys.excepthook
    if getattr(shown, "__module__", "") == __name__:
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if hint := hint_of(error):
            error.add_note(f"jaxpp: {hint}")
        shown(kind, error, trace)

    sys.excepthook = show

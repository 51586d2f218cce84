"""How often weights are gathered and gradients are scattered: the options of several passes."""

from typing import Final

CHOICES: Final = {
    "gather_weights": ("microbatch", "chunk", "ahead", "step"),
    "scatter_gradients": ("microbatch", "chunk", "step"),
}


def check_choice(name: str, value: str) -> None:
    """Raises ValueError for a value that the option has not."""
    if value not in CHOICES[name]:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(CHOICES[name])}")

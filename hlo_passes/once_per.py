"""Options that several passes share: how often weights are gathered, and gradients scattered."""

from typing import Final

CHOICES: Final = {
    "gather_weights": ("microbatch", "chunk", "ahead", "step"),
    "scatter_gradients": ("microbatch", "chunk", "step"),
}


def check_choice(name: str, value: str) -> None:
    """Raises ValueError when `value` is not a choice of the option `name`."""
    if value not in CHOICES[name]:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(CHOICES[name])}")

"""A training that goes on when processes die: `train`, in processes that `jaxpp-run` starts (docs/healing.md)."""

from jaxpp.healing.member import EndError
from jaxpp.healing.training import train

__all__ = ["EndError", "train"]

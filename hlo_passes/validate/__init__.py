"""Checking a pass by running it: the module before and after it computes the same (`jaxpp-opt --validate`)."""

from jaxpp.hlo_passes.validate.observer import Validate, ValidationError

__all__ = ["Validate", "ValidationError"]

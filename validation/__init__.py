"""Checks a pass by running the module: before and after the pass it must compute the same (`jaxpp-opt --validate`)."""

from jaxpp.validation.bound import MOST_TRIPS
from jaxpp.validation.observer import Validate, compare_modules
from jaxpp.validation.validator import ValidationError

__all__ = ["MOST_TRIPS", "Validate", "ValidationError", "compare_modules"]

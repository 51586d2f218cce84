"""The versions of JAX that jaxpp was tested with, and messages about other versions."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

# Each version has every private name in `_compat.py`, and passes its tests.
# CI runs the whole suite under the first, and a part of it, which changes from commit to commit, under the last.
TESTED = {"0.10.2": "3.11", "0.11.2": "3.12", "0.12.0.1": "3.13"}
"""The versions of JAX that jaxpp was tested with, oldest first, and the Python of each."""
TRIED = tuple(TESTED)
PLATFORMS = ("cpu",)
"""The platforms on which jaxpp's tests ran."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class UnsupportedJaxError(RuntimeError):
    """The installed JAX lacks a private name that jaxpp uses, or has something else under that name."""


def explained(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes a function of `_compat.py` raise `UnsupportedJaxError` where it fails in an untested version of JAX.

    That is where the function itself raises AttributeError, ImportError or TypeError: a private name is missing, or has
    changed.
    """

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (AttributeError, ImportError, TypeError) as error:
            found = _version()
            if found in TRIED or not _raised_in(function, error):
                raise
            raise UnsupportedJaxError(
                f"jaxpp does not work with jax {found}: {error}; "
                f"it was tried with {', '.join(TRIED)}: pip install 'jax<={TRIED[-1]}'"
            ) from error

    return checked


def _version() -> str:
    import jax

    return str(jax.__version__)


def _raised_in(function: Callable[..., object], error: BaseException) -> bool:
    """Whether a line in the file of `function` raised `error`, and not JAX or the user's code that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == function.__code__.co_filename


@functools.cache
def warn_of_newer_jax() -> None:
    """Warns, once per process, of a JAX that is newer than all tested versions."""
    import jax

    newest = tuple(int(part) for part in TRIED[-1].split("."))
    if jax.__version_info__ > newest:
        message = f"jax {jax.__version__} is newer than those that jaxpp was tried with ({', '.join(TRIED)})"
        warnings.warn(message, stacklevel=100)  # no line of the user's code causes the warning, so it names none

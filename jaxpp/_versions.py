"""The versions of JAX that jaxpp was tried with, and messages about others."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

# Each has every private name in `_compat.py`, whose tests passed under all of them.
# CI runs the whole suite under the first and the last.
TRIED = ("0.10.2", "0.11.2", "0.12.0.1")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class UnsupportedJaxError(RuntimeError):
    """The JAX that is installed lacks a private name that jaxpp uses, or has another thing under that name."""


def explained(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function of `_compat.py` that tells of a private name which a JAX that nobody tried lacks, or has changed.

    It raises `UnsupportedJaxError` then.
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
    """Whether a line of the file of `function` raised `error`, not one of JAX or of the user that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == function.__code__.co_filename


@functools.cache
def warn_of_newer_jax() -> None:
    """Warn, once per process, of a JAX that is newer than all that were tried."""
    import jax

    newest = tuple(int(part) for part in TRIED[-1].split("."))
    if jax.__version_info__ > newest:
        message = f"jax {jax.__version__} is newer than those that jaxpp was tried with ({', '.join(TRIED)})"
        warnings.warn(message, stacklevel=100)  # no line of the user's has a part in it: the warning names none

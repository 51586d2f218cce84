"""Pipeline-parallel, multi-program (MPMD) JAX training steps.

    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=jaxpp.MpmdMesh(mesh, "mpmd"))

Mark where stages end (`mark_stage_end`), wrap the gradient of one microbatch in `treduce` with a schedule, and call the
step as you would call `jax.jit(train_step)`. The names are in `jaxpp.api`; they are loaded when first used, so that
`jaxpp.schedules` and the command-line tools start without JAX.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpp import checkpoint as checkpoint
    from jaxpp.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `from jaxpp import schedules` asks here first: a room must not bring in the whole face.
    if importlib.util.find_spec(f"jaxpp.{name}") is not None:
        return importlib.import_module(f"jaxpp.{name}")
    api = importlib.import_module("jaxpp.api")
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'jaxpp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *importlib.import_module("jaxpp.api").__all__])

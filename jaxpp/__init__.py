"""Pipeline-parallel, multi-program (MPMD) JAX training steps.

    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=jaxpp.MpmdMesh(mesh, "mpmd"))

Mark where stages end (`mark_stage_end`), wrap the gradient of one microbatch in `treduce` with a schedule, and call the
step as you would call `jax.jit(train_step)`. Names are loaded when they are first used, so that `jaxpp.schedules`
and the command-line tools start without JAX.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jaxpp import api as api
    from jaxpp import checkpoint as checkpoint
    from jaxpp import debug as debug
    from jaxpp import distributed as distributed
    from jaxpp import healing as healing
    from jaxpp import hlo_passes as hlo_passes
    from jaxpp import models as models
    from jaxpp import planning as planning
    from jaxpp import ray as ray
    from jaxpp import runtime as runtime
    from jaxpp import schedules as schedules
    from jaxpp.names import *  # noqa: F403
else:  # a type checker that sees `__getattr__` would accept any name
    import importlib
    import warnings

    _MODULES = frozenset(
        "api checkpoint debug distributed healing hlo_passes models planning ray runtime schedules".split()
    )
    # The names in `jaxpp.names`, so that any other name is refused without importing JAX.
    _NAMES = frozenset(
        """
        Add Concat Count LimitError Max Mean MpmdMesh MpmdSharding Op PassError PlanError SavedStepError ScheduleError
        SparseAveraging StepOptions compare expect fetch frozen load mark_stage_end mark_unit_end mpmd_jit_by_yield
        mpmd_jit_with_loop optimistic partition spmd_to_mpmd_reshard target train_loop treduce tune
        """.split()
    )
    # The new module of each name that was here.
    _MOVED = {
        name: module
        for module, names in {
            "api": """
                MpmdArray collect_task_times_ms cross_mpmd_all_reduce cross_mpmd_stack mpmd_to_spmd_reshard
                pipeline_enter_stage place_with treduce_i
            """,
            "models": """
                check_slices rows_of_layers scan_slices slice_attention stored_rows vocabulary_cross_entropy
                vocabulary_embedding
            """,
            "planning": "Plan",
            "schedules": """
                BaseSchedule DualPipeV Eager1F1B GPipe Interleaved1F1B InterleavedGPipe InterleavedZeroBubble KimiK2
                Std1F1B Task ZeroBubble
            """,
        }.items()
        for name in names.split()
    }

    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(f"jaxpp.{name}")
        if name in _MOVED:  # for one release
            module = f"jaxpp.{_MOVED[name]}"
            warnings.warn(f"jaxpp.{name} is deprecated: it is {module}.{name}", DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(module), name)
        if name not in _NAMES:
            raise AttributeError(f"module 'jaxpp' has no attribute '{name}'")
        return globals().setdefault(name, getattr(importlib.import_module("jaxpp.names"), name))

    def __dir__():
        return sorted(_MODULES | _NAMES | set(globals()))

"""The public names of jaxpp, under the name that NVIDIA's JaxPP gives them: `import jaxpp.api as jaxpp`."""

from jaxpp.hlo_passes import PassError
from jaxpp.jit import mpmd_jit_with_loop
from jaxpp.lowering import Add, Concat, Max, MpmdMesh, Op, mark_stage_end, pipeline_enter_stage, treduce, treduce_i
from jaxpp.schedules import BaseSchedule, GPipe, ScheduleError, Std1F1B, Task

__all__ = [
    "Add",
    "BaseSchedule",
    "Concat",
    "GPipe",
    "Max",
    "MpmdMesh",
    "Op",
    "PassError",
    "ScheduleError",
    "Std1F1B",
    "Task",
    "mark_stage_end",
    "mpmd_jit_with_loop",
    "pipeline_enter_stage",
    "treduce",
    "treduce_i",
]

"""The names of NVIDIA's JaxPP beside those of `jaxpp`, for its scripts: `import jaxpp.api as jaxpp`.

Unlike `import jaxpp`, this import gives `jax.Array` the properties that scripts written for JaxPP read from results.
"""

from jaxpp.compatibility.array import MpmdArray as MpmdArray
from jaxpp.compatibility.array import mpmd_to_spmd_reshard as mpmd_to_spmd_reshard
from jaxpp.compatibility.cross import cross_mpmd_all_reduce as cross_mpmd_all_reduce
from jaxpp.compatibility.cross import cross_mpmd_stack as cross_mpmd_stack
from jaxpp.compatibility.cross import place_with as place_with
from jaxpp.compatibility.properties import extend_arrays as _extend_arrays
from jaxpp.compatibility.times import collect_task_times_ms as collect_task_times_ms
from jaxpp.lowering import pipeline_enter_stage as pipeline_enter_stage
from jaxpp.lowering import treduce_i as treduce_i
from jaxpp.names import *  # noqa: F403
from jaxpp.schedules import BaseSchedule as BaseSchedule
from jaxpp.schedules import DualPipeV as DualPipeV
from jaxpp.schedules import Eager1F1B as Eager1F1B
from jaxpp.schedules import GPipe as GPipe
from jaxpp.schedules import Interleaved1F1B as Interleaved1F1B
from jaxpp.schedules import InterleavedGPipe as InterleavedGPipe
from jaxpp.schedules import InterleavedZeroBubble as InterleavedZeroBubble
from jaxpp.schedules import KimiK2 as KimiK2
from jaxpp.schedules import Std1F1B as Std1F1B
from jaxpp.schedules import Task as Task
from jaxpp.schedules import ZeroBubble as ZeroBubble

_extend_arrays()

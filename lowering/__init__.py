"""From a JAX function to one ordinary StableHLO module: stage marks, the microbatch loop, meshes, lowering.

`lower` makes the module that `docs/ir.md` describes in its first section; `jaxpp.hlo_passes` takes it from there.
"""

import os

from jaxpp._compat import hide_frames
from jaxpp._versions import warn_of_newer_jax

warn_of_newer_jax()
hide_frames(os.path.join(os.path.dirname(os.path.dirname(__file__)), ""))  # operations of jaxpp get the user's line

from jaxpp.lowering.expectation import expect  # noqa: E402  # frames are hidden
from jaxpp.lowering.lower import Lowered, lower  # noqa: E402  # frames are hidden
from jaxpp.lowering.marks import mark_stage_end, mark_unit_end, pipeline_enter_stage  # noqa: E402
from jaxpp.lowering.mesh import MpmdMesh, MpmdSharding  # noqa: E402
from jaxpp.lowering.microbatch_loop import treduce, treduce_i  # noqa: E402
from jaxpp.lowering.reductions import Add, Concat, Count, Max, Mean, Op  # noqa: E402
from jaxpp.lowering.single import in_one_microbatch  # noqa: E402
from jaxpp.lowering.train_loop import TrainLoop, lower_step, train_loop  # noqa: E402

__all__ = [
    "Add",
    "Concat",
    "Count",
    "Lowered",
    "Max",
    "Mean",
    "MpmdMesh",
    "MpmdSharding",
    "Op",
    "TrainLoop",
    "expect",
    "in_one_microbatch",
    "lower",
    "lower_step",
    "mark_stage_end",
    "mark_unit_end",
    "pipeline_enter_stage",
    "train_loop",
    "treduce",
    "treduce_i",
]

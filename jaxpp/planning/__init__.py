"""Plans: the predicted time and memory of a step on devices that are not here, from their real compilers.

See docs/plan.md.

    target = jaxpp.target("v5p:4x4x4")
    step = jaxpp.mpmd_jit_with_loop(train_step, target.mesh((8, 8), ("mpmd", "model")))
    plan = step.lower(state, batch).compile().plan
"""

from jaxpp.planning.conditions import Conditions
from jaxpp.planning.failures import Saves
from jaxpp.planning.numbers import HopPlan, MeshPlan, Numbers, ProgramPlan
from jaxpp.planning.plan import Plan
from jaxpp.planning.rehearsal import LostTime
from jaxpp.planning.rehearse import Rehearsal, rehearse
from jaxpp.targets.chips import CHIPS, Chip, Efficiency, Link
from jaxpp.targets.target import PlanError, Target, target

__all__ = [
    "CHIPS",
    "Chip",
    "Conditions",
    "Efficiency",
    "HopPlan",
    "Link",
    "LostTime",
    "MeshPlan",
    "Numbers",
    "Plan",
    "PlanError",
    "ProgramPlan",
    "Rehearsal",
    "Saves",
    "Target",
    "rehearse",
    "target",
]

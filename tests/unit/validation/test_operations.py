"""A user's operation in a program gives nothing, also where the program is interpreted."""

from functools import partial

import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.hlo_passes import base
from jaxpp.schedules.rewrites.tasks import insert
from jaxpp.validation import Validate


def test_an_operation_that_reads_residuals_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = schedules.make("1f1b", meshes=2, microbatches=2)
    plan = insert(plan, schedules.Operation.parse("norms: forward"), after="forward")
    step = partial(sgd_step, schedule=plan)
    validate = Validate()
    monkeypatch.setattr(base, "STANDING", [validate])
    options = jaxpp.StepOptions(operations={"norms": look})
    jaxpp.mpmd_jit_with_loop(step, make_mesh(2), options=options).lower(weights(2), batch(2)).program()
    assert "3 results agree" in validate.summary()


def look(residuals: object) -> None:
    """Look at residuals, as a user's function."""

"""Jobs that run one after the other in the same processes: one that fails is alone in that."""

import pytest
from unit.runtime.processes import jobs, together


def test_jobs_after_one_that_fails_run_in_other_processes() -> None:
    needs_more_devices = jobs.one_mesh_each
    found = together.run_each([jobs.a_forked_child, needs_more_devices, jobs.nothing_is_small], processes=1)
    assert (found["a_forked_child"], found["nothing_is_small"]) == ([7], [None])
    with pytest.raises(AssertionError, match=r"(?s)^in 1 processes:.* exit code 1\n.*one_mesh_each.*equal division"):
        found["one_mesh_each"]

"""Processes that leave a job and join another one: nothing of the former's devices is left."""

import socket
import time
from contextlib import ExitStack

import pytest
from unit.runtime.processes import restart_jobs, together
from unit.runtime.processes.test_faults import Outcome

from jaxpp import _jobs


@pytest.mark.parametrize("transport", ["pull", "pair"])
def test_no_backend_is_kept(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a cache of ours nor by a thread: each restart would leak all of it."""
    monkeypatch.setenv("JAXPP_TRANSPORT", transport)
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [str(each.getsockname()[1]) for each in free]
    with ExitStack() as stack:
        for port in ports:
            stack.callback(_jobs.start_coordination(f"127.0.0.1:{port}", 2).shutdown)
        children, outputs = stack.enter_context(together.started([ports] * 2, 2, f"{restart_jobs.__name__}:main"))
        end = time.monotonic() + 200
        while any(child.poll() is None for child in children) and time.monotonic() < end:
            time.sleep(0.05)
        found = Outcome(children, outputs)
    assert found.codes == [0, 0], found.shown
    for process in range(2):
        assert found.find(process, "left") == [0, 0, 0]
        first, *others = found.find(process, "threads")
        assert max(others) <= first

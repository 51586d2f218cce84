"""The end of a transport whose arrays are still awaited."""

import atexit
import contextlib
import os
import subprocess
import sys
import threading

import jax
from unit.runtime.processes import forks

from jaxpp.runtime.processes import waiting
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.waiting import TransferError, Waiting


def waits() -> None:
    """A process whose second thread waits for what never comes, while Python ends."""
    transport = PullTransport(0, jax.devices()[0], lambda _: transport.address)
    message = transport.fetch(1)

    def wait() -> None:
        with contextlib.suppress(TransferError):
            transport.wait(message, Waiting(1, is_message=True))

    threading.Thread(target=wait, daemon=True).start()
    while not waiting._asides:
        pass
    atexit.register(transport.finish, 30.0)


def test_python_ends_while_another_thread_waits() -> None:
    """A thread that still waited in JAX would abort the process."""
    script = f"from {__name__} import waits; waits()"
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(forks.TESTS)}, check=True)

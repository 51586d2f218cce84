"""gpt.py in several processes: how they find each other, and how one on this host starts them all."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import jax

from jaxpp import distributed

GRACE = 3.0
"""Seconds that the others have to say what they miss, when one process is gone."""


LAUNCHED = "GPT_LAUNCHED"
"""The variable that tells a process that `start` holds the other end of its standard input."""


def join(coordinator: str, processes: int, process: int | None) -> None:
    """Become one of the processes that share their devices; only process 0 goes on printing.

    coordinator: host:port where process 0 listens; "auto" where JAX knows it from its surroundings, as with SLURM.
    """
    if LAUNCHED in os.environ:
        threading.Thread(target=end_with_launcher, daemon=True).start()
    if coordinator == "auto":
        distributed.initialize()
    else:
        distributed.initialize(coordinator, processes, process)
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def end_with_launcher() -> None:
    """End this process when the one that started it is gone, also if that was killed: the pipe between them closes."""
    os.read(0, 1)
    os._exit(1)


def start(processes: int, arguments: Sequence[str]) -> int:
    """Run gpt.py with these arguments in `processes` processes on this host; returns the exit code.

    When one fails, or this one is told to end, all end; with --checkpoint by themselves, when they have saved.
    """
    children: list[subprocess.Popen[bytes]] = []

    def end(number: int, _: FrameType | None) -> None:
        if not any(argument.startswith("--checkpoint") for argument in arguments):
            sys.exit(128 + number)
        for child in children:
            child.terminate()

    signal.signal(signal.SIGTERM, end)
    kept = socket.socket()  # it never listens: while it is open, nobody but process 0 gets its port
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        kept.setsockopt(socket.SOL_SOCKET, option, 1)
    kept.bind(("127.0.0.1", 0))
    coordinator = f"127.0.0.1:{kept.getsockname()[1]}"
    command = [sys.executable, str(Path(__file__).with_name("gpt.py")), *arguments, "--coordinator", coordinator]
    environment = {**os.environ, LAUNCHED: "1"}
    listen, hold = os.pipe()  # nothing is written to it; the system closes it when this process ends, in whatever way
    try:
        for number in range(processes):
            output = subprocess.DEVNULL if number else None
            each = [*command, "--process", str(number)]
            children.append(subprocess.Popen(each, stdin=listen, stdout=output, env=environment))
        while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
            time.sleep(0.05)
        code = next((child.returncode for child in children if child.returncode), 0)
        patience = time.monotonic() + GRACE
        while any(child.poll() is None for child in children) and time.monotonic() < patience:
            time.sleep(0.05)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
        kept.close()
        os.close(listen)
        os.close(hold)
    return code if code >= 0 else 128 - code

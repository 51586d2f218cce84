"""`jaxpp-run` whose processes are forks, which have imported JAX and jaxpp already: an import takes two seconds."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.healing import hosts, job
from unit.runtime.processes import forks

from jaxpp.healing import launcher
from jaxpp.tools import run


class Child(forks.Fork):
    """A process of a launcher, as `subprocess.Popen` has them."""

    def __init__(self, output: Path, command: Sequence[str], *, stdin: Any, env: Mapping[str, str]) -> None:
        del stdin  # a fork has none
        super().__init__(started(forks.run_script, output, command[1:], env).pid, str(output))

    @property
    def returncode(self) -> int | None:
        """Its exit code, after `poll` has found one."""
        return self.code

    def terminate(self) -> None:
        """Sends it SIGTERM."""
        self.send_signal(forks.signal.SIGTERM)


def started(function: Any, output: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> forks.Fork:
    """A fork that calls a function with these arguments."""
    environment = {**environment, "JAX_NUM_CPU_DEVICES": "1"}
    name = f"{function.__module__}:{function.__name__}"
    return forks.start(name, arguments, [__name__, job.__name__], environment, str(output))


def run_tool(*arguments: str) -> None:
    """Runs `jaxpp-run`, in a fork; it really starts its processes."""
    sys.exit(run.main(arguments))


def on_host(namespace: str, function: str, *arguments: str) -> None:
    """Runs `jaxpp-run` or a script in a session of its own on a host, in a fork."""
    os.setsid()
    hosts.enter(namespace)
    {"run_tool": run_tool, "run_script": forks.run_script}[function](*arguments)


def jaxpp_run(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    """Runs `jaxpp-run` here, whose processes are forks, and print to a file; returns its exit code."""
    with monkeypatch.context() as patches:
        patches.setattr(launcher, "subprocess", SimpleNamespace(Popen=partial(Child, output), DEVNULL=None))
        return run.main(arguments)

"""Processes that begin with JAX and jaxpp imported, which takes more than a second: forks of one that has done so.

Run as a script, this is that one. It starts neither threads nor a backend: what is forked is whole. A fork then goes on
as a script of its own would, and ends as one: its exceptions, its Ctrl-C and its `atexit` are those of Python.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[3]


class Fork:
    """A process, as `subprocess.Popen` has them, and what it prints."""

    def __init__(self, pid: int, output: str) -> None:
        self.pid, self.output = pid, Path(output)
        self.code: int | None = None
        self._read = 0

    def lines(self, count: int) -> Sequence[str]:
        """Its next lines, as soon as there are so many."""
        found: Sequence[str] = ()
        end = time.monotonic() + 60
        while len(found) < count and time.monotonic() < end:
            time.sleep(0.01)
            found = self.output.read_text(encoding="utf-8").split("\n")[self._read : -1][:count]
        self._read += count
        return found

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.code is None:
            self.code = _ask({"pid": self.pid})
        return self.code

    def wait(self, seconds: float = 60) -> int:
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} still runs after {seconds} s")
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    function: str, arguments: Sequence[str], modules: Sequence[str], environment: Mapping[str, str], output: str
) -> Fork:
    """A process that calls a function, "module:name", and prints to the end of a file.

    `modules` are imported before it is forked, once; the number of its CPU devices is that in its environment.
    """
    Path(output).touch()
    # pytest names the modules of tests as seen from the root
    function, *modules = (name.removeprefix("tests.") for name in (function, *modules))
    request = {"function": function, "arguments": list(arguments), "modules": modules, "output": output}
    return Fork(_ask({**request, "environment": dict(environment)}), output)


@contextlib.contextmanager
def running(function: Callable[..., None], *arguments: str) -> Generator[Fork]:
    """A process that calls a function of a module with these arguments, and that is killed in the end."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
        name, output = f"{function.__module__}:{function.__name__}", f"{folder}/output"
        fork = start(name, arguments, [function.__module__], environment, output)
        try:
            yield fork
        finally:
            fork.kill()
            fork.wait()


def run_script(path: str, *arguments: str) -> None:
    """Runs a script as Python does, in a fork."""
    sys.argv, sys.path[0] = [path, *arguments], str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


def _ask(request: dict[str, Any]) -> Any:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with _asking:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
    assert answer, "the process to be forked has ended"
    answer = json.loads(answer)
    assert not isinstance(answer, str), answer
    return answer


_asking = threading.Lock()


@cache
def _server() -> subprocess.Popen[str]:
    # numpy's matrix library would start threads
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def end() -> None:
        server.communicate()

    atexit.register(end)
    return server


def _serve() -> dict[str, Any]:
    """Answer requests; what was asked of it, in a fork.

    Ctrl-C is for those who ask: they end what they began. When nobody asks any more, what still runs is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            running.discard(pid)
        else:
            answer = _prepare(request["modules"])
            if answer is None:
                answer = os.fork()
                if answer == 0:
                    return request
                running.add(answer)
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sys.exit()


def _prepare(modules: Sequence[str]) -> str | None:
    """Import these, in the process to be forked; why it can't be, if so: the next request may well be another one."""
    try:
        for module in modules:
            import_module(module)
    except Exception:
        return traceback.format_exc()
    threads = Path("/proc/self/task")
    if threads.exists() and len(list(threads.iterdir())) > 1:
        return f"what has threads can't be forked; some module has started one: {', '.join(modules)}"
    gc.freeze()
    return None


def _become(request: dict[str, Any]) -> None:
    """In a fork: take over streams and environment, of which JAX has read one variable already."""
    with open(os.devnull, "rb") as nothing, open(request["output"], "ab") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [path for path in paths if path not in sys.path]  # Python has read the server's
    import jax

    jax.config.update("jax_num_cpu_devices", int(os.environ["JAX_NUM_CPU_DEVICES"]))


IMPORTED = ("jaxpp.distributed", "jaxlib.mlir.dialects.mhlo", "scipy.linalg.cython_blas", "scipy.linalg.cython_lapack")
"""Modules that every process needs: some only when it lowers a step, or compiles it."""

if __name__ == "__main__":
    for each in IMPORTED:
        import_module(each)
    job = _serve()
    _become(job)
    module, name = job["function"].split(":")
    getattr(import_module(module), name)(*job["arguments"])

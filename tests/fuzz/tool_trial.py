"""One seed of the tools: a generated run has to end soon, with a result or with one message."""

import contextlib
import re
import resource
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import runline
from fuzz import trial
from fuzz.invocations import TOOLS, Invocation, make_invocation
from fuzz.trial import Outcome, WrongError

MEMORY = 12 << 30
"""The bytes that a process of these trials may have."""
STEPS_EVERY = 11
"""Of so many seeds, one is a generated step, which is lowered and goes through `jaxpp-opt --validate`."""
FAMILIES = (
    *TOOLS,
    "generated step",
    "edited input",
    "mutated input",
    "smaller module",
    "bytecode",
    "passes",
    "arguments",
)
"""What the table at the end counts."""
_ERROR = re.compile(r"(?:^|: )error: (.*)")
_ODD = re.compile(
    r"Traceback|internal error|<[\w.]+ object at |see current operation|NoneType|KeyError|error: *$", re.M
)
"""What no message has."""


def serve(connection: Connection) -> None:
    """Tries each seed that arrives: the process of a worker."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        connection.send(run(connection.recv()).fields)


def run(seed: int) -> Outcome:
    """Tries a seed."""
    outcome, began = Outcome(seed), time.monotonic()
    try:
        if seed % STEPS_EVERY:
            _try(make_invocation(seed), outcome)
        else:
            _try_step(seed // STEPS_EVERY, outcome)
    except WrongError as error:
        outcome.wrong = str(error)
    except Exception as error:  # the boundary of a trial
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outcome.wrong = f"{type(error).__name__} ({Path(frame.filename).name}:{frame.lineno}): {str(error)[:600]}"
    outcome.seconds = time.monotonic() - began
    return outcome


def _try(invocation: Invocation, outcome: Outcome) -> None:
    outcome.words = [*invocation.words, str(invocation)]
    with tempfile.TemporaryDirectory(prefix="jaxpp-fuzz-") as folder, contextlib.chdir(folder), _temporary(folder):
        for name, data in invocation.files.items():
            Path(name).write_bytes(data)
        result = invocation.run()
        outcome.refused = judged(invocation, result)
        outcome.ran = not outcome.refused
        _check_output(invocation, result)


@contextlib.contextmanager
def _temporary(folder: str):
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def _try_step(seed: int, outcome: Outcome) -> None:
    """Gives a lowered step to `jaxpp-opt`."""
    outcome.words = ["generated step"]
    text = trial.lowered_text(seed)
    if text is None:
        outcome.refused = "error: it isn't lowered"
        return
    outcome.validated = True
    _try(Invocation("jaxpp-opt", ["--pipeline", "mpmd", "--validate"], text.encode(), words=outcome.words), outcome)


def judged(invocation: Invocation, result: runline.Result) -> str:
    """Returns the message of a run; "" if it ended well. Raises WrongError for a run that breaks a promise."""
    code, out, err = result.code, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
    found = [line for line in err.splitlines() if _ERROR.search(line)]
    if code not in (0, 1, 2):
        raise WrongError(f"exit code {code}: {err.strip()[-600:]}")
    if odd := _ODD.search(err):
        raise WrongError(f"exit code {code}, and a message has {odd[0]!r}: {err.strip()[-600:]}")
    if code == 0 and found:
        raise WrongError(f"exit code 0, and an error: {found[0]}")
    if code and not found and not (out and invocation.tool in ("jaxpp-bisect", "jaxpp-execute")):
        raise WrongError(f"exit code {code} without a message: {err.strip()[-600:]}")
    if code and out and invocation.tool in ("jaxpp-opt", "jaxpp-reduce", "jaxpp-schedule"):
        raise WrongError(f"exit code {code}, and there is output: {out[:200]}")
    if code == 2 and len(found) != 1:
        raise WrongError(f"exit code 2 with {len(found)} messages: {err.strip()[-600:]}")
    return found[0] if found else f"exit code {code}" if code else ""


def _check_output(invocation: Invocation, result: runline.Result) -> None:
    """Checks that a module that was printed can be read."""
    is_module = result.stdout.startswith((b"module {", b"module @", b"module attributes", b"#", b"ML\xefR"))
    prints = {"--mlir-elide-elementsattrs-if-larger", "--split-input-file", "--run-reproducer"}
    names = {word.partition("=")[0] for word in invocation.arguments}
    if result.code or not is_module or invocation.tool != "jaxpp-opt" or names & prints:
        return
    again = Invocation("jaxpp-opt", ["-"], result.stdout).run()
    if again.code and b"a module of VHLO" not in again.stderr:
        raise WrongError(f"its own output can't be read: {again.stderr.decode(errors='replace')[:400]}")

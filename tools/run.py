"""`jaxpp-run`: runs a script in several processes, and restarts processes that die.

The script trains with `jaxpp.healing.train`, which continues meanwhile. With --spares, more processes wait to take the
place of one that dies. Run the tool on the first host with the number of all processes; it starts as many of them as
--here says. Then run it on each other host, with --join:

    host0$ jaxpp-run --processes 8 --here 4 --listen host0:9876 train.py
    host1$ JAXPP_JOB_SECRET=... jaxpp-run --join host0:9876 --here 4 train.py

When a job hangs, `jaxpp-run --autopsy` on any of its hosts prints in a few seconds who waits for whom:

    host1$ jaxpp-run --autopsy          # all jobs of yours with a process on this host
    host1$ jaxpp-run --autopsy 4711     # the job of this process, or of this jaxpp-run

Exit codes: 0 when all processes have ended well; 1 when the job failed; 2 for bad usage; 129, 130 and 143 when
SIGHUP, Ctrl-C or SIGTERM ended it. Its processes then get SIGTERM, and SIGKILL 10 s later, or at a second signal.
"""

import argparse
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence

from jaxpp.tools.arguments import address, at_least
from jaxpp.tools.streams import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and return its exit code."""
    parser = argparse.ArgumentParser(
        "jaxpp-run",
        usage="jaxpp-run [options] SCRIPT [ARGUMENT...]",
        description=str(__doc__).splitlines()[0],
        epilog=str(__doc__).partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=at_least(1), metavar="N", help="how many, on all hosts")
    about = "with how many to go on; as many as there are to be"
    parser.add_argument("--least", type=at_least(1), metavar="N", help=about)
    about = "how many more wait, to take the place of one that dies; 0"
    parser.add_argument("--spares", type=at_least(0), default=0, metavar="N", help=about)
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="seconds that the others wait for one that is started anew"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="compile the step for each smaller number of processes first"
    )
    parser.add_argument("--here", type=at_least(1), metavar="N", help="how many of them on this host; all")
    about = "where the other hosts connect to"
    parser.add_argument("--listen", type=address, default="127.0.0.1:0", metavar="HOST:PORT", help=about)
    parser.add_argument("--join", type=address, metavar="HOST:PORT", help="take part in the job that was started there")
    about = "print what the job of process PID waits for, or all jobs on this host"
    parser.add_argument("--autopsy", type=at_least(1), nargs="?", const=0, metavar="PID", help=about)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT", help="of Python, and its arguments")
    options = parser.parse_args(argv)
    secret = os.environ.get("JAXPP_JOB_SECRET", "").encode()
    if (error := _wrong(options)) or (error := "" if secret or not options.join else "--join needs JAXPP_JOB_SECRET"):
        parser.error(error)
    if options.autopsy is not None:
        return _autopsy(options.autopsy or None)
    command = [sys.executable, *options.command]
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="jaxpp-programs-") as programs:
            os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", programs)
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
            plans = os.path.join(programs, "plans")
            return _run(options, secret or secrets.token_hex(32).encode(), command, plans)
    except (ConnectionError, OSError) as error:
        print(f"jaxpp-run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminated(number: int, _: object) -> None:
    """Ends this process as an error would: its child processes and the folder of their programs go first."""
    raise SystemExit(128 + number)


def _run(options: argparse.Namespace, secret: bytes, command: Sequence[str], plans: str) -> int:
    from jaxpp.healing.head import JobOptions
    from jaxpp.healing.launcher import Agent  # after the environment is set: JAX reads it when imported
    from jaxpp.runtime.processes.membership import ProcessError, watchdog_seconds

    try:
        watchdog_seconds()
    except ProcessError as error:
        raise OSError(str(error)) from None
    if options.join:
        host, _, port = options.join.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, int(port)))  # sends nothing: only picks the interface
            except OSError as error:
                raise OSError(f"--join {options.join}: {error}") from None
            own = str(probe.getsockname()[0])
        agent = Agent(secret, command, own, plans)
        agent.join(options.join, options.here or 1)
        return agent.run()
    host, _, port = options.listen.rpartition(":")
    count, spares = options.processes, options.spares
    job = JobOptions(count, options.least or count, options.wait, options.prepare, spares)
    try:
        agent = Agent(secret, command, host, plans)
        agent.begin(job, int(port), options.here or job.slots)
    except OSError as error:
        raise OSError(
            f"--listen {options.listen}: {error}; give a port that is free on an address of this host"
        ) from None
    return agent.run()


def _autopsy(pid: int | None) -> int:
    """Prints the autopsies of jobs; returns the exit code."""
    from jaxpp.runtime.processes.reporting import autopsies

    try:
        print("\n".join(autopsies(pid)))
    except LookupError as error:
        print(f"jaxpp-run: --autopsy: {error.args[0]}", file=sys.stderr)
        return 1
    return 0


def _wrong(options: argparse.Namespace) -> str:
    """Returns what is wrong with the options; "" if nothing is."""
    if options.autopsy is not None:
        return "--autopsy starts nothing, and takes no script" if options.command or options.processes else ""
    if not options.command:
        return "no script is given"
    if not options.command[0].startswith("-") and not os.path.exists(options.command[0]):
        return f"there is no script {printable(options.command[0])}"
    if not options.wait >= 0:
        return f"--wait {options.wait:g} is less than 0 seconds"
    if options.join:
        is_known = options.processes or options.least or options.prepare or options.spares
        return "--join knows --processes, --least, --spares and --prepare from there" if is_known else ""
    if not options.processes:
        return "give --processes, at least 1"
    if (options.least or 0) > options.processes:
        return f"--least {options.least} is not between 1 and --processes {options.processes}"
    if (options.here or 0) > options.processes + options.spares:
        spares = f" and --spares {options.spares} together" if options.spares else ""
        return f"--here {options.here} is not between 1 and --processes {options.processes}{spares}"
    return ""


def cli() -> None:
    """Runs the command `jaxpp-run`."""
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1":  # set by `jaxpp.tools`; here JAX's service notes each process
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.exit(main())


if __name__ == "__main__":
    cli()

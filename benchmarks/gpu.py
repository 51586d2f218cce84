"""The whole set on one GPU, in about ten minutes: a pipeline of four stages on one card, against plain `jax.jit`.

    python benchmarks/gpu.py                     # on the first GPU; without one small, which proves nothing
    python benchmarks/gpu.py --only step memory --width 4096 --batch 1

Every part runs in a process of its own (gpu_parts.py), with the card to itself, and prints rows of one table: what was
looked at, what was found, and what is asked. A part that dies or takes too long is a row that says so.

    tests       tests of models, all stages on the card: the results are those of `jax.jit`
    schedules   every schedule of the library, four stages on the card: losses and gradients are those of `jax.jit`
    step        a GPT in bfloat16 under 1F1B: the time of its step over that of plain accumulation, by turns
    memory      its peak on the card against what the compiled programs were said to take
    timeline    from a profile: for what share of the step the card works
    offload     activations in the host's memory: the time at twice the batch, and 500 steps without a NaN
    processes   two processes that share the card, by each transport, against one
    dlpack      an array of a step's result, given away through DLPack and taken back, without a copy
    options     XLA's options that matter, each against the default
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from shared import parser, show

PARTS = ("tests", "schedules", "step", "memory", "timeline", "offload", "processes", "dlpack", "options")
SIZES = {"layers": 24, "width": 2048, "heads": 16, "sequence": 2048, "batch": 2, "microbatches": 8, "repeat": 5}
SMALL = {"layers": 4, "width": 64, "heads": 4, "sequence": 64, "batch": 2, "microbatches": 8, "repeat": 5}
SHOW = """
import jax, json
device = jax.devices()[0]
print(json.dumps([device.platform, device.device_kind, jax.__version__, device.client.platform_version]))
"""


def main() -> None:
    """Prints the table, part after part."""
    flags = parser(__doc__, **dict.fromkeys(SIZES, 0), seconds=300)
    flags.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = flags.parse_args()
    shown = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=False)
    if shown.returncode:
        sys.exit(f"JAX finds no device:\n{shown.stderr.strip().splitlines()[-1]}")
    platform, kind, version, driver = json.loads(shown.stdout.splitlines()[-1])
    sizes = {name: getattr(options, name) or (SMALL if platform == "cpu" else SIZES)[name] for name in SIZES}
    print(f"{kind}, jax {version}, {driver.splitlines()[0]}; {', '.join(f'{k} {v}' for k, v in sizes.items())}")
    if platform == "cpu":
        print("There is no GPU: these rows show that the script runs, and nothing of a GPU.")
        os.environ["JAX_PLATFORMS"] = "cpu"  # without which no transport but JAX's own reaches CPUs
    show(("part", "what", "found", "asked", "s"), rows_of(options.only, sizes, options.seconds), words=2)


def rows_of(parts: Sequence[str], sizes: dict[str, int], seconds: float) -> Iterator[Sequence[str]]:
    """Yields the rows of all parts."""
    with tempfile.TemporaryDirectory() as cache:
        for part in parts:
            begin = time.perf_counter()
            found = run(part, sizes, seconds, cache)
            took = f"{time.perf_counter() - begin:.0f}"
            yield from ((part, *row, "" if number else took) for number, row in enumerate(found))


def run(part: str, sizes: dict[str, int], seconds: float, cache: str) -> list[list[str]]:
    """Returns the rows of a part: [what, found, asked] each."""
    script = Path(__file__).with_name("gpu_parts.py")
    command = [sys.executable, str(script), part, json.dumps({**sizes, "seconds": seconds})]
    # What is compiled once serves all parts. A part has nearly all of the card, where JAX would give it three quarters;
    # processes that share a card take what they need, not most of it at once.
    variables = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if part == "processes":
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    elif not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & os.environ.keys():
        variables["XLA_CLIENT_MEM_FRACTION"] = "0.92"
    environment = {**os.environ, **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            out, errors = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the processes that it has started
            out, errors = child.communicate()
            errors = f"not finished after {seconds:.0f} s"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
    if child.returncode:
        last = (errors.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        rows.append(["died", last.replace("|", "/")[:200], ""])
    return rows


if __name__ == "__main__":
    main()

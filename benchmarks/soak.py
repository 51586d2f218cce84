"""A long training in several processes: do the losses stay those of plain jax.jit, and does memory stay flat?

    python benchmarks/soak.py [--processes 4] [--steps 500] [flags of examples/gpt.py]

Runs `examples/gpt.py --check` and prints what it prints, with the resident memory of every process each tenth of the
way: over the second half it may grow by a hundredth. Linux only.
"""

import argparse
import math
import re
import subprocess
import sys
from pathlib import Path

GPT = Path(__file__).parents[1] / "examples" / "gpt.py"
GROWTH = 1.01
DIFFERENCE = 1e-3
"""Of a loss, relative. Roundings add up: what gpt.py allows is for its twenty steps."""


def main() -> int:
    """Train; returns 1 when the losses differ, or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    options, others = parser.parse_known_args()
    flags = ["--processes", str(options.processes), "--steps", str(options.steps), "--check", *others]
    every = max(1, options.steps // 10)
    sizes: list[list[int]] = []
    difference = math.inf
    with subprocess.Popen([sys.executable, "-u", str(GPT), *flags], stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        for line in training.stdout:
            print(line, end="")
            found = re.match(r"  losses +(\S+)", line)
            difference = float(found[1]) if found else difference
            step = re.match(r"  step +(\d+)", line)
            if step and int(step[1]) % every == 0 and len(sizes) < 10:
                sizes.append([resident(child) for child in children(training.pid)])
                print(
                    f"    resident MiB by process: {' '.join(f'{size / 2**20:.0f}' for size in sizes[-1])}", flush=True
                )
    grown = [last / first for first, last in zip(sizes[len(sizes) // 2], sizes[-1], strict=True)]
    print(f"memory at the end over that after half of the steps: {' '.join(f'{each:.3f}' for each in grown)}")
    return int(max(grown) > GROWTH or not difference <= DIFFERENCE)


def children(process: int) -> list[int]:
    """The processes that a process started, in order."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    return sorted(map(int, found.split()))


def resident(process: int) -> int:
    """The resident memory of a process, in bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(kilobytes) * 1024


if __name__ == "__main__":
    sys.exit(main())

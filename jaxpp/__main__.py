"""`python -m jaxpp doctor`: checks this installation and this host (docs/doctor.md)."""

import argparse
import json
from collections.abc import Sequence

from jaxpp.doctor.checks import examine
from jaxpp.doctor.finding import OK, PROBLEM, Finding
from jaxpp.tools import streams
from jaxpp.tools.arguments import address, at_least


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit code."""
    parser = argparse.ArgumentParser("python -m jaxpp", description="commands of jaxpp", allow_abbrev=False)
    about = "check this installation and this host"
    codes = "Exit codes: 0 if jaxpp works here; 1 if there is a problem; 2 for bad usage."
    doctor = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("doctor", help=about, epilog=codes)
    doctor.add_argument("--json", action="store_true", help="print the results as JSON")
    about = "of process 0 of the job to run; JAX_COORDINATOR_ADDRESS, or 127.0.0.1:9876"
    doctor.add_argument("--coordinator", type=address, metavar="HOST:PORT", help=about)
    doctor.add_argument("--processes", type=at_least(1), default=2, metavar="N", help="of that job, on all hosts; 2")
    about = "the time limit of each check that may hang; 60"
    doctor.add_argument("--seconds", type=at_least(1), default=60, metavar="S", help=about)
    options = parser.parse_args(argv)
    found: list[Finding] = []
    for finding in examine(options.coordinator or "", options.processes, options.seconds):
        found.append(finding)
        if not options.json:
            print(shown(finding), flush=True)
    healthy = all(finding.status != PROBLEM for finding in found)
    if options.json:
        print(json.dumps({"healthy": healthy, "checks": [finding._asdict() for finding in found]}, indent=2))
    return 0 if healthy else 1


def shown(finding: Finding) -> str:
    """Returns the line of a result, and the line of its remedy."""
    line = f"{finding.status:8} {finding.name:20} {finding.found}"
    return line if finding.status == OK else f"{line}\n{'':8} {'remedy':20} {finding.remedy}"


if __name__ == "__main__":
    streams.finish(main)

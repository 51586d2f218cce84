"""What a process that compiles for long says on stderr, as it may on a busy machine, is none of a test's business."""

import re

# "jaxpp: process 3: compiling stage programs: 0 of 7 after 10 s"; Ray puts the process of an actor before it.
_PROGRESS = re.compile(r"\bjaxpp: .*: (all \d+|\d+ of \d+) after \d+ s\b")


def without_progress(stderr: str) -> str:
    """The other lines of what a process said on stderr."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not _PROGRESS.search(line))

"""The result of one check."""

from typing import NamedTuple

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""The statuses of a Finding. Only a PROBLEM keeps jaxpp from working."""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        name: the thing that was checked.
        found: what was found, in one line.
        status: OK, NOTE or PROBLEM.
        remedy: what to do about a NOTE or a PROBLEM, in one line.
    """

    name: str
    found: str
    status: str = OK
    remedy: str = ""


def in_one_line(error: object) -> str:
    """Returns the text of an error in one line, without the end of a long one."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}..."

"""Expected messages in comments, for `jaxpp-opt --verify-diagnostics`, as `mlir-opt` has them.

    // expected-error@+1 {{operand #0 must be}}

It expects an error at the next line whose text has these words. `@-2`, `@above` and `@below` name other lines.
`@unknown` stands for a message without a line. Without `@` the comment's own line is meant.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_COMMENT = re.compile(
    r"expected-(?P<severity>error|warning|note|remark)(?P<regex>-re)?"
    r"(?:@(?P<place>[+-]\d+|above|below|unknown))?\s*(?P<count>\d{1,3})?\s*\{\{(?P<text>(?:\{\{.*?\}\}|.)*?)\}\}"
)
_BEGINNING = re.compile(r"expected-(error|warning|note|remark)\b")
_MESSAGE = re.compile(
    r"(?P<file>.*?)(?::(?P<line>\d+):\d+)?: (?P<severity>error|warning|note|remark): (?P<text>.*)", re.DOTALL
)


@dataclass(frozen=True)
class _Expectation:
    """An expected message: the lines of its comment and of its place (0: unknown), its severity, text and pattern."""

    comment: int
    line: int
    severity: str
    text: str
    pattern: re.Pattern[str]

    def fits(self, line: int, severity: str, text: str) -> bool:
        """Whether a message is this one."""
        return (line, severity) == (self.line, self.severity) and self.pattern.search(text) is not None


class Expectations:
    """The expected messages of an input with this text and this name."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._expected: list[_Expectation] = []
        self._wrong: list[str] = []
        for number, line in enumerate(text.split("\n"), 1):
            rest = _COMMENT.sub("", line)
            try:
                self._expected += _expectations(number, line)
            except re.error:
                rest = line
            if found := _BEGINNING.search(rest):
                self._wrong.append(f"{name}:{number}:1: error: not understood: {rest[found.start() :].strip()}")

    def compared(self, messages: Sequence[str]) -> list[str]:
        """Returns an error for each expected message that is missing, and for each message that is not expected."""
        left, wrong = list(self._expected), list(self._wrong)
        for message in messages:
            found = _MESSAGE.match(message)
            if found is None or (found["severity"] == "note" and not any(e.severity == "note" for e in self._expected)):
                continue
            line = int(found["line"] or 0) if found["file"] == self._name else 0
            fitting = next((each for each in left if each.fits(line, found["severity"], found["text"])), None)
            if fitting is None:
                wrong.append(f"{message}\n  no comment expects it: // expected-{found['severity']} {{{{...}}}}")
            else:
                left.remove(fitting)
        wrong += [
            f"{self._name}:{each.comment}:1: error: expected {each.severity} was not reported: {each.text}"
            for each in left
        ]
        return wrong


def _expectations(number: int, line: str) -> list[_Expectation]:
    """Returns the messages that a line expects, one for each of its count. Raises re.error for a bad expression."""
    made: list[_Expectation] = []
    for found in _COMMENT.finditer(line):
        place = found["place"] or "+0"
        where = 0 if place == "unknown" else number + ({"above": -1, "below": 1}.get(place) or int(place))
        # Plain text and expressions in turn.
        parts = re.split(r"\{\{(.*?)\}\}", found["text"]) if found["regex"] else [found["text"]]
        pattern = "".join(part if index % 2 else re.escape(part) for index, part in enumerate(parts))
        one = _Expectation(number, where, found["severity"], found["text"], re.compile(pattern))
        made += [one] * int(found["count"] or 1)
    return made

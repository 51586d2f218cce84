"""Inputs that are nearly right: a few bytes or words of a text are changed, lost, added or repeated."""

import random
import re
from collections.abc import Sequence

WORDS = (
    *("tensor<", "f32", "i64", "bf16", "-1", "0", "1", "2", "7", "9" * 20, "@mesh", "@main", "@nowhere", "{", "}", "("),
    *(")", "[", "]", "<", ">", "%a", "?", '"', "\\ff", "\\0A", "array<i64: ", "loc(", "#", ",", "=", "é", "\x00", "\n"),
)
"""What is put into texts."""
NUMBERS = ("-1", "0", "1", "2", "3", "4", "7", "64", "99999999999999999999", "2147483648", "1.5", "nan", "0x7F", "-0")
"""What replaces a number."""
_TOKEN = re.compile(r'"[^"\n]*"|[%@#!]?[\w.$-]+|->|\n|[^\w\s]')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def mutated(draw: random.Random, data: bytes, start: int = 0) -> bytes:
    """Returns data with a few bytes changed, lost, added or repeated, from `start` on."""
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(start, len(result) + 1)
        other = draw.randrange(start, len(result) + 1)
        match draw.randrange(6):
            case 0:
                result[at : at + 1] = bytes([draw.randrange(256) if start else draw.randrange(32, 127)])
            case 1:
                del result[at : at + draw.randrange(1, 8)]
            case 2:
                result[at:at] = draw.choice(WORDS).encode()
            case 3:
                result[at:at] = result[other : other + draw.randrange(1, 40)]
            case 4:
                result[at : at + 4] = result[other : other + 4]
            case _:
                del result[at if draw.random() < 0.2 else len(result) :]
    return bytes(result)


def edited(draw: random.Random, text: str) -> str:
    """Returns a text with a few words or lines changed, lost, repeated or moved; most such texts can be read."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice(_EDITS)(draw, text)
    return text


def _word(draw: random.Random, text: str) -> str:
    """Replaces a word by another word of the same kind, such as one value by another."""
    found = list(_TOKEN.finditer(text))
    if not found:
        return text
    one = draw.choice(found)
    first, is_name = one[0][0], one[0][0].isalpha()
    alike = {each[0] for each in found if each[0][0] == first or (is_name and each[0][0].isalpha())}
    return text[: one.start()] + draw.choice(sorted(alike)) + text[one.end() :]


def _every(draw: random.Random, text: str) -> str:
    """Replaces each occurrence of a word, so that types still agree."""
    words = sorted(set(_TOKEN.findall(text)) - {"\n"})
    if not words:
        return text
    one, other = draw.choice(words), draw.choice(words)
    return re.sub(rf"(?<![\w.]){re.escape(one)}(?![\w.])", lambda _: other, text)


def _number(draw: random.Random, text: str) -> str:
    """Replaces a number, or all that are equal to it."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    one, other = draw.choice(found), draw.choice(NUMBERS)
    if draw.random() < 0.5:
        return re.sub(rf"(?<![\w.]){re.escape(one[0])}(?![\d.])", lambda _: other, text)
    return text[: one.start()] + other + text[one.end() :]


def _lose(draw: random.Random, text: str) -> str:
    """Drops a part between brackets, such as an attribute, or a word."""
    found = list(re.finditer(r"\{[^{}]*\}|\([^()]*\)|, [\w.]+ = [^,{}]+|[\w.]+ = [^,{}]+, |\w+", text))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start()] + text[one.end() :]


def _line(draw: random.Random, text: str) -> str:
    """Drops, repeats or moves some lines."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    first = draw.randrange(len(lines))
    end = first + draw.choice((1, 1, 1, 2, 10))
    some, to = lines[first:end], draw.randrange(len(lines) + 1)
    match draw.randrange(3):
        case 0:
            del lines[first:end]
        case 1:
            lines[to:to] = some
        case _:
            del lines[first:end]
            lines[to:to] = some
    return "".join(lines)


def _join(draw: random.Random, text: str) -> str:
    """Puts a word at some place."""
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(WORDS) + text[at:]


_EDITS = (_word, _word, _every, _number, _number, _lose, _lose, _line, _line, _join)


def rearranged(draw: random.Random, items: Sequence[str], more: Sequence[str]) -> list[str]:
    """Returns a list with some items lost, repeated, moved, or put in from `more`."""
    result = list(items)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(result) + 1)
        match draw.randrange(5):
            case 0:
                del result[at : at + draw.choice((1, 1, 3))]
            case 1 if result:
                result.insert(at, draw.choice(result))
            case 2 if result:
                result.insert(at, result.pop(draw.randrange(len(result))))
            case 3:
                del result[at if draw.random() < 0.5 else len(result) :]
            case _:
                result.insert(at, draw.choice(more))
    return result

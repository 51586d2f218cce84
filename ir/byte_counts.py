"""Numbers of bytes, as users write them: `70GiB`, `500MB`, `4096B`."""

import re
from typing import Final

_FORM = re.compile(r"([0-9]{1,99}(?:\.[0-9]{1,99})?) ?(?:([KMGT]i?)?B)?")
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


UNITS: Final = "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, with a capital first"
"""The units as users write them."""


def parse_bytes(text: str) -> int | None:
    """Returns the number of bytes in `text`, with a unit or without; None for any other text."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    number, unit = found.groups()
    scale = _UNITS.get(unit, 1)
    return int(number) * scale if number.isdecimal() else int(float(number) * scale)

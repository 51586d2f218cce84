"""Formats quantities for people: `30.4 GiB`, `3.81 TFLOP`, `174 B`, and tables of them."""

from collections.abc import Sequence

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float) -> str:
    """Formats bytes in powers of 1024: `4.00 KiB`."""
    return _scaled(count, 1024, _BYTES)


def bytes_texts(counts: Sequence[float]) -> list[str]:
    """Formats all byte counts in the unit of the largest: `30.40 GiB`, `0.21 GiB`."""
    most = max(counts, default=0)
    power = max((power for power in range(len(_BYTES)) if most >= 1024**power), default=0)
    digits = 2 if power else 0
    return [f"{count / 1024**power:.{digits}f} {_BYTES[power]}" for count in counts]


def flops_text(count: float) -> str:
    """Formats FLOPs in powers of 1000: `3.81 TFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"))


def count_text(count: float) -> str:
    """Formats a count in thousands, millions or billions (10^9), as in names of models: `1.24 k`, `7.00 M`, `174 B`."""
    return _scaled(count, 1000, ("", "k", "M", "B", "T")).rstrip()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], total: bool = False) -> list[str]:
    """Returns the lines of a table with right-aligned columns. If `total`, a rule separates the last row."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in (columns, *rows)]
    return [*lines[:-1], "-" * len(lines[0]), lines[-1]] if total else lines


def time_text(seconds: float) -> str:
    """Formats a time: `3.1 h`, `1.25 s`, `6.60 ms`, `12.0 us`. Days, hours and minutes begin at two."""
    for unit, scale, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 2), ("s", 1.0, 1), ("ms", 1e-3, 1)):
        if seconds >= scale * least:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Formats with three digits, in the largest unit that leaves at least 1; in the smallest unit as a whole number."""
    power = 0
    while round(value, 0 if power else 9) >= base and power < len(units) - 1:
        value /= base
        power += 1
    digits = 0 if power == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[power]}"

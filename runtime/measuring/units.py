"""Numbers as people read them: `30.4 GiB`, `3.81 TFLOP`, `174 B`."""

from collections.abc import Sequence


def bytes_text(count: float) -> str:
    """Format bytes in powers of 1024: `4.00 KiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(count: float) -> str:
    """Format FLOPs in powers of 1000: `3.81 TFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"))


def count_text(count: float) -> str:
    """Format a count in thousands, millions or billions (10^9), as in names of models: `1.24 k`, `7.00 M`, `174 B`."""
    return _scaled(count, 1000, ("", "k", "M", "B", "T")).rstrip()


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Format with three digits, in the largest unit that leaves at least 1; in the smallest unit as a whole number."""
    power = 0
    while round(value, 0 if power else 9) >= base and power < len(units) - 1:
        value /= base
        power += 1
    digits = 0 if power == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[power]}"

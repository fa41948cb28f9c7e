"""Amounts as Kubernetes writes them."""

from __future__ import annotations

__all__ = ["cores", "gigabytes", "thousandths"]


def cores(number: float) -> str:
    """CPU cores, to a thousandth: 2 is `2`, 0.1 is `100m`."""
    return thousandths(number)


def gigabytes(number: float) -> str:
    """GB of 10⁹ bytes, as Azure counts: 4 is `4G`, 0.5 is `500M`."""
    megabytes = max(1, round(number * 1000))
    return f"{megabytes // 1000}G" if megabytes % 1000 == 0 else f"{megabytes}M"


def thousandths(number: float) -> str:
    """A number to a thousandth, in `m` where it is not whole."""
    milli = max(1, round(number * 1000))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"

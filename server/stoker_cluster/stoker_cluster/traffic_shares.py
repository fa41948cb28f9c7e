"""The shares of an endpoint's versions: percentages, and the exact weights that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from stoker.errors import InvalidSettings

WHOLE: Final = 10_000
"""The sum of weights, which are hundredths of a percent."""

_HUNDREDTHS: Final = 100


def effective_weights(traffic: Mapping[str, float], default: str | None) -> dict[str, int]:
    """Return the weight of each version in hundredths of a percent, without rounding.

    Percentages need not add up to 100: what is left goes to the default version, as on Azure.

    Args:
        default: The default version; None is the first.

    Raises:
        InvalidSettings: There are no versions, the default is none of them, they are more than 100 percent together,
            or one is finer than a hundredth of a percent.
    """
    if not traffic:
        raise InvalidSettings("traffic has no versions; give their percentages, for instance a=80,b=20")
    leading = next(iter(traffic)) if default is None else default
    if leading not in traffic:
        raise InvalidSettings(
            f"traffic has no {leading}, the default version; name all versions, those with 0 too"
        )
    shares = {version: _hundredths(version, share) for version, share in traffic.items()}
    left = WHOLE - sum(shares.values())
    if left < 0:
        raise InvalidSettings(
            f"traffic adds up to {Decimal(WHOLE - left) / _HUNDREDTHS} percent; have at most 100"
        )
    shares[leading] += left
    return shares


def _hundredths(version: str, share: float) -> int:
    # The shortest text that means the number: 33.33, which no float is, is meant as it is written.
    exact = Decimal(str(share)) * _HUNDREDTHS
    if not exact.is_finite() or not 0 <= exact <= WHOLE or exact != int(exact):
        raise InvalidSettings(
            f"traffic of {version} is {share}; have percentages from 0 to 100 with at most two digits after the point"
        )
    return int(exact)

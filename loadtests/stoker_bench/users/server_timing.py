"""The `Server-Timing` header: the stages of a request as the server measured them.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

__all__ = ["stage_times_ms"]


def stage_times_ms(header: str) -> dict[str, float]:
    """Return milliseconds by stage from a value such as `parse;dur=0.12, compute;dur=1.5`.

    Entries without a readable duration are left out.
    """
    times = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    times[name] = float(value.strip().strip('"'))
                except ValueError:
                    continue
    return times

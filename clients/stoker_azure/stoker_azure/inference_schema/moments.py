"""Dates and times out of text: any text that python-dateutil reads where it is installed, else ISO 8601."""

from __future__ import annotations

import datetime as dt
import importlib
from typing import Final

__all__ = ["DATETIME_FORMAT", "DATE_FORMAT", "TIME_FORMAT", "parse_date", "parse_datetime", "parse_time"]

DATE_FORMAT: Final = "%Y-%m-%d"
DATETIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S.%f %z"
TIME_FORMAT: Final = "%H:%M:%S.%f %z"


def parse_date(text: str) -> dt.date:
    """Return a date.

    Raises:
        ValueError: The text is not one in the form `2026-01-31`.
    """
    return dt.datetime.strptime(text, DATE_FORMAT).date()


def parse_datetime(text: str) -> dt.datetime:
    """Return a date with a time; without a zone where the text has none.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        parser = importlib.import_module("dateutil.parser")
    except ImportError:
        return dt.datetime.fromisoformat(_without_blank_before_zone(text))
    moment: dt.datetime = parser.parse(text)
    return moment


def parse_time(text: str) -> dt.time:
    """Return a time; without a zone where the text has none.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        parser = importlib.import_module("dateutil.parser")
    except ImportError:
        return dt.time.fromisoformat(_without_blank_before_zone(text))
    moment: dt.datetime = parser.parse(text)
    return moment.timetz()


def _without_blank_before_zone(text: str) -> str:
    # Schemas show their samples with one.
    return text.replace(" +", "+").replace(" -", "-")

"""When pinned packages were uploaded: pins that fit nothing today are resolved with the packages of their time.

`tensorflow==2.4.0` resolved today gets a version of protobuf that it cannot import. Resolved without later uploads,
it gets a compatible one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from stoker.environments.specification import Specification

_AFTER_A_PIN: Final = timedelta(days=90)
"""An environment is assumed to date from this long after its newest pin: other packages may be that new."""
_INDEX_VARIABLES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_PYPI: Final = "https://pypi.org/simple"
_JSON: Final = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_S: Final = 30.0


def date_of_pins(
    specification: Specification, uploaded: Callable[[str, SpecifierSet], date | None] | None = None
) -> date | None:
    """The date as of which an environment was probably built; None if no pin tells.

    Args:
        specification: The requirements; versions of Azure's own packages count too.
        uploaded: Returns the upload date of a pinned version of a package, of the newest for `==1.13.*`.
    """
    dates = [(uploaded or upload_date)(name, pin) for name, pin in _pins(specification)]
    known = [day for day in dates if day is not None]
    return max(known) + _AFTER_A_PIN if known else None


def _pins(specification: Specification) -> Iterator[tuple[str, SpecifierSet]]:
    for entry in specification.entries:
        for text in (entry.line, entry.text):
            try:
                pinned = Requirement(text)
                (clause,) = pinned.specifier
                # 2.* says too little: it would be dated today.
                if clause.operator == "==" and not re.fullmatch(r"[0-9]+\.\*", clause.version):
                    yield pinned.name, pinned.specifier
                    break
            except (InvalidRequirement, ValueError):
                continue


def upload_date(name: str, pin: SpecifierSet) -> date | None:
    """The upload date of the first file of the newest pinned version; None if the index does not tell."""
    index = next((found for one in _INDEX_VARIABLES if (found := os.environ.get(one))), _PYPI)
    try:
        request = _request(f"{index.rstrip('/')}/{canonicalize_name(name)}/")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # http alone
            files: list[dict[str, Any]] = json.load(answer)["files"]
        times = [
            (version, datetime.fromisoformat(file["upload-time"]))
            for file in files
            if "upload-time" in file and (version := _version_of(str(file["filename"]))) and version in pin
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    newest = max((version for version, _ in times), default=None)
    return min(time for version, time in times if version == newest).date() if times else None


def _request(address: str) -> urllib.request.Request:
    """A request for JSON; credentials in the URL become a header, as in pip."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(  # noqa: S310  # http alone
        urlunsplit(parts._replace(netloc=host)), headers={"Accept": _JSON}
    )
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme} is no address of an index")
    if at:
        request.add_header("Authorization", "Basic " + base64.b64encode(unquote(user).encode()).decode())
    return request


def _version_of(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None

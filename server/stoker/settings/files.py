"""Reading files with settings and samples: their size, the nesting of JSON and the length of numbers are bounded.

Parsers do not bound them; no file with settings comes near.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import InvalidSettings
from stoker.system.durable import read_regular

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES: Final = 4 << 20
"""Maximum size of a file with settings."""
MOST_SAMPLE_BYTES: Final = 256 << 20
"""Maximum size of a file with a sample request, and of the arrays in it."""
MOST_NUMBER: Final = 1 << 64
"""Numbers are smaller than this, and larger than its negative."""
MOST_LEVELS: Final = 100
TOO_DEEP: Final = f"it is nested more than {MOST_LEVELS} levels deep"
TOO_LARGE: Final = "a number has more than 64 bits; put it into quotes if it is a text"


def settings_text(file: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file with settings: a regular file, or one below /dev that its operator names.

    Raises:
        OSError: It cannot be read, is no regular file, or is longer than `most_bytes`.
        UnicodeDecodeError: It is not UTF-8.
    """
    content = (
        _read_device(file, most_bytes) if file.is_relative_to("/dev") else read_regular(file, most_bytes)
    )
    # Editors on Windows begin files with a byte-order mark.
    return content.decode("utf-8-sig")


def read_sample_file(file: Path) -> bytes:
    """Return the content of a file with a sample request.

    Raises:
        OSError: It cannot be read, is no regular file, or is longer than `MOST_SAMPLE_BYTES`.
    """
    return read_regular(file, MOST_SAMPLE_BYTES)


def _read_device(file: Path, most_bytes: int) -> bytes:
    """Read standard input or a pipe of the shell, such as `--config <(command)`."""
    with file.open("rb") as opened:
        content = opened.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(file))
    return content


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none, it is nested too deeply, or a number is too large.
    """

    def whole(digits: str) -> int:
        if len(digits) > len(str(-MOST_NUMBER)) or abs(number := int(digits)) >= MOST_NUMBER:
            raise ValueError(TOO_LARGE)
        return number

    try:
        value = json.loads(text, parse_int=whole)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level, levels = [value], 0
    while level := [inner for one in level for inner in _within(one)]:
        levels += 1
        if levels > MOST_LEVELS:
            raise ValueError(TOO_DEEP)
    return value


def _within(value: Any) -> list[Any]:
    """The lists and objects directly within a list or an object."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]


def read_json(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    try:
        content = parse_json(settings_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    except ValueError as error:
        raise InvalidSettings(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidSettings(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content

"""Files that `stoker score` sends unchanged: images, and bodies of any media type."""

from __future__ import annotations

import mimetypes
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stoker.commands.running_server import on_loopback
from stoker.wire.image_files import begins_like_an_image

_MEDIA_TYPES: Final = {".npy": "application/x-npy", ".webp": "image/webp"}
_UNKNOWN_TYPE: Final = "application/octet-stream"
_TIMEOUT_S: Final = 60.0
_FIRST_BYTES: Final = 16


def send_files(files: Sequence[Path], uri: str, key: str | None, ca_file: Path | None) -> Any:
    """Send files unchanged, several as a form; returns the answer.

    Args:
        ca_file: Authorities (PEM) to trust instead of the system's; it can be read.

    Raises:
        StokerClientError: The server answers with an error, or cannot be reached.
    """
    import httpx

    from stoker_client import ConnectionFailed
    from stoker_client.answers import Reply, decode_json, error_of

    content: dict[str, Any] = {
        "files": [("file", (file.name, file.read_bytes(), media_type_of(file))) for file in files]
    }
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if len(files) == 1:
        content = {"content": files[0].read_bytes()}
        headers["content-type"] = media_type_of(files[0])
    trusted = httpx.create_ssl_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
    # A proxy does not reach this machine's loopback.
    with httpx.Client(verify=trusted, trust_env=not on_loopback(uri), timeout=_TIMEOUT_S) as http:
        try:
            response = http.post(uri, headers=headers, **content)
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the server at {uri} cannot be reached: {error}") from error
    reply = Reply(response.status_code, response.content, response.headers)
    if (refused := error_of(reply)) is not None:
        raise refused
    return decode_json(reply)


def media_type_of(file: Path) -> str:
    """Return the media type of a file, by its name."""
    return _MEDIA_TYPES.get(file.suffix.lower()) or mimetypes.guess_type(file.name)[0] or _UNKNOWN_TYPE


def is_image(file: Path) -> bool:
    """Whether a file is an image by its name, or by its first bytes."""
    if media_type_of(file).startswith("image/"):
        return True
    with file.open("rb") as content:
        return begins_like_an_image(content.read(_FIRST_BYTES))

"""The images of multipart forms.

The parser of the standard library takes quadratic time for the parameters of a header, so it is shown few.
"""

from __future__ import annotations

from email.message import Message
from email.parser import BytesHeaderParser
from typing import Final

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody

__all__ = ["form_images"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 8 << 10
# Of lines and of parameters; browsers and libraries send three or four.
_MAX_FIELDS: Final = 100


def form_images(body: bytes, content_type: bytes, max_parts: int) -> list[bytes]:
    """Return the image parts of a multipart form, in order: those with an image's type or with a file name.

    Args:
        body: The form.
        content_type: The value of its `Content-Type`, which names the boundary.
        max_parts: How many parts it may have, images or not.

    Raises:
        MalformedBody: It is no form, is cut short, or a part's headers cannot be read or are longer than 8 KiB.
        BodyTooLarge: It has too many parts.
        InvalidInput: None of them is an image.
    """
    boundary = _boundary(content_type)
    if not boundary:
        raise MalformedBody("The Content-Type multipart/form-data names no boundary.")
    # A boundary stands at the beginning of a line; the first one may stand at the very beginning.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"), max_parts + 2)
    if len(pieces) == max_parts + 3:
        raise BodyTooLarge(f"The multipart form has more than {max_parts} parts.")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise MalformedBody("The multipart form is cut short: its last boundary is missing.")
    images = []
    for piece in pieces[1:-1]:
        end = piece.find(_END_OF_HEAD, 0, _MAX_HEAD_BYTES)
        if end < 0:
            raise MalformedBody(
                f"A part of the multipart form has no end of its headers within {_MAX_HEAD_BYTES >> 10} KiB."
            )
        # What follows the boundary in its line is padding.
        if _announces_image(piece[:end].partition(b"\r\n")[2]):
            images.append(piece[end + len(_END_OF_HEAD) :])
    if not images:
        raise InvalidInput("The multipart form holds no image: no part has an image's type or a file name.")
    return images


def _boundary(content_type: bytes) -> str | None:
    if not _is_quickly_read(content_type):
        raise MalformedBody("The Content-Type has too many parameters.")
    header = Message()
    header["content-type"] = content_type.decode("latin-1")
    try:
        return header.get_boundary()
    except Exception as error:
        raise MalformedBody("The parameters of the Content-Type cannot be read.") from error


def _announces_image(head: bytes) -> bool:
    if not _is_quickly_read(head):
        raise MalformedBody("The headers of a part of the multipart form have too many lines or parameters.")
    try:
        part = BytesHeaderParser().parsebytes(head)
        return part.get_content_maintype() == "image" or part.get_filename() is not None
    except Exception as error:
        # The parser of the standard library raises whatever odd parameters drive it to.
        raise MalformedBody("The headers of a part of the multipart form cannot be read.") from error


def _is_quickly_read(head: bytes) -> bool:
    """Whether the standard library reads a head in less than a millisecond."""
    fields = head.count(b";") + max(head.count(b"\n"), head.count(b"\r"))
    return len(head) <= _MAX_HEAD_BYTES and fields <= _MAX_FIELDS

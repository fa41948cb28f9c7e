"""Images to rows: JPEG, PNG and WebP, alone, in a multipart form, or as base64 in JSON.

Pillow is imported for the first `ImageReader`, so frontends without image models do not load it. No image is trusted:
the sizes in its header are checked before anything is decoded.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import (
    BodyTooLarge,
    ImageTooLarge,
    InvalidInput,
    InvalidSettings,
    MalformedBody,
    UnsupportedEncoding,
    cut,
)
from stoker.settings.image_input import ImageInput, Layout
from stoker.tensors import Signature, TensorSpec
from stoker.wire.image_files import ImageFile, begins_like_an_image, not_an_image, read_image_file
from stoker.wire.jpegs import decode_jpeg, jpeg_library
from stoker.wire.json_bodies import parse_document
from stoker.wire.resizing import resize_image, resize_pixels
from stoker.wire.scoring import decode_document

if TYPE_CHECKING:
    from PIL.Image import Image


def value_table(image: ImageInput, spec: TensorSpec) -> np.ndarray:
    """Return the value of each of the 256 levels of each channel: `[channels, 256]` in the input's dtype."""
    levels = np.arange(256, dtype=np.float64)
    if image.invert:
        levels = levels[::-1]
    scale = image.scale or (255.0 if spec.kind == "f" else 1.0)
    mean = np.reshape(image.mean or 0.0, (-1, 1))
    std = np.reshape(image.std or 1.0, (-1, 1))
    values = np.broadcast_to((levels / scale - mean) / std, (image.channels, 256))
    return np.ascontiguousarray(values.astype(spec.numpy_dtype))


class PixelValues:
    """Writes the pixels of images into rows of one input, by looking up a number for each level of each channel.

    `take` with `clip`, which no level needs, writes into its target; otherwise it would fill a buffer first.
    """

    def __init__(self, image: ImageInput, spec: TensorSpec, layout: Layout) -> None:
        self._table = value_table(image, spec)
        self._planes = layout == "chw" and image.channels > 1
        self._shape = (image.height, image.width, image.channels)
        self._flat = self._table.ravel()
        channels_differ = bool((self._table != self._table[0]).any())
        self._starts = np.arange(image.channels, dtype=np.uint16) * 256 if channels_differ else None
        self._keeps_levels = spec.dtype == "uint8" and bool((self._table == np.arange(256)).all())

    def put(self, pixels: np.ndarray, row: np.ndarray) -> None:
        """Write an image, uint8 `[height, width]` or `[height, width, channels]`, into a contiguous row."""
        height, width, channels = self._shape
        if self._planes:
            planes = row.reshape(channels, height, width)
            for channel in range(channels):
                self._table[channel].take(pixels[:, :, channel], out=planes[channel], mode="clip")
            return
        if self._keeps_levels:
            np.copyto(row.reshape(pixels.shape), pixels)
            return
        levels = pixels if self._starts is None else pixels + self._starts
        self._flat.take(levels, out=row.reshape(pixels.shape), mode="clip")


_END_OF_HEAD: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 8 << 10
# Lines and parameters; browsers and libraries send three or four.
_MAX_FIELDS: Final = 100


def form_parts(body: bytes, content_type: bytes, max_parts: int) -> list[tuple[bytes, bytes]]:
    """Return the parts of a multipart form, in order: headers and content of each."""
    boundary = _boundary(content_type)
    if not boundary:
        raise MalformedBody("The Content-Type multipart/form-data names no boundary.")
    # A boundary begins a line; the first one may begin the body.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"), max_parts + 2)
    if len(pieces) == max_parts + 3:
        raise BodyTooLarge(f"The multipart form has more than {max_parts} parts.")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise MalformedBody("The multipart form is cut short: its last boundary is missing.")
    parts = []
    for piece in pieces[1:-1]:
        end = piece.find(_END_OF_HEAD, 0, _MAX_HEAD_BYTES)
        if end < 0:
            raise MalformedBody(
                f"A part of the multipart form has no end of its headers within {_MAX_HEAD_BYTES >> 10} KiB."
            )
        # The rest of the boundary's line is padding.
        parts.append((piece[:end].partition(b"\r\n")[2], piece[end + len(_END_OF_HEAD) :]))
    return parts


def form_images(body: bytes, content_type: bytes, max_parts: int) -> list[bytes]:
    """Return the image parts of a multipart form, in order: those with an image's type or with a file name."""
    images = [
        content for head, content in form_parts(body, content_type, max_parts) if _announces_image(head)
    ]
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
        # The standard library's parser may raise anything.
        raise MalformedBody("The headers of a part of the multipart form cannot be read.") from error


def _is_quickly_read(head: bytes) -> bool:
    """Return whether the standard library parses a head in less than a millisecond.

    Its parser takes quadratic time for the parameters of a header.
    """
    fields = head.count(b";") + max(head.count(b"\n"), head.count(b"\r"))
    return len(head) <= _MAX_HEAD_BYTES and fields <= _MAX_FIELDS


IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/webp")
# Exif orientations that swap width and height.
_TRANSPOSED: Final = (5, 6, 7, 8)
_ALIASES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
_DATA_URL: Final = re.compile(r"data:[^,]{0,200};base64,")
_MAX_OTHER_PARTS: Final = 100
# A JPEG is decoded at a reduced scale with at least this many times the needed size.
_REDUCING_GAP: Final = 3
# The limit of JPEG. Pillow keeps a pointer and a block for each line: gigabytes for millions of lines.
_MAX_SIDE_PIXELS: Final = 65_535
# The limit of all images of a request together, in images of the largest size.
_MAX_LARGEST_IMAGES: Final = 16
# Transparency is removed in strips of this many pixels, because each step makes a copy.
_STRIP_PIXELS: Final = 1 << 20


def is_media(content_type: bytes) -> bool:
    """Return whether a `Content-Type` announces an image or a multipart form."""
    return content_type[:10].lower().startswith((b"image/", b"multipart/"))


def image_layout(image: ImageInput, signature: Signature) -> Layout:
    """Check that a model can take such images, and return the order of the axes in its input."""
    if signature.takes == "body":
        raise InvalidSettings(
            "image: the entry script takes whole request bodies; decorate run with @stoker.batched(shape=...), "
            "or leave the image input out and let the script read images itself"
        )
    if len(signature.inputs) != 1:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise InvalidSettings(f"image: the model has several inputs ({names}); images need a model with one")
    (spec,) = signature.inputs
    _check_values(image, spec)
    hwc = (image.height, image.width, image.channels)
    chw = (image.channels, image.height, image.width)
    flat = (image.height * image.width * image.channels,)
    if spec.shape == flat or (image.channels == 1 and spec.shape == hwc[:2]):
        return image.layout or "hwc"
    fitting: list[Layout] = []
    if spec.shape == hwc:
        fitting.append("hwc")
    if spec.shape == chw:
        fitting.append("chw")
    if image.layout is None and fitting:
        return fitting[0]
    if image.layout in fitting:
        return image.layout
    layout = f" in the layout {image.layout}" if image.layout else ""
    raise InvalidSettings(
        f"image: {image}{layout} do not fit the input {spec.name!r}, whose rows are {spec.describe_row()}; "
        "size (height, then width) and channels (3 unless they are given) must be the model's"
    )


def _check_values(image: ImageInput, spec: TensorSpec) -> None:
    kind = spec.kind
    if spec.variable or kind == "b" or spec.dtype == "int8":
        raise InvalidSettings(f"image: the input {spec.name!r} is {spec.dtype}, which cannot hold pixels")
    with np.errstate(all="ignore"):
        if not np.isfinite(value_table(image, spec)).all():
            raise InvalidSettings(
                f"image: with this scale, mean and std, {spec.dtype} cannot hold the values"
            )
    if kind in "iu" and (image.mean or image.std or image.scale not in (None, 1.0)):
        raise InvalidSettings(
            f"image: the input {spec.name!r} is {spec.dtype} and takes pixels as they are; "
            "leave scale, mean and std out"
        )


class ImageReader:
    """Reads the image bodies of one model.

    Args:
        max_rows_bytes: Limit of the total size of a request's rows; one row is always accepted.
    """

    def __init__(
        self, image: ImageInput, signature: Signature, *, max_pixels: int, max_rows_bytes: int
    ) -> None:
        self._signature = signature
        self._spec = signature.inputs[0]
        self._max_pixels = max_pixels
        self._max_images = max(1, max_rows_bytes // max(1, self._spec.row_bytes))
        self._size = (image.width, image.height)
        self.row_pixels = image.width * image.height
        side = _REDUCING_GAP * max(self._size)
        self._least = self._size if image.decoding == "fast" else (side, side)
        self._mode = "L" if image.channels == 1 else "RGB"
        self._values = PixelValues(image, self._spec, image_layout(image, signature))
        _pillow()
        jpeg_library()

    def claims(self, body: bytes, content_type: bytes) -> bool:
        """Return whether a body may hold images; all others are numbers in JSON.

        This runs for every request, so it takes a fraction of a microsecond for the numbers of a digit.
        """
        if content_type and is_media(content_type):
            return True
        if body[:1] == b"{":
            # Rows of numbers have no strings: another quotation mark after the key means something else.
            key = body.find(b'"data"')
            return key >= 0 and body.find(b'"', key + 6) >= 0
        return begins_like_an_image(body) or b'"data"' in body[:64]

    def open(self, body: bytes, content_type: bytes) -> OpenedImages | list[np.ndarray]:
        """Find the images of a body and read their headers; a body of numbers gives its rows at once."""
        media_type = content_type.partition(b";")[0].strip().lower().decode("latin-1")
        media_type = _ALIASES.get(media_type, media_type)
        if media_type == "multipart/form-data":
            return self._opened(form_images(body, content_type, self._max_images + _MAX_OTHER_PARTS))
        if media_type in IMAGE_TYPES or begins_like_an_image(body):
            return self._opened([body])
        if is_media(content_type):
            raise UnsupportedEncoding(
                f"{cut(media_type)} is not read; send {', '.join(IMAGE_TYPES)}, multipart/form-data or JSON."
            )
        document = parse_document(body)
        texts = _base64_texts(document)
        if texts is None:
            return decode_document(document, self._signature)
        self._check_count(len(texts))
        # Each text is freed when its bytes are there; one may be as long as the body.
        del document
        texts.reverse()
        return self._opened([_decode_base64(texts.pop(), index) for index in range(len(texts))])

    def _opened(self, contents: Sequence[bytes]) -> OpenedImages:
        self._check_count(len(contents))
        names = [f"Image {index}" for index in range(len(contents))] if len(contents) > 1 else ["The image"]
        files = [self._open_one(content, name) for content, name in zip(contents, names, strict=True)]
        opened = OpenedImages(self, files, names)
        if opened.pixels > _MAX_LARGEST_IMAGES * max(self._max_pixels, self.row_pixels):
            raise ImageTooLarge(
                f"The images of the request have {opened.pixels / 1e6:.4g} million pixels together; at most "
                f"{_MAX_LARGEST_IMAGES} times the {self._max_pixels / 1e6:g} million of one are decoded. "
                "Send them in parts."
            )
        return opened

    def _check_count(self, count: int) -> None:
        if count > self._max_images:
            raise BodyTooLarge(
                f"The request holds {count} images; at most {self._max_images} are taken at once."
            )

    def _open_one(self, content: bytes, name: str) -> ImageFile:
        file = read_image_file(content, name)
        if file.width * file.height > self._max_pixels:
            raise ImageTooLarge(
                f"{name} has {file.width} × {file.height} pixels; "
                f"at most {self._max_pixels / 1e6:g} million are decoded."
            )
        if max(file.width, file.height) > _MAX_SIDE_PIXELS:
            raise ImageTooLarge(
                f"{name} has {file.width} × {file.height} pixels; at most {_MAX_SIDE_PIXELS} on a side are decoded."
            )
        if self.work_pixels(file) > max(self._max_pixels, self.row_pixels):
            raise ImageTooLarge(
                f"{name} has {file.width} × {file.height} pixels, which is too long a side to be resized to "
                f"{self._size[0]} × {self._size[1]}."
            )
        return file

    def work_pixels(self, file: ImageFile) -> int:
        """Return the most pixels of an image at any step: as it is, with its new width, or as a row."""
        height = file.width if file.orientation in _TRANSPOSED else file.height
        return max(file.width * file.height, self._size[0] * height, self.row_pixels)

    def empty_rows(self, count: int) -> np.ndarray:
        """Return uninitialized rows: `[count, *row_shape]` in the input's dtype."""
        return np.empty((count, *self._spec.shape), self._spec.numpy_dtype)

    def put(self, file: ImageFile, name: str, row: np.ndarray) -> None:
        """Decode an image into a row, `[*row_shape]` in the input's dtype; raise MalformedBody if it is damaged."""
        try:
            self._values.put(self._pixels(file), row)
        except Exception as error:
            # Pillow's decoders may raise anything.
            raise not_an_image(name) from error

    def _pixels(self, file: ImageFile) -> np.ndarray:
        """Return an image in the model's size: `[h, w]` or `[h, w, 3]`, uint8."""
        image = self._decoded(file)
        if isinstance(image, np.ndarray):
            if (image.ndim == 2) == (self._mode == "L"):
                return resize_pixels(_turn(image, file.orientation), self._size)
            image = _pillow().fromarray(image)
        # One name, so that each step frees the image of the one before.
        image = _upright(image, file.orientation)
        image = _flatten(image, self._mode)
        if image.size != self._size:
            image = resize_image(image, self._size)
        return np.asarray(image)

    def _decoded(self, file: ImageFile) -> Image | np.ndarray:
        """Return an image as its file has it, or smaller."""
        content, size = file.bare(), (file.width, file.height)
        least = self._least[::-1] if file.orientation in _TRANSPOSED else self._least
        pixels = decode_jpeg(content, size, least) if file.kind == "JPEG" else None
        if pixels is not None:
            return pixels
        image: Image = _pillow().open(BytesIO(content), formats=[file.kind])
        if image.size != size:
            raise ValueError("the decoder reads another size than was checked")
        if file.kind == "JPEG":
            image.draft(None, least)
        return image


class OpenedImages:
    """The images of one request; their structure has been read and checked, their pixels not yet.

    Attributes:
        pixels: Pixels to work on: of each image the most that it has at once.
    """

    def __init__(self, reader: ImageReader, files: Sequence[ImageFile], names: Sequence[str]) -> None:
        self._reader = reader
        self._files = list(zip(files, names, strict=True))
        self.pixels = sum(map(reader.work_pixels, files))

    def rows(self, check: Callable[[], None]) -> list[np.ndarray]:
        """Decode them: one row each, in order, `[[rows, *row_shape]]` in the input's dtype; this can be done once.

        `check` is called before each image; what it raises ends the work.
        """
        rows = self._reader.empty_rows(len(self._files))
        # Each file is freed when its row is there; otherwise forms of hundreds of images would be held twice.
        self._files.reverse()
        for row in range(len(rows)):
            check()
            self._reader.put(*self._files.pop(), rows[row])
        return [rows]


@cache
def _pillow() -> Any:
    from PIL import Image

    # All plugins now: otherwise Pillow imports them for the first damaged image, while requests wait.
    Image.init()
    # Stoker checks its own limit before decoding; Pillow's would only warn.
    Image.MAX_IMAGE_PIXELS = None
    return Image


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn a photo as its Exif orientation says; numpy would copy pixel by pixel."""
    if orientation == 1:
        return pixels
    return np.asarray(_upright(_pillow().fromarray(pixels), orientation))


def _upright(image: Image, orientation: int) -> Image:
    """Turn a photo as its Exif orientation says."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _flatten(image: Image, mode: str) -> Image:
    """Convert an image of any mode to 8 bits of grey or RGB; transparent parts become white."""
    pillow = _pillow()
    if image.mode.startswith("I"):
        # 16 bits of grey: Pillow's own conversion would clip them.
        grey: Image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return grey if mode == "L" else grey.convert(mode)
    if not image.has_transparency_data:
        # Pillow would copy an image that is in this mode already.
        return image if image.mode == mode else image.convert(mode)
    flat: Image = pillow.new(mode, image.size)
    lines = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, lines):
        box = (0, top, image.width, min(top + lines, image.height))
        strip = image.crop(box).convert("RGBA")
        paper = pillow.new("RGBA", strip.size, "white")
        flat.paste(pillow.alpha_composite(paper, strip).convert(mode), box)
    return flat


def _base64_texts(document: Any) -> list[str] | None:
    """Return the base64 texts in `{"data": ["...", ...]}` or `{"data": [{"b64": "..."}, ...]}`, or None."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    items = [item.get("b64") if isinstance(item, dict) else item for item in data]
    texts = [item for item in items if isinstance(item, str)]
    if not texts:
        return None
    if len(texts) < len(items):
        index = next(index for index, item in enumerate(items) if not isinstance(item, str))
        raise InvalidInput(f'"data": row {index} is no image; either all rows are base64 texts, or none is.')
    return texts


def _decode_base64(text: str, index: int) -> bytes:
    # Frees the whole text.
    text = text[_data_url_chars(text) :]
    try:
        # Unlike the module base64, this does not copy the text.
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise MalformedBody(f'"data": row {index} is a text, but not base64.') from None


def _data_url_chars(text: str) -> int:
    prefix = _DATA_URL.match(text)
    return prefix.end() if prefix else 0

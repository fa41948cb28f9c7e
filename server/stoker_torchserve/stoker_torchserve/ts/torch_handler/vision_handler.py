"""`ts.torch_handler.vision_handler`: what the handlers of images share."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from stoker_torchserve.ts.handler_utils.timer import timed
from stoker_torchserve.ts.torch_handler.base_handler import BaseHandler
from stoker_torchserve.ts.utils.util import PredictionException

_BAD_REQUEST = 400


class ImageProcessing:
    """A chain of torchvision's transforms as an attribute of a class, which is made when it is first looked at."""

    def __init__(self, make: Callable[[Any], list[Any]]) -> None:
        self._make = make
        self._made: Any = None

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the chain."""
        if self._made is None:
            from torchvision import transforms

            self._made = transforms.Compose(self._make(transforms))
        return self._made


def scaled_and_normalised(transforms: Any) -> list[Any]:
    """Return the transforms of models that were trained on ImageNet: 224 pixels, normalised by its channels."""
    return [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]


class VisionHandler(BaseHandler):
    """A handler of images; `image_processing` makes a tensor of each."""

    takes_images = True
    """Tells the server that images may be made up to check whether requests may share a call."""
    image_processing: Any = None

    @timed
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        """Return the images of rows as one tensor.

        An image is a file, the same as base64, or a list of numbers, in the field `data` or as the body.

        Raises:
            PredictionException: A row has no image; its caller is told 400.
        """
        images = [self._image(row.get("data") or row.get("body")) for row in data]
        import torch

        return torch.stack(images).to(self.device)

    def _image(self, image: Any) -> Any:
        from PIL import Image

        if isinstance(image, str):
            try:
                image = base64.b64decode(image)
            except ValueError as error:
                raise PredictionException(
                    f"The image is a text, but not base64: {error}", _BAD_REQUEST
                ) from error
        if isinstance(image, bytes | bytearray):
            try:
                opened = Image.open(io.BytesIO(image))
                opened.load()
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                raise PredictionException(f"The image cannot be read: {error}", _BAD_REQUEST) from error
            return self.image_processing(opened)
        import torch

        try:
            return torch.FloatTensor(image)
        except (TypeError, ValueError) as error:
            raise PredictionException(
                "The request has no image: send it as the body.", _BAD_REQUEST
            ) from error

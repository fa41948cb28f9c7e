"""Decoding JPEG files on a GPU, by NVIDIA's nvImageCodec.

`python -m stoker.gpu.jpegs` decodes one file. It ends with code 0, or with another code and one line with the reason.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from io import BytesIO
from typing import Final

import numpy as np

from stoker.gpu.nvml import gpus
from stoker.system.extras import is_installed

_PACKAGE: Final = "nvidia.nvimgcodec"
_INSTALL: Final = (
    "install it with: pip install 'nvidia-nvimgcodec-cu13[all]', or nvidia-nvimgcodec-cu12 for CUDA 12"
)
# CUDA initialises all GPUs of the machine first.
_TRIAL_TIMEOUT_S: Final = 60
_TRIAL_SIDE: Final = 16
_TRIAL_COLOUR: Final = (200, 90, 30)
# The largest difference of a decoded colour from the original.
_TRIAL_LEVELS: Final = 8


class JpegDecoder:
    """A decoder on the first GPU that CUDA sees, for one thread at a time. It makes a CUDA context in the process."""

    def __init__(self) -> None:
        """Open the decoder; errors of the package, such as for a missing GPU or library, pass through."""
        # Otherwise each damaged file of a caller prints a line. The package reads the variable when it is imported.
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
        package = importlib.import_module(_PACKAGE)
        kinds = package.BackendKind
        # CPU_ONLY is left out: the caller decodes files that the GPU cannot decode.
        backends = [
            package.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)
        ]
        self._code_stream = package.CodeStream
        # By default each process would have a thread for each core.
        self._decoder = package.Decoder(
            device_id=0, max_num_cpu_threads=1, backends=backends, options=":fancy_upsampling=1"
        )
        self._params = package.DecodeParams(apply_exif_orientation=False, color_spec=package.ColorSpec.SRGB)

    def decode(self, content: bytes, size: tuple[int, int]) -> np.ndarray | None:
        """Return the pixels of a file, uint8 `[height, width, 3]` in ordinary memory; None if it cannot be decoded.

        Args:
            size: Height and width in its header; a file of another size is not decoded.
        """
        try:
            stream = self._code_stream(content)
            if (stream.height, stream.width) != size:
                return None
            image = self._decoder.decode(stream, params=self._params)
            pixels = None if image is None else np.asarray(image.cpu())
        except RuntimeError:
            return None
        return pixels if pixels is not None and pixels.shape == (*size, 3) else None


def find_decoder_problem() -> str | None:
    """Return why processes started from this one cannot decode JPEGs on a GPU, or None if they can.

    A process of its own tries it, because a CUDA context stays as long as its process.
    """
    if not is_installed(_PACKAGE):
        return f"nvImageCodec is not installed; {_INSTALL}"
    try:
        if not gpus():
            return "the NVIDIA driver sees no GPU"
    except OSError as error:
        return str(error)
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nvImageCodec did not answer within {_TRIAL_TIMEOUT_S} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"nvImageCodec ended with code {child.returncode}"


def try_decoder() -> str | None:
    """Decode one file in this process; return the problem, or None."""
    from PIL import Image

    file, size = BytesIO(), (_TRIAL_SIDE, _TRIAL_SIDE)
    Image.new("RGB", size, _TRIAL_COLOUR).save(file, "JPEG")
    try:
        pixels = JpegDecoder().decode(file.getvalue(), size)
    except Exception as error:  # noqa: BLE001  # images would fail with any such error too
        reason = str(error).partition("\n")[0]
        return f"nvImageCodec does not start: {reason}"
    if pixels is None:
        # The package starts without the library that decodes.
        return f"nvImageCodec decodes no JPEG, perhaps because nvJPEG is missing; {_INSTALL}"
    if np.abs(pixels.astype(int) - _TRIAL_COLOUR).max() > _TRIAL_LEVELS:
        return f"nvImageCodec decodes wrong colours: {pixels[0, 0].tolist()} for {list(_TRIAL_COLOUR)}"
    return None


if __name__ == "__main__":
    sys.exit(try_decoder())

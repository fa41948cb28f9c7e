"""What the profile restricted of Pod Security asks, which every pod of Stoker's keeps."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CONTAINER_SECURITY", "POD_SECURITY"]

# The user of the image; see Dockerfile.gpu.
_USER: Final = 10001

POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the profile restricted asks of a pod, and the user of the image."""

CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""What it asks of a container, and a root file system that nobody writes."""

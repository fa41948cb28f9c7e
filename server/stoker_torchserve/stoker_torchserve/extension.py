"""What the server asks this distribution for, by the name `torchserve` (`stoker.system.extensions`)."""

from stoker_torchserve.manifest import Manifest, read_manifest

__all__ = ["Manifest", "read_manifest"]

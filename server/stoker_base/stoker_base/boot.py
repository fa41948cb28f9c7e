"""The identity of the machine's current boot, by which process numbers of earlier boots are told apart."""

from pathlib import Path


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""

"""A machine of its own as far as its network goes: a network namespace at the end of a cable that can be pulled."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

import pytest


class Cable:
    """Two ends of a cable, one of them in a namespace.

    Attributes:
        here: The address of the end that is here.
        there: The address of the end in the namespace.
        inside: The words before a command that runs it in the namespace.
    """

    def __init__(self) -> None:
        tag = secrets.token_hex(4)
        self._namespace, self._ours, self._theirs = f"stoker{tag}", f"stk{tag}a", f"stk{tag}b"
        # Of the addresses for benchmarks, which nobody routes.
        network = f"198.18.{secrets.randbelow(256)}"
        self.here, self.there = f"{network}.1", f"{network}.2"
        self.inside = ("ip", "netns", "exec", self._namespace)

    def lay(self) -> None:
        """Make the namespace and the cable.

        Raises:
            CalledProcessError: That cannot be done here.
        """
        _ip("netns", "add", self._namespace)
        _ip("link", "add", self._ours, "type", "veth", "peer", "name", self._theirs)
        _ip("link", "set", self._theirs, "netns", self._namespace)
        _ip("addr", "add", f"{self.here}/30", "dev", self._ours)
        _ip("link", "set", self._ours, "up")
        there = ("-n", self._namespace)
        _ip(*there, "addr", "add", f"{self.there}/30", "dev", self._theirs)
        for device in (self._theirs, "lo"):
            _ip(*there, "link", "set", device, "up")

    def pull(self) -> None:
        """Cut the connection without a notice: no bytes get through."""
        _ip("link", "set", self._ours, "down")

    def plug(self) -> None:
        """Connect both ends again."""
        _ip("link", "set", self._ours, "up")

    def remove(self) -> None:
        """Remove what `lay` has made."""
        # A process in the namespace that has yet to end would keep both ends of the cable.
        for words in (("link", "del", self._ours), ("netns", "del", self._namespace)):
            subprocess.run(["ip", *words], check=False, capture_output=True)


@contextlib.contextmanager
def laid_cable() -> Iterator[Cable]:
    """A cable with a namespace at its end; the test is skipped where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and iproute2")
    cable = Cable()
    try:
        try:
            cable.lay()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be had here: {error.stderr.decode().strip()}")
        yield cable
    finally:
        cable.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

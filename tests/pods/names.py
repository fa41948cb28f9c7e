"""The names of Services as pods look them up: the part of a cluster's DNS that they need."""

from __future__ import annotations

import contextlib
import ipaddress
import socketserver
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from tests.background import serving
from tests.cluster.control_plane import ControlPlane

__all__ = ["DOMAIN", "served"]

DOMAIN: Final = "cluster.local"
"""The ending of the cluster's names: `SERVICE.NAMESPACE.svc.cluster.local`."""

_PORT: Final = 53
_HEADER_BYTES: Final = 12
_ADDRESS: Final = 1
_ANSWERED, _NO_SUCH_NAME = 0x8580, 0x8583
_KEPT_S: Final = 5


@contextlib.contextmanager
def served(plane: ControlPlane, address: str) -> Iterator[None]:
    """Answer at an address while the body runs."""

    class Question(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(_answer(plane, self.rfile.read()))

    with serving(socketserver.ThreadingUDPServer((address, _PORT), Question)):
        yield


def _answer(plane: ControlPlane, question: bytes) -> bytes:
    """The answer to a datagram with one question."""
    labels, at = [], _HEADER_BYTES
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    question_record = question[_HEADER_BYTES : at + 5]
    (kind,) = struct.unpack_from("!H", question, at + 1)
    address = _address_of(plane, labels)
    # A name that is there has no answer of another kind, such as an IPv6 address.
    answers = [] if address is None or kind != _ADDRESS else [ipaddress.IPv4Address(address).packed]
    flags = _NO_SUCH_NAME if address is None else _ANSWERED
    header = question[:2] + struct.pack("!5H", flags, 1, len(answers), 0, 0)
    # The name is the one of the question, by its place in the datagram.
    name = struct.pack("!H", 0xC000 | _HEADER_BYTES)
    records = [name + struct.pack("!HHIH", _ADDRESS, 1, _KEPT_S, len(one)) + one for one in answers]
    return b"".join([header, question_record, *records])


def _address_of(plane: ControlPlane, labels: Sequence[str]) -> str | None:
    """The address of the Service with this name; None if there is none."""
    match labels:
        case [name, namespace, "svc", *domain] if ".".join(domain) == DOMAIN:
            found = plane.get(f"/api/v1/namespaces/{namespace}/services/{name}")
            return None if found is None else str(found["spec"]["clusterIP"])
    return None

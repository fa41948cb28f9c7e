"""The published tests of HTTP/2 and HPACK, `h2spec`, against this server's side of a connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess

import pytest
from tests.patience import PROGRAM_S
from tests.unit.wire.http2.talk import Head, Kept

from stoker.wire.http2.connection import Connection
from stoker.wire.http2.streams import Stream

H2SPEC = os.environ.get("H2SPEC") or shutil.which("h2spec")


class Speaker(asyncio.Protocol):
    """Answers each request with its content, or a word where there is none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.http: Connection[Head] = Connection(Head, self.begin)
        self.flush()

    def begin(self, stream: Stream, head: Head) -> Kept:
        return Kept(self.http, stream, head, echoes=True, content=bytearray(b"some words"))

    def data_received(self, content: bytes) -> None:
        self.http.receive(content)
        self.flush()

    def flush(self) -> None:
        while self.http.out:
            self.transport.write(b"".join(self.http.out))
            self.http.out.clear()
            self.http.pump()
        if self.http.failed:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self.http.lose()


@pytest.mark.skipif(H2SPEC is None, reason="there is no h2spec, on the PATH or named by H2SPEC")
def test_all_of_h2spec_passes() -> None:
    """Every case of it, the generic ones, those of HTTP/2 and those of HPACK."""

    async def judged() -> subprocess.CompletedProcess[str]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Speaker, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        command = [str(H2SPEC), "-h", "127.0.0.1", "-p", str(port), "-o", "5"]
        async with server:
            return await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False, timeout=PROGRAM_S
            )

    ended = asyncio.run(judged())
    assert ended.returncode == 0, ended.stdout
    assert ", 0 failed" in ended.stdout

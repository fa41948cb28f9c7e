"""HTTP over TLS: callers get the same answers as without, through all paths of a request."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.certificates import client_context, make_pair, replace_pair
from tests.http.raw_http import Connection, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, run_stoker, wait_until
from tests.process.callers import Callers, scored
from tests.tiny_models import write_doubler, write_script

from stoker.system.certificates import TlsFiles
from stoker_client import Client

SCRIPT = """
import json

def init():
    pass

def run(raw_data):
    return {"length": len(raw_data)}
"""
CALLERS = 16


@dataclass
class Served:
    """A server with two frontends, a model and a script.

    Attributes:
        server: It.
        files: Its certificate, which tests may exchange.
        folder: Where they may lay others.
    """

    server: LiveServer
    files: TlsFiles
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for the tests of this module."""
    folder = tmp_path_factory.mktemp("tls")
    files = make_pair(folder)
    model, script = write_doubler(folder / "doubler.onnx"), write_script(folder / "length", SCRIPT)
    config = folder / "stoker.yaml"
    config.write_text(f"models: [{{path: {model}, name: doubler}}, {{path: {script}, name: length}}]\n")
    options = ["--tls-cert", files.certificate, "--tls-key", files.key, "--frontends", "2"]
    with LiveServer(folder, "--config", config, *options, tls=client_context(files.certificate)) as server:
        yield Served(server, files, folder)


def test_the_start_says_https_and_a_command_that_works(served: Served) -> None:
    """The lines of the start are what an operator copies."""
    output, port = served.server.output(), served.server.port
    assert "  tls      http: tls.crt, until " in output
    assert f"  scoring  https://127.0.0.1:{port}/api/v1/service/doubler/score\n" in output
    assert "  try      curl -s --cacert tls.crt -H " in output
    assert f"metrics at https://127.0.0.1:{port}/metrics" in output
    assert "http://" not in output


@pytest.mark.parametrize("rows", [1, 40_000])
def test_rows_are_scored_on_a_kept_connection(served: Served, rows: int) -> None:
    """Short bodies and those that are received straight into their memory, in turns, in records that are split."""
    with served.server.connect() as connection:
        for count in (1, rows, rows, 1):
            row = [1.0, 2.0, 3.0, 4.0]
            path = "/api/v1/service/doubler/score"
            answer = connection.ask(scoring(path, PRIMARY, rows_body(*[row] * count)))
            assert answer.status == 200
            assert answer.json() == [[2.0, 4.0, 6.0, 8.0]] * count


def test_head_and_body_that_come_apart_are_one_request(served: Served) -> None:
    """Each in records of its own, and a request behind another in the same one."""
    message = scoring("/api/v1/service/doubler/score", PRIMARY, rows_body([1, 2, 3, 4]))
    with served.server.connect() as connection:
        for part in (message[:20], message[20:-5], message[-5:] + message):
            connection.send(part)
        for _ in range(2):
            assert connection.answer().json() == [[2.0, 4.0, 6.0, 8.0]]


def test_answers_are_the_same_over_tls(served: Served) -> None:
    """Scripts, other protocols, chunks and errors are answered as without TLS."""
    path = "/api/v1/service/length/score"
    body = json.dumps({"text": "x" * 300_000}).encode()
    with served.server.connect() as connection:
        assert connection.ask(scoring(path, PRIMARY, body)).json() == {"length": len(body)}
        chunked = [("Transfer-Encoding", "chunked"), ("Authorization", f"Bearer {PRIMARY}")]
        head = request("POST", path, chunked).replace(b"Content-Length: 0\r\n", b"")
        connection.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert connection.answer().json() == {"length": len(body)}
        assert connection.ask(scoring(path, "a-wrong-key", body)).status == 401
    assert served.server.ready


def test_the_client_trusts_the_given_certificate(served: Served) -> None:
    """By its option, which the commands have too; a server that nobody vouches for is not spoken to."""
    uri = f"https://localhost:{served.server.port}/api/v1/service/doubler/score"
    with Client(uri, PRIMARY, ca_file=served.files.certificate) as client:
        assert client.score([[1, 2, 3, 4]]).tolist() == [[2, 4, 6, 8]]
    rows = served.folder / "rows.json"
    rows.write_text("[[1, 2, 3, 4]]")
    arguments = ["score", "--uri", uri, "--key", PRIMARY, "--data", rows]
    trusted = run_stoker(*arguments, "--cacert", served.files.certificate)
    assert (trusted.returncode, trusted.stdout) == (0, "[2.0, 4.0, 6.0, 8.0]\n")
    by_variable = run_stoker(*arguments, env={"SSL_CERT_FILE": str(served.files.certificate)})
    assert (by_variable.returncode, by_variable.stdout) == (0, "[2.0, 4.0, 6.0, 8.0]\n")
    refused = run_stoker(*arguments)
    assert refused.returncode == 2
    assert "certificate verify failed" in refused.stderr
    assert "--cacert names the PEM file of its authority" in refused.stderr
    missing = run_stoker(*arguments, "--cacert", served.folder / "none.crt")
    assert missing.returncode == 2
    assert "none.crt cannot be used: No such file" in missing.stderr


def test_connections_are_spread_over_the_frontends_evenly(served: Served) -> None:
    """They are handed on before their handshake, so TLS is no reason to leave them to the kernel's hash."""
    server = served.server
    wait_until(lambda: not any(server.connections()), "connections of other tests have ended")
    connections = [server.connect() for _ in range(CALLERS)]
    try:
        for connection in connections:
            assert connection.ask(request("GET", "/")).status == 200
        # Others on this machine may try the port, which was somebody else's a moment ago.
        own = {connection.socket.getsockname()[1] for connection in connections}
        wait_until(
            lambda: sum(len(ports & own) for ports in server.connections()) == CALLERS,
            "each connection is open in one frontend alone",
        )
        counts = [len(ports & own) for ports in server.connections()]
        assert max(counts) - min(counts) <= 2, counts
    finally:
        for connection in connections:
            connection.socket.close()


def test_plain_http_gets_the_advice_to_use_tls(served: Served) -> None:
    """It gets an answer that it can read, and is counted."""
    before = served.server.metric("stoker_tls_handshake_failures_total", protocol="http", reason="not_tls")
    with Connection(served.server.port) as plain:
        answer = plain.ask(request("GET", "/"))
        assert answer.status == 400
        assert "begins with https://" in answer.json()["message"]
        plain.assert_ended()
    after = served.server.metric("stoker_tls_handshake_failures_total", protocol="http", reason="not_tls")
    assert after == before + 1


def test_a_certificate_is_exchanged_under_load(served: Served) -> None:
    """No request is lost, and new connections see the new one in all frontends."""
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(served.files.certificate)
    old = _serial_number(served.server.port, trusted)
    with Callers(
        served.server.port, scored(PRIMARY, "/api/v1/service/doubler/score"), kept_alive=4, tls=trusted
    ) as callers:
        wait_until(lambda: callers.answered(50), "the callers are under way")
        made = replace_pair(served.files, served.folder)
        # Those who connect anew have to trust it.
        served.server.tls = trusted
        trusted.load_verify_locations(made.certificate)
        wait_until(
            lambda: all(_serial_number(served.server.port, trusted) != old for _ in range(8)),
            "the new certificate is shown",
        )
        outcomes = callers.stop()
    assert all(outcome.right for outcome in outcomes)


def test_the_end_loses_nothing_over_tls(tmp_path: Path) -> None:
    """Callers with kept connections, and those with one for each request, are answered until the port closes."""
    files = make_pair(tmp_path)
    context = client_context(files.certificate)
    model = write_doubler(tmp_path / "doubler.onnx")
    options = ["--tls-cert", files.certificate, "--tls-key", files.key, "--drain-grace-s", "0.2"]
    with LiveServer(tmp_path, model, *options, "--frontends", "2", tls=context) as server:
        idle = server.connect()
        assert idle.ask(request("GET", "/")).status == 200
        with Callers(server.port, scored(PRIMARY), kept_alive=6, fresh=3, tls=context) as callers:
            wait_until(lambda: callers.answered(100), "the callers are under way")
            server.signal(signal.SIGTERM)
            outcomes = callers.join()
        assert server.wait() == 0
        assert [outcome for outcome in outcomes if not outcome.right] == []
        assert idle.socket.recv(1) == b""
        idle.socket.close()
        assert "Traceback" not in server.output()


def test_a_new_server_takes_the_port_over(tmp_path: Path) -> None:
    """`stoker reload` speaks TLS to the old one; callers lose nothing, neither who connects meanwhile."""
    files, model = make_pair(tmp_path), write_doubler(tmp_path / "doubler.onnx")
    context = client_context(files.certificate)
    options = ["--tls-cert", files.certificate, "--tls-key", files.key, "--frontends", "1"]
    with LiveServer(tmp_path, model, *options, tls=context) as server:
        before = server.frontend_pids()
        with Callers(
            server.port, scored(PRIMARY), kept_alive=2, fresh=1, pause_s=0.005, tls=context
        ) as callers:
            wait_until(lambda: callers.answered(20), "the callers are under way")
            uri = ["--uri", f"https://127.0.0.1:{server.port}", "--workspace", server.workspace]
            unknown = run_stoker("reload", *uri)
            assert unknown.returncode == 2
            assert "certificate verify failed" in unknown.stderr
            reloaded = run_stoker("reload", *uri, "--cacert", files.certificate)
            assert (reloaded.returncode, reloaded.stderr) == (0, "")
            wait_until(lambda: set(server.frontend_pids()).isdisjoint(before), "the old frontend has ended")
            outcomes = callers.stop()
        assert [outcome for outcome in outcomes if not outcome.right] == []


def test_one_certificate_serves_both_ports(tmp_path: Path) -> None:
    """The port of gRPC speaks TLS as well where it has no certificate of its own: keys travel there too."""
    files = make_pair(tmp_path)
    model = write_doubler(tmp_path / "doubler.onnx")
    options = ["--tls-cert", files.certificate, "--tls-key", files.key]
    context = client_context(files.certificate)
    grpc_port = free_port()
    with LiveServer(tmp_path, model, *options, "--grpc-port", str(grpc_port), tls=context) as server:
        assert f"127.0.0.1:{grpc_port} with TLS" in server.output()
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", grpc_port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as spoken,
        ):
            assert spoken.selected_alpn_protocol() == "h2"
        text = server.get("/metrics").body.decode()
        for protocol in ("http", "grpc"):
            assert f'stoker_certificate_expiration_timestamp_seconds{{protocol="{protocol}"}}' in text


def test_a_start_with_files_that_cannot_be_used_fails_at_once(tmp_path: Path) -> None:
    """The error comes before models are loaded, with the remedy."""
    files, model = make_pair(tmp_path, password="secret"), write_doubler(tmp_path / "doubler.onnx")
    start = ["serve", model, "--port", "0", "--workspace", tmp_path / "w"]
    locked = run_stoker(*start, "--tls-cert", files.certificate, "--tls-key", files.key)
    assert locked.returncode == 2
    assert "the key has a password" in locked.stderr
    half = run_stoker(*start, "--tls-cert", files.certificate)
    assert half.returncode == 2
    assert "TLS needs both: tls_cert and tls_key" in half.stderr


def _serial_number(port: int, context: ssl.SSLContext) -> str:
    with Connection(port, tls=context) as connection:
        assert isinstance(connection.socket, ssl.SSLSocket)
        return str((connection.socket.getpeercert() or {})["serialNumber"])

"""Reading EndpointSlices with the token of a pod."""

import asyncio
import json
import shutil
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.background import serving

from stoker.errors import OperatorError
from stoker_cluster.slice_reader import PodSliceReader

TLS = Path(__file__).parents[2] / "tls"


class ApiServer(BaseHTTPRequestHandler):
    """Answers lists of EndpointSlices, to one token."""

    paths: list[str]
    body = b""

    def do_GET(self) -> None:
        """Answer."""
        self.paths.append(self.path)
        allowed = self.headers["Authorization"] == "Bearer second"
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[HTTPServer]:
    """An API server with a certificate of the tests."""
    server = HTTPServer(("127.0.0.1", 0), ApiServer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost.crt", TLS / "localhost.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    ApiServer.paths = []
    with serving(server):
        yield server


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder that a kubelet writes."""
    shutil.copy(TLS / "localhost.crt", tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("models")
    return tmp_path


def test_the_slices_of_a_service_are_read_with_the_token_of_the_moment(
    api: HTTPServer, account: Path
) -> None:
    """The kubelet renews the token; an expired one is an error, and so is an answer without a list."""
    reader = PodSliceReader("localhost", api.server_port, account)
    with pytest.raises(OSError, match="answers 401 for the endpoints of models/digits"):
        asyncio.run(reader.endpoint_slices("models", "digits"))
    (account / "token").write_text("second\n")
    ApiServer.body = json.dumps({"items": [{"endpoints": []}]}).encode()
    assert asyncio.run(reader.endpoint_slices("models", "digits")) == [{"endpoints": []}]
    assert asyncio.run(reader.endpoint_slices(None, "digits")) == [{"endpoints": []}]
    assert ApiServer.paths[-2] == ApiServer.paths[-1]
    assert ApiServer.paths[-1] == (
        "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
        "?labelSelector=kubernetes.io%2Fservice-name%3Ddigits&resourceVersion=0"
    )
    ApiServer.body = b"{"
    with pytest.raises(OSError, match="no list of endpoints"):
        asyncio.run(reader.endpoint_slices("models", "digits"))


def test_reader_outside_of_a_pod_is_refused(
    tmp_path: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages say what to do instead."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OperatorError, match="name the servers with --servers"):
        PodSliceReader.of_this_pod()
    (account / "token").unlink()
    with pytest.raises(OperatorError, match="automountServiceAccountToken"):
        PodSliceReader("localhost", 1, account)

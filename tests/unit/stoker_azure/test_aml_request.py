"""The request object of `@rawhttp` scripts, and how it is known that a script wants one."""

import sys
import types
from typing import Any

import pytest
from werkzeug.exceptions import BadRequest, UnsupportedMediaType
from werkzeug.wrappers import Request

from stoker.scripts.stand_ins import flask_context, uses_flask
from stoker.wire.script_requests import RequestHead
from stoker_azure import aml_request
from stoker_azure.aml_request import AMLRequest, rawhttp, request_from
from stoker_azure.wsgi import raw_http_requested, wsgi_environ

JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")


def head_of(
    *headers: tuple[str, str], method: str = "POST", path: str = "/score", query: str = ""
) -> RequestHead:
    """A request's head from a caller on this machine."""
    return RequestHead(method, path, query, [("Host", "example.net:5001"), *headers], "10.1.2.3")


def request(body: bytes, *headers: tuple[str, str], **more: str) -> Request:
    """The request object that a script gets."""
    return request_from(head_of(*headers, ("Content-Length", str(len(body))), **more), body)


@pytest.fixture
def flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag of the process as it is before any script has set it, then restored."""
    monkeypatch.setattr(aml_request, "_rawHttpRequested", False)


@pytest.mark.usefixtures("flag")
def test_rawhttp_sets_the_flag_of_the_process() -> None:
    """It returns the function unchanged; drivers look at the flag by its name in the module."""

    def run(_: object) -> None: ...

    assert not raw_http_requested()
    assert rawhttp(run) is run
    assert aml_request._rawHttpRequested is True
    assert raw_http_requested()


@pytest.mark.usefixtures("flag")
def test_any_decorated_function_switches_the_process() -> None:
    """A helper that is decorated switches the whole process, as on Azure."""
    rawhttp(print)
    assert raw_http_requested()


def test_attributes_of_the_request() -> None:
    """The request line and the headers as scripts read them."""
    got = request(
        b"{}", JSON, ("X-Custom", "a"), ("Cookie", "k=v; l=w"), query="a=1&b=x%20y&a=2", method="PUT"
    )
    assert isinstance(got, AMLRequest)
    assert (got.method, got.path, got.full_path) == ("PUT", "/score", "/score?a=1&b=x%20y&a=2")
    assert got.url == "http://example.net:5001/score?a=1&b=x%20y&a=2"
    assert got.base_url == "http://example.net:5001/score"
    assert got.query_string == b"a=1&b=x%20y&a=2"
    assert (got.content_type, got.mimetype, got.content_length) == ("application/json", "application/json", 2)
    assert got.is_json
    assert got.remote_addr == "10.1.2.3"
    assert got.cookies.to_dict() == {"k": "v", "l": "w"}
    assert got.headers["x-custom"] == got.headers.get("X-CUSTOM") == "a"


def test_arguments_of_the_query() -> None:
    """A dictionary of several values for a name, with conversion."""
    args = request(b"", query="a=1&b=x&a=2&e=").args
    assert args["a"] == "1"
    assert args.getlist("a") == ["1", "2"]
    assert args.get("a", type=int) == 1
    assert args.get("missing", 7) == 7
    assert "b" in args
    assert list(args.keys()) == ["a", "b", "e"]
    assert args.get("b", default=0, type=int) == 0


def test_headers_are_those_of_azure() -> None:
    """Title-Case, repeated ones joined by commas, none with an underscore in its name."""
    got = request(b"", ("x-ms-request-id", "1"), ("x-multi", "a"), ("X-Multi", "b"), ("X_Smuggled", "no"))
    headers = dict(got.headers)
    assert headers == {
        "Host": "example.net:5001",
        "X-Ms-Request-Id": "1",
        "X-Multi": "a,b",
        "Content-Length": "0",
    }


def test_the_body_can_be_read_again_and_again() -> None:
    """`get_data` keeps the body by default."""
    got = request(b"\x00\xff")
    assert [got.get_data(), got.data, got.get_data()] == [b"\x00\xff"] * 3
    assert request("é".encode()).get_data(as_text=True) == "é"
    once = request(b"x")
    assert [once.get_data(False), once.get_data()] == [b"x", b""]
    assert request(b"stream").stream.read() == b"stream"


def test_json_bodies() -> None:
    """`json` needs the content type; `get_json` can be forced or be silent."""
    assert request(b'{"a": 1}', JSON).json == {"a": 1}
    assert request(b"[1]", ("Content-Type", "application/vnd.x+json")).get_json() == [1]
    assert request(b"[1]").get_json(force=True) == [1]
    assert request(b"no", JSON).get_json(silent=True) is None
    with pytest.raises(BadRequest):
        _ = request(b"no", JSON).json
    with pytest.raises(UnsupportedMediaType):
        _ = request(b"[1]").json


def test_forms_and_files() -> None:
    """Fields and uploaded files; `values` has the query's too."""
    got = request(b"a=1&b=2&a=3", FORM, query="q=9")
    assert got.form.getlist("a") == ["1", "3"]
    assert got.values["q"] == "9"
    assert got.values["b"] == "2"
    part = (
        b'--X\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n\xff\xd8\r\n--X--\r\n'
    )
    with request(part, ("Content-Type", "multipart/form-data; boundary=X")) as upload:
        assert upload.files["image"].filename == "a.jpg"
        assert upload.files["image"].read() == b"\xff\xd8"


def test_a_form_is_read_once() -> None:
    """`data` is empty for a form, and so are its bytes after its fields; fields after the bytes are there."""
    assert request(b"a=1", FORM).data == b""
    fields_first = request(b"a=1", FORM)
    assert fields_first.form["a"] == "1"
    assert fields_first.get_data() == b""
    bytes_first = request(b"a=1", FORM)
    assert bytes_first.get_data() == b"a=1"
    assert bytes_first.form["a"] == "1"


def test_a_path_is_decoded() -> None:
    """Percent signs and letters beyond ASCII."""
    assert request(b"", path="/api/v1/service/%C3%A9t%C3%A9/score").path == "/api/v1/service/été/score"


def test_how_the_body_was_sent_is_undone() -> None:
    """The script gets the whole body: its length is right, and nothing says that it is chunked."""
    head = head_of(("Transfer-Encoding", "chunked"), JSON)
    got = request_from(head, b"[1, 2]")
    assert got.content_length == 6
    assert got.json == [1, 2]
    assert "Transfer-Encoding" not in got.headers


def test_a_compressed_body_stays_compressed() -> None:
    """As on Azure, such a script may inflate it itself, by its headers."""
    got = request_from(head_of(("Content-Encoding", "gzip")), b"\x1f\x8b")
    assert (got.headers["Content-Encoding"], got.get_data()) == ("gzip", b"\x1f\x8b")


def test_a_request_without_a_body_has_no_length() -> None:
    """As a server has it that saw no Content-Length."""
    got = request_from(RequestHead("GET", "/score", "", [], ""), b"")
    assert got.content_length is None
    assert got.get_data() == b""
    assert got.url == "http://localhost/score"


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("example.net", ("example.net", "80")),
        ("[::1]:9", ("::1", "9")),
        ("x:y", ("localhost", "80")),
        ("[", ("localhost", "80")),
    ],
)
def test_the_server_is_the_one_that_was_called(host: str, server: tuple[str, str]) -> None:
    """Name and port are in the header Host, if it is one."""
    environ = wsgi_environ(RequestHead("GET", "/", "", [("Host", host)], ""), b"")
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == server


def test_the_class_of_an_installed_server_package_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constructor takes no arguments, and its flag is not ours."""

    class RealRequest(Request):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[call-arg]

    module: Any = types.ModuleType("azureml_inference_server_http.api.aml_request")
    module.AMLRequest, module._rawHttpRequested = RealRequest, False
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(aml_request, "_rawHttpRequested", False)
    assert not raw_http_requested()
    assert type(request(b"x")) is AMLRequest
    module._rawHttpRequested = True
    assert raw_http_requested()
    got = request(b"x")
    assert type(got) is RealRequest
    assert got.get_data() == b"x"


def test_a_script_without_flask_needs_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported for it."""
    monkeypatch.delitem(sys.modules, "flask", raising=False)
    assert not uses_flask()
    with flask_context(head_of(), b"") as context:
        assert context is None
    assert "flask" not in sys.modules


def test_a_script_with_flask_runs_in_a_context() -> None:
    """`flask.request` is this request, and `jsonify` works; the script's own request object keeps its body."""
    flask = pytest.importorskip("flask")
    head, body = head_of(JSON, query="a=1"), b'{"b": 2}'
    own = request_from(head, body)
    assert uses_flask()
    with flask_context(head, body):
        assert flask.request.args["a"] == "1"
        assert flask.request.get_json() == {"b": 2}
        assert flask.request.headers["Host"] == "example.net:5001"
        answer = flask.jsonify(x=[1])
        assert own.get_data() == body
    assert answer.get_json() == {"x": [1]}
    assert not flask.has_request_context()


def test_uploads_are_closed_with_the_request() -> None:
    """The request is a context manager: large uploads are files."""
    part = b'--X\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n1\r\n--X--\r\n'
    with request(part, ("Content-Type", "multipart/form-data; boundary=X")) as got:
        stream = got.files["f"].stream
    assert stream.closed

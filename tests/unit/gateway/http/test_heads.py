"""The head of a request: the check of its host, and what a script sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.gateway.http.requests import AllowedHosts, request_head
from stoker.settings.loading import load_settings
from stoker.supervisor.frontend_starts import answered_hosts

HOSTS = AllowedHosts(("score.example.com", "*.ml.svc", "gpu-box"))


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:8080",
        b"a.localhost:8080",
        b"127.0.0.1",
        b"127.0.0.1:8080",
        b"10.1.2.3:80",
        b"[::1]",
        b"[::1]:8080",
        b"[fe80::1]:8080",
        b"score.example.com",
        b"Score.Example.com.:443",
        b"digits.ml.svc",
        b"a.b.ml.svc:80",
        b"gpu-box:",
    ],
)
def test_addresses_and_names_that_were_given_are_answered(host: bytes) -> None:
    """They are matched with any port and in any case."""
    assert HOSTS.have(host)


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"a." * 30_000 + b"ml.svc",
        b":8080",
        b"evil.example",
        b"example.com",
        b"a.score.example.com",
        b"ml.svc",
        b"xml.svc",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"127.0.0.1:8080:80",
        b"[::1].evil.example",
        b"\xff\xfe",
        b"localhost@evil.example",
    ],
)
def test_names_of_others_are_not(host: bytes) -> None:
    """A page can have each of these resolved to this server."""
    assert not HOSTS.have(host)


@pytest.mark.parametrize(
    ("header", "hosts"),
    [
        ("", None),
        ("auth: false", ("this-machine", "127.0.0.1")),
        ("auth: false\nhost: score.internal", ("this-machine", "score.internal")),
        ("auth: false\ntoken_auth: true", None),
        ("auth: false\ntls_cert: c.pem\ntls_key: k.pem", None),
        ("auth: false\nallowed_hosts: ['*']", None),
        ("auth: false\nallowed_hosts: A.example.com, b", ("a.example.com", "b")),
        ("allowed_hosts: a.example.com", ("a.example.com",)),
    ],
)
def test_without_keys_only_own_names_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, hosts: tuple[str, ...] | None
) -> None:
    """With keys or TLS a page of another host gets nothing, so all names are answered unless a setting lists them."""
    monkeypatch.setattr("socket.gethostname", lambda: "this-machine")
    file = tmp_path / "deployment.yaml"
    file.write_text(f"{header}\nmodels: []\n")
    assert answered_hosts(load_settings({}, {}, file, ())) == hosts


@pytest.mark.parametrize("raw_path", [b"/score%2f~", None])
def test_a_script_sees_the_path_as_it_was_sent(raw_path: bytes | None) -> None:
    """If only the decoded path is known, it is encoded."""
    scope = {
        "method": "POST",
        "path": "/score/~",
        "query_string": b"a=%20",
        "headers": [],
        "client": ("10.0.0.1", 1),
    }
    head = request_head({**scope, "raw_path": raw_path}, None)
    assert head.path == ("/score/~" if raw_path is None else "/score%2f~")
    assert (head.method, head.query, head.remote) == ("POST", "a=%20", "10.0.0.1")


def test_an_inflated_body_appears_as_if_it_was_sent_so() -> None:
    """Its length is that of the inflated body, and nothing says how it was compressed."""
    headers = [(b"content-encoding", b"gzip"), (b"content-length", b"9"), (b"x-own", b"1")]
    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": headers}
    assert request_head(scope, 1234).headers == [("x-own", "1"), ("content-length", "1234")]

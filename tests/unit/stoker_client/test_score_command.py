"""`stoker score`: files in, answers out, and advice when there are none."""

from __future__ import annotations

import argparse
import io
import json
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.unit.stoker_client.puppet_server import KEY, Behaviour, PuppetServer, Request, answer, like_stoker

from stoker.commands import score
from stoker.errors import InvalidSettings, OperatorError
from stoker.keys.keyring import Keyring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = np.zeros((3, 784))
ROWS[:, 0] = [4, 1, 7]


@pytest.fixture
def server(
    serve: Callable[[Behaviour], PuppetServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> PuppetServer:
    """A server at the port that the environment tells the command, and a current directory without a workspace."""
    server = serve(like_stoker)
    monkeypatch.setenv("STOKER_PORT", str(urlsplit(server.origin).port))
    monkeypatch.chdir(tmp_path)
    return server


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    score.add_arguments(parser)
    return score.run(parser.parse_args([str(argument) for argument in arguments]))


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def write(path: Path, form: str) -> Path:
    """Write ROWS in one of the forms that the command reads."""
    path = path / f"rows.{form.partition('-')[0]}"
    if form == "npy":
        np.save(path, ROWS)
    elif form == "json-body":
        path.write_text(json.dumps({"data": ROWS.tolist()}))
    elif form == "json-list":
        path.write_text(json.dumps(ROWS.tolist()))
    else:
        header = ",".join(f"pixel {number}" for number in range(784)) if form == "csv-named" else ""
        np.savetxt(path, ROWS, delimiter=",", header=header, comments="")
    return path


@pytest.mark.parametrize("form", ["npy", "json-body", "json-list", "csv", "csv-named"])
def test_rows_are_read_in_every_form(
    server: PuppetServer, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row's answer is a line of JSON, for each format of the file."""
    assert run("--data", write(tmp_path, form), "--key", KEY) == 0
    assert lines(capsys) == [4, 1, 7]


def test_rows_are_read_from_standard_input(
    server: PuppetServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dash means JSON on standard input, as in a pipe."""
    stream = SimpleNamespace(buffer=io.BytesIO(json.dumps({"data": ROWS.tolist()}).encode()))
    monkeypatch.setattr("sys.stdin", stream)
    assert run("--data", "-", "--key", KEY) == 0
    assert lines(capsys) == [4, 1, 7]


def test_many_rows_go_in_several_requests(
    server: PuppetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with more rows than belong in one body is cut, and the answers keep its order."""
    rows = np.zeros((600, 784), np.float32)
    rows[:, 0] = np.arange(600)
    np.save(tmp_path / "many.npy", rows)
    assert run("--data", tmp_path / "many.npy", "--key", KEY) == 0
    assert lines(capsys) == (np.arange(600) % 10).tolist()
    bodies = [len(request.body) // (4 * 784) for request in server.requests if request.method == "POST"]
    assert sorted(bodies) == [88, 256, 256]


@pytest.mark.parametrize(
    ("reply", "printed"),
    [
        ([[0.5, float("nan")], [1, 2]], "[0.5, NaN]\n[1, 2]\n"),
        ({"class": [1, 2], "p": [0.5, 1]}, '{"class": 1, "p": 0.5}\n{"class": 2, "p": 1}\n'),
        ({"mean": 0.5}, '{"mean": 0.5}\n'),
        ([1, 2, 3], "[1, 2, 3]\n"),
        ("dé", '"dé"\n'),
    ],
)
def test_answers_are_printed_by_rows_where_they_have_them(
    serve: Callable[[Behaviour], PuppetServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reply: Any,
    printed: str,
) -> None:
    """Two rows give two lines, unless the answer is not one entry a row."""
    server = serve(lambda _: answer(json.dumps(reply)))
    (tmp_path / "two.json").write_text("[[1], [2]]")
    assert run("--data", tmp_path / "two.json", "--uri", server.uri) == 0
    assert capsys.readouterr().out == printed


def test_other_bodies_are_sent_as_they_are(
    serve: Callable[[Behaviour], PuppetServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A body with more than `data` is the entry script's own affair."""
    server = serve(lambda request: answer(json.loads(request.body)))
    body = {"data": [[1]], "method": "proba"}
    (tmp_path / "body.json").write_text(json.dumps(body))
    assert run("--data", tmp_path / "body.json", "--uri", server.uri) == 0
    assert lines(capsys) == [body]


def test_numbered_first_line_gets_a_warning(
    server: PuppetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pandas names columns 0, 1, 2, …: that line is a row here, and the command says so beside the answers."""
    file = write(tmp_path, "csv")
    file.write_text(",".join(map(str, range(784))) + "\n" + file.read_text())
    assert run("--data", file, "--key", KEY) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(
        f"stoker score: {file}: the first line, 0,1,2,…,783, is scored as a row; if"
    )
    assert len(captured.out.splitlines()) == len(ROWS) + 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.json", None, "No such file"),
        ("bad.json", b"{", r"cannot be read: it is no JSON \(Expecting"),
        ("text.json", b'"text"', "a list of rows"),
        ("nan.json", b"[[1, NaN]]", r"\[0\]\[1\] is nan: only finite numbers"),
        ("latin.json", b"[\xff]", "cannot be read: it is no UTF-8 text"),
        (
            "digit.jpg",
            b"\xff\xd8\xff",
            "an image goes to a model that takes images: stoker score --image .*digit.jpg;",
        ),
        ("deep.json", b"[" * 100_000, "cannot be read: "),
        ("bad.npy", b"junk", "cannot be read: "),
        ("empty.npy", b"", "cannot be read: "),
        ("bad.csv", b"1,2\n3,x\n", "cannot be read: could not convert"),
        ("ragged.csv", b"1,2\n3\n", "cannot be read: "),
        ("empty.csv", b"a,b\n", "cannot be read: it has no rows"),
    ],
)
def test_unreadable_files_are_refused_with_the_reason(
    server: PuppetServer, tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    """A file without rows ends in one sentence, before a request to the server."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidSettings, match=reason):
        run("--data", tmp_path / name, "--key", KEY)
    assert server.requests == []


def test_a_server_that_is_not_running_is_explained(tmp_path: Path) -> None:
    """The message names the address and how to start a server there."""
    (tmp_path / "one.json").write_text("[[1]]")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{holder.getsockname()[1]}/score"
        with pytest.raises(OperatorError, match=r"cannot reach http://127(.|\n)*`stoker serve` starts it"):
            run("--data", tmp_path / "one.json", "--uri", uri, "--key", KEY)


def test_a_uri_without_a_path_is_explained(
    serve: Callable[[Behaviour], PuppetServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address alone gets the form of a scoring URI as advice; an address with a path does not."""
    server = serve(
        lambda _: answer({"message": "The method is not allowed", "code": "method_not_allowed"}, 405)
    )
    (tmp_path / "one.json").write_text("[[1]]")
    for uri, has_advice in (
        (server.origin, True),
        (f"{server.origin}/", True),
        (f"{server.origin}/score", False),
    ):
        assert run("--data", tmp_path / "one.json", "--uri", uri, "--key", KEY) == 1
        assert (f"ends in /score: --uri {server.origin}/score" in capsys.readouterr().err) == has_advice


def test_an_error_of_the_server_is_printed(
    server: PuppetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that do not fit end in the server's own words and exit code 1."""
    (tmp_path / "short.json").write_text("[[1, 2]]")
    assert run("--data", tmp_path / "short.json", "--key", KEY) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "stoker score: expected rows of 784 numbers, row 0 has 2 (422 invalid_input"
    )


def test_a_relative_uri_is_refused(tmp_path: Path) -> None:
    """A URI without its scheme is refused with an example of a whole one."""
    (tmp_path / "one.json").write_text("[[1]]")
    with pytest.raises(InvalidSettings, match="has to be absolute"):
        run("--data", tmp_path / "one.json", "--uri", "localhost:8080", "--key", KEY)


@pytest.fixture
def key_sent(
    serve: Callable[[Behaviour], PuppetServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str | None]:
    """Score one row and tell the `Authorization` header that came."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_text("[[1]]")
    sent: list[Request] = []

    def behave(request: Request) -> bytes:
        sent.append(request)
        return answer([0])

    server = serve(behave)
    monkeypatch.setenv("STOKER_PORT", str(urlsplit(server.origin).port))

    def ask(*arguments: str, path: str | None = None) -> str | None:
        uri = () if path is None else ("--uri", f"{server.origin}{path}")
        assert run("--data", tmp_path / "one.json", *uri, *arguments) == 0
        header = sent[-1].headers.get("authorization")
        return None if header is None else header.removeprefix("Bearer ")

    return ask


def test_the_key_is_looked_for_in_order(
    key_sent: Callable[..., str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the option, then STOKER_KEY, then STOKER_PRIMARY_KEY, then the workspace, then none."""
    assert key_sent() is None
    keys = Keyring(tmp_path / ".stoker" / "keys", "digits").ensure()
    assert key_sent() == keys.primary
    monkeypatch.setenv("STOKER_PRIMARY_KEY", "the-servers-variable")
    assert key_sent() == "the-servers-variable"
    monkeypatch.setenv("STOKER_KEY", "the-clients-variable")
    assert key_sent() == "the-clients-variable"
    assert key_sent("--key", "the-option") == "the-option"


def test_the_workspaces_key_is_that_of_the_service(
    key_sent: Callable[..., str | None], tmp_path: Path
) -> None:
    """With several services, `--name` or the URI's path says whose key is sent; otherwise none is."""
    workspace = tmp_path / "elsewhere"
    keys = {name: Keyring(workspace / "keys", name).ensure().primary for name in ("a", "b")}
    here = ("--workspace", str(workspace))
    assert key_sent(*here) is None
    assert key_sent(*here, "--name", "b") == keys["b"]
    assert key_sent(*here, path="/api/v1/service/a/score") == keys["a"]
    assert key_sent(*here, "--name", "b", path="/score") == keys["b"]
    assert key_sent(*here, "--name", "unknown") is None


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("http://127.0.0.1:8080/score", True),
        ("http://127.8.8.8/score", True),
        ("http://[::1]:8080/score", True),
        ("http://localhost/score", True),
        ("http://10.0.0.1/score", False),
        ("http://localhost.example.com/score", False),
        ("http://127.0.0.1.example.com/score", False),
        ("http://127.0.0.1@example.com/score", False),
        ("not a uri", False),
    ],
)
def test_the_workspaces_key_stays_on_this_machine(tmp_path: Path, uri: str, local: bool) -> None:
    """A key read from this workspace is not sent to another host."""
    keys = Keyring(tmp_path, "digits").ensure()
    assert score.key_from_workspace(tmp_path, None, uri) == (keys.primary if local else None)


@pytest.mark.parametrize(
    ("options", "advice"),
    [(["--key", "wrong"], "The key from --key is not valid for this service"), ([], "No key was found")],
)
def test_a_refused_key_is_explained(
    server: PuppetServer, tmp_path: Path, options: list[str], advice: str
) -> None:
    """A refusal says where the key came from and where the right one is, and does not print it."""
    (tmp_path / "one.json").write_text("[[1]]")
    with pytest.raises(OperatorError, match=f"{advice}.*`stoker keys show`") as caught:
        run("--data", tmp_path / "one.json", *options)
    assert "wrong" not in str(caught.value)


def test_the_name_chooses_the_path(server: PuppetServer, tmp_path: Path) -> None:
    """With `--name` the rows go to the service's own path."""
    np.save(tmp_path / "rows.npy", ROWS)
    assert run("--data", tmp_path / "rows.npy", "--name", "digits", "--key", KEY) == 0
    assert server.requests[0].path == "/api/v1/service/digits/score"


def test_pieces_are_printed_as_they_come(
    serve: Callable[[Behaviour], PuppetServer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each is a line of JSON; an error after them is printed like any other."""
    content = (
        '{"word": "upon"}\n{"word": "\\u00e9"}\n{"error": {"message": "it failed", "code": "model_failed"}}\n'
    )
    server = serve(lambda _: answer(content, content_type="application/x-ndjson"))
    monkeypatch.setenv("STOKER_PORT", str(urlsplit(server.origin).port))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "body.json").write_text('{"prompt": "once"}')
    assert run("--data", "body.json", "--stream") == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ['{"word": "upon"}', '{"word": "é"}']
    assert "it failed" in printed.err
    assert json.loads(server.requests[0].body) == {"prompt": "once"}
    with pytest.raises(InvalidSettings, match="--stream goes with --data"):
        run("--file", tmp_path / "body.json", "--stream")


def test_scores_of_float32_are_printed_as_short_decimals() -> None:
    """As in the server's JSON: 0.1 of float32 is 0.10000000149011612 as a double."""
    scores = np.array([[0.1, 2.5]], np.float32)
    assert score._plain({"y": scores, "n": np.array([7])}) == {"y": [[0.1, 2.5]], "n": [7]}

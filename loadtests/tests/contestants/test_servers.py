"""Starting servers, awaiting them, and ending all of their processes."""

import signal
import sys
from pathlib import Path

import pytest

from stoker_bench.contestants.servers import (
    HOST,
    Launch,
    RunningServer,
    ended_by_sigterm,
    free_port,
    get,
    stoker_launch,
    tree_behind,
)
from stoker_bench.errors import BenchedServerError

SERVER_WITH_CHILD = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200 if body == b"score" or self.path == "/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_GET = do_POST = reply
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(program: str, ready_path: str = "/ready") -> Launch:
    """Return a Python program that gets its port as an argument."""
    port = free_port()
    return Launch("tiny", (sys.executable, "-c", program, str(port)), port, ready_path)


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_server_and_its_child_end_together(tmp_path: Path) -> None:
    """Inside the block the server answers and its tree is found by its URI; after it every process is dead."""
    tiny = launch(SERVER_WITH_CHILD)
    with RunningServer(tiny, tmp_path / "log") as server:
        assert get(HOST, tiny.port, "/ready")[0] == 200
        members = server.tree.pids()
        assert len(members) == 2
        assert server.start_s > 0
        behind = tree_behind(tiny.uri)
        assert behind is not None
        assert behind.pids() == members
    assert get(HOST, tiny.port, "/ready")[0] == 0
    assert not any(alive(pid) for pid in members)


def test_ready_may_mean_the_first_score(tmp_path: Path) -> None:
    """With a body, readiness is the answer to that, whatever the health route says."""
    tiny = launch(SERVER_WITH_CHILD, ready_path="/nosuch")
    with RunningServer(tiny, tmp_path / "log", ready_body=b"score"):
        pass


def test_server_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    """The exit code and the end of the log are in the message."""
    with (
        pytest.raises(BenchedServerError, match=r"(?s)exit code 3 before it was ready.*\| no such model"),
        RunningServer(launch("import sys; print('no such model'); sys.exit(3)"), tmp_path / "log"),
    ):
        pytest.fail("the block must not be entered")


def test_an_error_in_the_block_ends_the_server_too(tmp_path: Path) -> None:
    """Ctrl-C while a server is loaded leaves nothing behind."""
    members: list[int] = []

    def interrupted() -> None:
        with RunningServer(launch(SERVER_WITH_CHILD), tmp_path / "log") as server:
            members.extend(server.tree.pids())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(members) == 2
    assert not any(alive(pid) for pid in members)


def test_sigterm_unwinds_like_ctrl_c() -> None:
    """SIGTERM raises KeyboardInterrupt inside the block, and the former handler is back after it."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_servers_elsewhere_have_no_tree() -> None:
    """CPU time is only looked for on this machine, and where somebody listens."""
    assert tree_behind("http://192.0.2.1:8080/score") is None
    assert tree_behind(f"http://{HOST}:{free_port()}/score") is None


def test_stoker_gets_its_key_by_the_environment(tmp_path: Path) -> None:
    """The key stands in no command line, where every user of the machine could read it."""
    started = stoker_launch(tmp_path / "m.onnx", tmp_path / "workspace", "secret-key", frontends=2)
    assert started.environment["STOKER_PRIMARY_KEY"] == started.key == "secret-key"
    assert not any("secret-key" in part for part in started.command)
    assert started.command[-2:] == ("--frontends", "2")

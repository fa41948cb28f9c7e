"""Starting servers, awaiting them, and ending all of their processes."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stoker.errors import InvalidSettings
from stoker_bench.benches.bench import weight_bounds
from stoker_bench.contestants.process_tree import (
    Memory,
    ProcessTree,
    listening_processes,
    machine_busy_s,
    serving_roots,
    tree_behind,
)
from stoker_bench.contestants.servers import (
    ENOUGH_PORTS,
    FIRST_PORT,
    HOST,
    OTHER,
    Launch,
    RunningServer,
    check_python,
    ended_by_sigterm,
    free_port,
    get,
    other_launch,
    stoker_launch,
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
        behind = tree_behind(tiny.uri)
        assert behind is not None
        assert behind.pids() == members
    assert get(HOST, tiny.port, "/ready")[0] == 0
    assert not any(alive(pid) for pid in members)


def test_free_ports_are_none_that_the_system_gives() -> None:
    """Nobody who takes port 0, on whatever address, gets one before its server listens; none is given twice."""
    ports = [free_port() for _ in range(20)]
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split())
    assert len(set(ports)) == 20
    assert first < FIRST_PORT + ENOUGH_PORTS or not any(first <= port <= last for port in ports)


def test_ready_may_mean_the_first_score(tmp_path: Path) -> None:
    """With a body, the server is ready once it answers that, regardless of the health route."""
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


PAGE = resource.getpagesize()
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class FakeProc:
    """A /proc with chosen processes, which psutil reads in the place of the machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: dict[int, int] = {}
        (folder / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\nbtime 1000\n")

    def add(
        self,
        pid: int,
        parent: int,
        *,
        session: int = 0,
        ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
        command: str = "",
        name: str = "python",
        sockets: tuple[int, ...] = (),
    ) -> None:
        """Add a process of `pid` pages; `ticks` are utime, stime, cutime and cstime."""
        self.sessions[pid] = session
        own = self.folder / str(pid)
        (own / "fd").mkdir(parents=True)
        before = f"{pid} ({name}) S {parent} {pid} {session} 0 -1 0 0 0 0 0"
        (own / "stat").write_text(f"{before} {' '.join(map(str, ticks))} 20 0 1 0 {pid * 10}{' 0' * 30}\n")
        (own / "cmdline").write_bytes("".join(f"{word}\0" for word in command.split()).encode())
        rollup = f"00-ff ---p 00000000 00:00 0 [rollup]\nRss: 1 kB\nPss: {pid // 2} kB\nPss_Anon: 1 kB\n"
        (own / "smaps_rollup").write_text(rollup)
        (own / "statm").write_text(f"1000 {pid} 0 0 0 0 0\n")
        for number, inode in enumerate(sockets):
            (own / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def listen(self, port: int, inode: int) -> None:
        """Put a listening socket, and another one in a different state, into net/tcp."""
        (self.folder / "net").mkdir(exist_ok=True)
        heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        line = " 0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 {} 1 0\n"
        lines = line.format(port, "0A", inode) + line.format(port, "01", inode + 1)
        (self.folder / "net" / "tcp").write_text(heading + lines)

    def map_files(self, pid: int, *files: str) -> None:
        """Let a process have mapped files."""
        lines = [f"7f00-7f01 r-xp 00000000 08:01 1 {file}\nRss: 4 kB\n" for file in files]
        (self.folder / str(pid) / "smaps").write_text("".join(lines))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """An empty /proc."""
    fake = FakeProc(tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(os, "getsid", fake.sessions.__getitem__)
    return fake


def test_tree_holds_descendants_and_the_roots_session(proc: FakeProc) -> None:
    """Grandchildren belong to the tree, orphans of the root's session too, strangers do not."""
    proc.add(10, parent=1, session=10)
    proc.add(11, parent=10, session=10)
    proc.add(12, parent=11, session=12)
    proc.add(13, parent=1, session=10)
    proc.add(14, parent=1, session=14)
    assert ProcessTree(10).pids() == [10, 11, 12, 13]


def test_cpu_time_counts_living_and_reaped_processes(proc: FakeProc) -> None:
    """User and system time of the tree's processes and of those children that they have waited for are summed."""
    proc.add(10, parent=1, ticks=(100, 20, 7, 3), name="odd) name (x")
    proc.add(11, parent=10, ticks=(50, 0, 0, 0))
    proc.add(12, parent=1, ticks=(1000, 0, 0, 0))
    assert ProcessTree(10).cpu_s() == pytest.approx(180 / TICKS_A_SECOND)


def test_a_child_that_ends_loses_no_cpu_time(proc: FakeProc) -> None:
    """Once waited for, a child's time stands in its parent, so a difference across its end stays right."""
    tree = ProcessTree(10)
    proc.add(10, parent=1, ticks=(5, 0, 0, 0))
    proc.add(11, parent=10, ticks=(40, 0, 0, 0))
    before = tree.cpu_s()
    stat = proc.folder / "11" / "stat"
    stat.unlink()
    fields = (proc.folder / "10" / "stat").read_text().split()
    fields[15] = "40"
    (proc.folder / "10" / "stat").write_text(" ".join(fields))
    assert tree.cpu_s() == before


def test_memory_and_names(proc: FakeProc) -> None:
    """PSS and RSS are summed in bytes, and processes are found by a part of their command line."""
    proc.add(10, parent=1, command="python -m stoker.cli serve")
    proc.add(12, parent=10, command="python -m stoker.gateway.frontend")
    tree = ProcessTree(10)
    assert tree.memory() == Memory(pss_bytes=11 * 1024, rss_bytes=22 * PAGE)
    assert tree.named("stoker.gateway") == [12]
    assert tree.memory_of(999) == Memory(0, 0)


def test_mapped_libraries_are_found_by_file_name(proc: FakeProc) -> None:
    """Only the name of the mapped file counts, not the folder that it lies in."""
    proc.add(10, parent=1)
    proc.map_files(10, "/lib/onnxruntime/numpy.so", "/lib/libuv.so")
    tree = ProcessTree(10)
    assert tree.maps(10, "libuv")
    assert not tree.maps(10, "onnxruntime")
    assert not tree.maps(999, "libuv")


def test_machine_time_leaves_idle_out(proc: FakeProc) -> None:
    """Idle and I/O wait are not busy; interrupts and stolen time are, guests stand in user time already."""
    (proc.folder / "stat").write_text("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert machine_busy_s() == pytest.approx(63 / TICKS_A_SECOND)


def test_server_is_found_from_its_port(proc: FakeProc) -> None:
    """From a listening frontend the search climbs to its `stoker serve`, whose tree holds the device process."""
    proc.listen(8080, inode=77)
    proc.add(5, parent=1, command="bash")
    proc.add(10, parent=5, command="python -m stoker.cli serve model.onnx")
    proc.add(11, parent=10, command="python -m stoker.gateway.frontend", sockets=(77,))
    proc.add(12, parent=10, command="python -m stoker.device.process", sockets=(78,))
    assert listening_processes(8080) == [11]
    assert listening_processes(8081) == []
    assert serving_roots(8080) == [10]
    assert ProcessTree(10).pids() == [10, 11, 12]


def test_other_servers_are_found_as_their_topmost_listener(proc: FakeProc) -> None:
    """A parent that shares the listening socket with its workers is the root; its shell is not."""
    proc.listen(8080, inode=77)
    proc.add(5, parent=1, command="bash")
    proc.add(10, parent=5, command="uvicorn app:app", sockets=(77,))
    proc.add(11, parent=10, command="uvicorn worker", sockets=(77,))
    assert serving_roots(8080) == [10]


def test_real_tree_is_measured_and_killed() -> None:
    """A child's CPU time and memory are seen in the real /proc, and kill ends parent and child alike."""
    child = "import time\nwhile time.process_time() < 0.15: pass\nprint('done', flush=True)\ninput()"
    # It goes on when the child has gone, or it might end by itself before it is killed.
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        tree = ProcessTree(process.pid)
        assert len(tree.pids()) == 2
        # /proc counts whole ticks of the clock, of which the child may not have begun one.
        assert tree.cpu_s() >= 0.1
        memory = tree.memory()
        assert 0 < memory.pss_bytes <= memory.rss_bytes
        tree.kill(tree.processes())
        # The pipe ends when its last holder, the child, has gone.
        assert process.stdout.read() == ""
        assert process.wait() < 0
    finally:
        process.kill()
        process.communicate()


def test_this_process_is_found_by_its_socket() -> None:
    """A listening socket of this very process is found in the real /proc."""
    import socket

    with socket.create_server((HOST, 0)) as listener:
        assert os.getpid() in listening_processes(listener.getsockname()[1])


def test_frontends_are_weighed_by_the_heaviest(proc: FakeProc) -> None:
    """Among several frontends the largest counts, and a framework that any of them has mapped is named."""
    proc.add(10, parent=1, command="python -m stoker.cli serve")
    proc.add(20, parent=10, command="python -m stoker.gateway.frontend")
    proc.add(30, parent=10, command="python -m stoker.gateway.frontend")
    proc.add(40, parent=10, command="python -m stoker.device.process")
    proc.map_files(20, "/x/libtensorflow_cc.so.2")
    proc.map_files(30)
    weight, frameworks = weight_bounds(ProcessTree(10))
    assert (weight.measured, weight.met) == (30 * PAGE / 1e6, True)
    assert (frameworks.measured, frameworks.met) == (1, False)


def test_other_servers_have_no_frontends(proc: FakeProc) -> None:
    """A tree without Stoker's frontends has nothing to weigh."""
    proc.add(10, parent=1, command="uvicorn app:app")
    assert list(weight_bounds(ProcessTree(10))) == []


def test_the_other_stoker_is_that_of_its_python(tmp_path: Path) -> None:
    """It is started by that Python, with a workspace of its own, and otherwise as the one that is benched."""
    python = Path(sys.executable)
    launch = other_launch(python, tmp_path / "model.onnx", tmp_path, 2, ["--grpc-port", "1"])
    assert launch.name == OTHER
    assert launch.command[:5] == (str(python), "-P", "-m", "stoker.cli", "serve")
    assert {"2", "1", str(tmp_path / "other-workspace")} <= set(launch.command)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'no module' >&2; exit 1\n", r"has no Stoker \(no module\)"),
        (None, "takes the Python of an environment"),
    ],
)
def test_python_without_stoker_is_refused(script: str | None, reason: str, tmp_path: Path) -> None:
    """An environment without Stoker and a path that is no Python are refused with a reason."""
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o700)
    with pytest.raises(InvalidSettings, match=reason):
        other_launch(python, tmp_path / "model.onnx", tmp_path)


def test_the_folder_and_the_path_of_the_bench_are_not_the_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that the bench runs in, or has in its PYTHONPATH, would be compared with itself."""
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "__init__.py").write_text("raise ImportError('the bench has its own Stoker')")
    monkeypatch.chdir(tmp_path)
    check_python(Path(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_python(Path(sys.executable))
    launch = other_launch(Path(sys.executable), tmp_path / "model.onnx", tmp_path)
    assert launch.environment["PYTHONPATH"] == ""

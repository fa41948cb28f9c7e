"""Starting: prerequisites of a server, its errors, and descriptors of its processes."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from tests.http.raw_http import request, rows_body, scoring
from tests.live_server import PRIMARY, SECONDARY, free_port, run_stoker, wait_until
from tests.process.conftest import Serve
from tests.tiny_models import write_mlp, write_script

FRAMEWORKS = ("libtensorflow", "onnxruntime", "libcudart", "libcublas")


def _mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _has_one_blas_thread(pid: int) -> bool:
    return b"OPENBLAS_NUM_THREADS=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_frontends_are_light_and_hold_no_framework(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the device process maps a framework; a frontend that has served stays below 80 MB."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    server = serve(write_mlp(tmp_path / "mlp.onnx"), "--frontends", "2")
    message = scoring("/score", PRIMARY, rows_body(*([0.5] * 784 for _ in range(20))))
    for _ in range(10):
        with server.connect() as connection:
            for _ in range(5):
                assert connection.ask(message).status == 200

    (device,) = server.device_pids()
    assert "onnxruntime" in _mapped(device)
    assert not re.search("_asyncio|libssl", _mapped(device)), "it waits without an event loop"
    frontends = server.frontend_pids()
    assert len(frontends) == 2
    for pid in (*frontends, server.process.pid):
        assert [name for name in FRAMEWORKS if name in _mapped(pid)] == []
    assert max(map(_resident_mib, frontends)) < 80
    assert all(map(_has_one_blas_thread, (device, *frontends))), (
        "ONNX Runtime multiplies with threads of its own"
    )
    for pid in server.pids():
        cores_hold = Path(f"/proc/{pid}/coredump_filter")
        assert not cores_hold.exists() or int(cores_hold.read_text(), 16) == 0, "keys are no part of a core"


def test_ready_means_loaded_and_warm(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `init()` runs, liveness is up and readiness is not; the first request after it is right."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    script = write_script(
        tmp_path / "slow",
        "import pathlib, time, stoker\n"
        "folder = pathlib.Path(__file__).parent\n"
        "def init():\n"
        "    while not folder.joinpath('open').exists():\n"
        "        time.sleep(0.002)\n"
        "@stoker.batched(shape=(2,))\n"
        "def run(data):\n"
        "    with folder.joinpath('batches').open('a') as file:\n"
        "        file.write(f'{len(data)} ')\n"
        "    return data + 1\n",
    )
    port = free_port()
    server = serve(script, "--frontends", "1", "--max-batch-rows", "8", port=port, ready_within_s=None)
    wait_until(lambda: _answers(port), "the frontend listens")
    early = server.get("/v2/health/ready")
    script.with_name("open").touch()
    wait_until(lambda: server.ready, "the model is loaded")
    batches_before = script.with_name("batches").read_text().split()
    answer = server.score([1, 2])

    assert (early.status, early.json()["ready"]) == (503, False)
    assert {"1", "8"} <= set(batches_before), (
        "the smallest and the largest batch have run before anyone asked"
    )
    assert (answer.status, answer.json()) == (200, [[2, 3]])
    assert not any(map(_has_one_blas_thread, server.device_pids())), "scripts may multiply with NumPy"


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_without_auth_no_key_is_needed(serve: Serve, doubler: Path) -> None:
    """The start prints `--no-auth`, and then any key or none is good, but not any page's host name."""
    server = serve(doubler, "--no-auth", "--frontends", "1", given_keys=False)

    assert server.score([1, 2, 3, 4], key="any-key-at-all").json() == [[2, 4, 6, 8]]
    assert "none needed (--no-auth)" in server.output()
    with server.connect() as connection:
        answer = connection.ask(request("GET", "/").replace(b"Host: localhost", b"Host: evil.example"))
        assert answer.error_code() == "host_not_allowed"


def test_settings_come_from_arguments_environment_and_file_in_this_order(
    serve: Serve, doubler: Path, tmp_path: Path
) -> None:
    """A deployment file is overruled by the environment, and that by arguments."""
    file = tmp_path / "deployment.yaml"
    file.write_text(f"frontends: 3\nmax_body_mb: 1\nmodels:\n  - path: {doubler}\n    name: from-the-file\n")
    server = serve("--config", file, "--frontends", "1", env={"STOKER_MAX_BODY_MB": "0.001"})

    assert len(server.frontend_pids()) == 1
    assert server.score([1, 2, 3, 4], path="/api/v1/service/from-the-file/score").status == 200
    assert server.score(*([1, 2, 3, 4] for _ in range(100))).status == 413


def _refused(*arguments: str | Path, exit_code: int) -> str:
    """Run `stoker serve`, which must fail with this exit code; returns what it says on standard error."""
    done = run_stoker(
        "serve", *arguments, env={"STOKER_PRIMARY_KEY": PRIMARY, "STOKER_SECONDARY_KEY": SECONDARY}
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stderr


def test_a_taken_port_stops_the_start_at_once(doubler: Path, tmp_path: Path) -> None:
    """Another server on the port: exit code 2, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = _refused(doubler, "--port", str(port), "--workspace", tmp_path, exit_code=2)

    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in output
    assert "--port" in output
    assert "Traceback" not in output


def test_a_port_of_another_stoker_is_taken(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """Two servers never share a port, although the frontends of one do."""
    server = serve(doubler, "--frontends", "2")

    output = _refused(doubler, "--port", str(server.port), "--workspace", tmp_path, exit_code=2)

    assert "Address already in use" in output
    assert {server.score([1, 2, 3, 4]).status for _ in range(10)} == {200}


def test_a_broken_model_is_refused_with_its_reason(tmp_path: Path) -> None:
    """A file that the runtime cannot load: exit code 3, with the file's name and the runtime's reason."""
    model = tmp_path / "broken.onnx"
    model.write_bytes(b"this is no model")

    output = _refused(model, "--port", "0", "--workspace", tmp_path / "workspace", exit_code=3)

    assert f"cannot load {model}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "def init():\n    raise RuntimeError('no weights')\ndef run(raw_data):\n    pass\n",
            "RuntimeError: no weights",
        ),
        ("def init():\n    raise SystemExit(0)\ndef run(raw_data):\n    pass\n", "SystemExit: 0"),
    ],
    ids=["init raises", "init exits"],
)
def test_a_script_that_does_not_start_is_shown_with_its_traceback(
    tmp_path: Path, text: str, reason: str
) -> None:
    """Exit code 3 as on Azure, the script's traceback, and the content of the model folder."""
    script = write_script(tmp_path / "failing", text)
    (script.parent / "weights").mkdir()
    (script.parent / "weights" / "layer.bin").write_bytes(b"0")

    output = _refused(script, "--port", "0", "--workspace", tmp_path / "workspace", exit_code=3)

    assert reason in output
    assert "Traceback (most recent call last)" in output
    assert str(script) in output
    assert f"The model folder {script.parent} holds:" in output
    assert "weights/layer.bin" in output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def init():\n    pass\n", "does not have a run() function"),
        (
            "import stoker\ndef init(): pass\n@stoker.batched(shape=(2,))\ndef run(data):\n    return data[:1]\n",
            "returned 1 rows for a batch of 2",
        ),
    ],
    ids=["no run", "wrong rows"],
)
def test_script_that_breaks_the_contract_stops_the_start(tmp_path: Path, text: str, reason: str) -> None:
    """A script without what Azure asks for: exit code 3 and the reason."""
    script = write_script(tmp_path / "odd", text)

    output = _refused(script, "--port", "0", "--workspace", tmp_path / "workspace", exit_code=3)

    assert reason in output


def test_a_missing_gpu_stops_the_start_with_its_name(doubler: Path, tmp_path: Path) -> None:
    """`--device cuda:63` cannot be used anywhere: exit code 2, and which driver or GPU is missing."""
    output = _refused(doubler, "--device", "cuda:63", "--port", "0", "--workspace", tmp_path, exit_code=2)

    assert re.search(r"NVIDIA|GPU", output)
    assert "Traceback" not in output


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is an NVIDIA driver here")
def test_without_a_driver_the_missing_driver_is_named(doubler: Path, tmp_path: Path) -> None:
    """A GPU asked for on a machine without one: the driver's library is named, and the CPU is not taken instead."""
    output = _refused(doubler, "--device", "cuda:0", "--port", "0", "--workspace", tmp_path, exit_code=2)

    assert "NVIDIA driver" in output
    assert "NVML" in output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--device", "gpu"], "device must be auto, cpu or cuda:N"),
        (["--timeout-ms", "0"], "timeout_ms must be a whole number between 1"),
        (["--model", "nobody"], "nobody"),
        (["nothing-here.onnx"], "nothing-here.onnx"),
        (
            ["--config", "nothing-here.yaml"],
            "the deployment file nothing-here.yaml cannot be read: No such file",
        ),
        (["--host", "no-such-host.invalid"], "cannot listen on no-such-host.invalid"),
    ],
)
def test_bad_arguments_stop_the_start_with_the_reason(
    doubler: Path, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    """Stoker prints the wrong setting in one line and exits with code 2."""
    model = [] if arguments[0] in ("--model", "nothing-here.onnx", "--config") else [doubler]

    output = _refused(*model, *arguments, "--port", "0", "--workspace", tmp_path, exit_code=2)

    assert reason in output
    assert output.startswith("stoker serve: ")
    assert "Traceback" not in output


def test_a_workspace_that_cannot_be_looked_into_ends_the_start(doubler: Path, tmp_path: Path) -> None:
    """Exit code 2 and a sentence; frontends would end at that again and again, with the keys that were given too."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    # Nobody, not even root, can follow it.
    (workspace / "keys").symlink_to("keys")

    output = _refused(doubler, "--port", "0", "--workspace", workspace, exit_code=2)

    assert output.startswith(
        f"stoker serve: the workspace {workspace} cannot be used (Too many levels of symbolic"
    )
    assert output.count("\n") == 1


def test_a_start_without_models_names_the_command_that_registers_one(tmp_path: Path) -> None:
    """An empty workspace: what could be served, and how."""
    output = _refused("--port", "0", "--workspace", tmp_path / "workspace", exit_code=2)

    assert "nothing is registered" in output
    assert "stoker models register" in output

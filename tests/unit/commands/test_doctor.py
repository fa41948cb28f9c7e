"""`stoker doctor`: its checks and its verdicts."""

import argparse
import json
import resource
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import onnxruntime
import pytest
from tests.background import serving
from tests.certificates import make_pair
from tests.live_server import free_port
from tests.tiny_models import saved_model_bytes, write_mlp
from tests.torchserve_archives import ECHO_HANDLER, manifest_of, write_mar

from stoker.commands import diagnosis, doctor
from stoker.commands.diagnosis import Check, diagnose
from stoker.gpu import selection, survey
from stoker.gpu.facts import Driver, Gpu
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor import ports
from stoker.system.extras import how_to_install, onnx_missing

SCRIPT = "def init(): ...\ndef run(raw_data): ...\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine everywhere: no GPU."""

    def none() -> list[Gpu]:
        raise OSError("no NVIDIA driver is usable here (NVML: Driver Not Loaded)")

    for module in (survey, selection):
        monkeypatch.setattr(module, "gpus", none)
    monkeypatch.setattr(survey, "describe_driver", none)


def script(tmp_path: Path, **files: str) -> Path:
    """An entry script with other files beside it."""
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "score.py").write_text(SCRIPT)
    for name, text in files.items():
        (folder / name.replace("_txt", ".txt")).write_text(text)
    return folder / "score.py"


def checks_of(
    workspace: Workspace, *models: ModelSettings, build: bool = False, **settings: object
) -> dict[str, Check]:
    """Return the checks with these settings, by name."""
    made = ServerSettings(models=models, **{"port": 0, **settings})  # type: ignore[arg-type]
    return {check.name: check for check in diagnose(made, workspace, build=build, say=lambda _: None)}


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args([str(argument) for argument in arguments]))


def test_all_is_well_here(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine on which these tests run can serve: exit code 0, a line for each check, nothing is made."""
    assert run("--port", "0", "--workspace", workspace.root) == 0
    output = capsys.readouterr().out.splitlines()
    outcomes = {line.split()[1]: line.split()[0] for line in output[:-1] if line[0] != " "}
    assert outcomes["python"] == outcomes["packages"] == outcomes["workspace"] == outcomes["port"] == "ok"
    assert (outcomes["device"], outcomes["models"]) == ("note", "note")
    assert output[-1] == "all is well"
    assert not workspace.root.exists()


def test_failed_check_gives_exit_code_1(
    tmp_path: Path, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that is missing; as JSON for programs, as lines for people."""
    path = script(tmp_path, requirements_txt="no-such-package>=3\nsklearn\n")
    arguments = (path, "--port", "0", "--workspace", workspace.root)
    assert run(*arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith("wrong  packages of digits  requirements.txt (user-managed): ") for line in lines
    )
    assert any(line.strip() == "missing no-such-package>=3 (requirements.txt, line 1)" for line in lines)
    assert lines[-1].startswith("1 of ")
    assert run(*arguments, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    (wrong,) = [check for check in report["checks"] if check["outcome"] == "wrong"]
    assert (report["ok"], wrong["name"]) == (False, "packages of digits")
    assert "sklearn: called scikit-learn on PyPI" in wrong["items"]


def test_doctor_accepts_options_of_serve(tmp_path: Path, workspace: Workspace) -> None:
    """The file of packages can be named, and its packages are checked."""
    environment = tmp_path / "conda.yaml"
    environment.write_text(f"dependencies:\n- python>=3.8\n- pip:\n  - pytest=={pytest.__version__}\n")
    path = script(tmp_path, requirements_txt="no-such-package\n")
    arguments = (path, "--port", "0", "--workspace", workspace.root)
    assert run(*arguments, "--environment", environment) == 0


def test_packages_of_the_server_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing ones and those in another version are listed; markers and extras count."""
    needed = ["six>=1", "old>=2", "gone", "other; sys_platform == 'win32'", "extra; extra == 'dev'"]
    monkeypatch.setattr(diagnosis.metadata, "requires", lambda _: needed)
    monkeypatch.setattr(diagnosis, "installed_version", {"six": "1.16", "old": "1.9"}.get)
    check = diagnosis.check_packages()
    assert (check.outcome, check.text) == ("wrong", "2 of the 3 that Stoker needs")
    assert check.items == ("old>=2 is needed, 1.9 is installed", "gone is missing")


def test_a_workspace_that_cannot_be_written_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest folder that exists decides."""
    folders: list[Path] = []
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: bool(folders.append(path)))
    check = diagnosis.check_workspace(Workspace(tmp_path / "deep" / "workspace"))
    assert (check.outcome, folders) == ("wrong", [tmp_path])
    assert "--workspace" in check.text


def test_a_full_disk_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server could not keep its keys there."""
    usage = diagnosis.shutil.disk_usage(tmp_path)
    free_bytes = 1 << 30
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda _: usage._replace(free=free_bytes))
    assert diagnosis.check_workspace(Workspace(tmp_path)).outcome == "ok"
    free_bytes = 0
    check = diagnosis.check_workspace(Workspace(tmp_path))
    assert (check.outcome, "only 0 MiB free" in check.text) == ("wrong", True)


def test_the_management_port_is_looked_at(workspace: Workspace) -> None:
    """It is wrong where another program has it; without one there is no line."""
    port = free_port()
    assert checks_of(workspace, management_port=port)["management port"].outcome == "ok"
    assert "management port" not in checks_of(workspace)
    with socket.create_server(("127.0.0.1", port)):
        assert checks_of(workspace, management_port=port)["management port"].outcome == "wrong"


def test_the_grpc_port_and_its_packages_are_looked_at(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port for gRPC that cannot be served is wrong; without one there is no line."""
    port = free_port()
    assert checks_of(workspace, grpc_port=port)["grpc port"].outcome == "ok"
    assert "grpc port" not in checks_of(workspace)
    with socket.create_server(("127.0.0.1", port)):
        assert checks_of(workspace, grpc_port=port)["grpc port"].outcome == "wrong"
    monkeypatch.setattr(ports, "is_installed", lambda _: False)
    check = checks_of(workspace, grpc_port=port)["grpc port"]
    assert (check.outcome, how_to_install("grpc") in check.text) == ("wrong", True)


def test_certificates_are_looked_at(workspace: Workspace, tmp_path: Path) -> None:
    """Certificates that are unusable or expired are wrong; without TLS there is no such check."""
    good, old = make_pair(tmp_path), make_pair(tmp_path, days=-1, stem="old")
    assert "tls" not in checks_of(workspace)
    check = checks_of(workspace, tls_cert=good.certificate, tls_key=good.key)["tls"]
    assert check.outcome == "ok"
    assert check.text.endswith(" UTC, for localhost, 127.0.0.1")
    assert checks_of(workspace, tls_cert=old.certificate, tls_key=old.key)["tls"].outcome == "wrong"
    mixed = checks_of(workspace, tls_cert=good.certificate, tls_key=old.key)["tls"]
    assert (mixed.outcome, "the key is of another certificate" in mixed.text) == ("wrong", True)


def test_a_taken_port_is_wrong_unless_stoker_has_it() -> None:
    """Something else on the port keeps a server from starting; a running Stoker is worth a note."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
    assert diagnosis.check_port("127.0.0.1", port).outcome == "ok"

    class Stranger(BaseHTTPRequestHandler):
        answer = b"[]"

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Stranger)
    with serving(server):
        port = server.server_address[1]
        stranger = diagnosis.check_port("127.0.0.1", port)
        Stranger.answer = b'{"ready": true}'
        running = diagnosis.check_port("127.0.0.1", port)
    assert (stranger.outcome, f"cannot listen on 127.0.0.1 port {port}" in stranger.text) == ("wrong", True)
    assert (running.outcome, running.text.endswith("and is ready")) == ("note", True)


@pytest.mark.parametrize(
    ("files", "address_space", "outcome"),
    [
        ((65_536, 65_536), resource.RLIM_INFINITY, "ok"),
        ((1_024, 65_536), resource.RLIM_INFINITY, "ok"),
        ((1_024, 4_096), resource.RLIM_INFINITY, "note"),
        ((256, 256), resource.RLIM_INFINITY, "wrong"),
        ((65_536, 65_536), 1 << 32, "note"),
    ],
)
def test_limits_of_processes_count(
    monkeypatch: pytest.MonkeyPatch, files: tuple[int, int], address_space: int, outcome: str
) -> None:
    """Files are connections; frameworks reserve address space."""
    limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_AS: (address_space, address_space)}
    monkeypatch.setattr(diagnosis.resource, "getrlimit", limits.__getitem__)
    assert diagnosis.check_limits().outcome == outcome


def test_little_memory_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not wrong: small models need little."""
    assert diagnosis.check_memory().outcome in {"ok", "note"}
    monkeypatch.setattr(diagnosis, "main_memory", lambda: (1 << 30, 1 << 20))
    assert diagnosis.check_memory() == Check("memory", "note", "1 MiB available")


def test_a_gpu_that_a_runtime_cannot_use_is_wrong(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPUs are listed, and for each framework whether it can use them; each is checked once."""
    gpu = Gpu(0, "GPU-one", "H200", 141 << 30)
    devices_tried: list[str] = []
    problems: dict[str, str] = {"onnx": "libcudnn.so.9 is missing"}

    def problem(uuid: str, framework: str) -> str | None:
        assert uuid == gpu.uuid
        devices_tried.append(framework)
        return problems.get(framework)

    for module in (survey, selection):
        monkeypatch.setattr(module, "gpus", lambda: [gpu])
    monkeypatch.setattr(survey, "describe_driver", lambda: Driver("580.95.05", "13.0"))
    monkeypatch.setattr(diagnosis, "probe_in_child", problem)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check = checks_of(workspace)["device"]
    assert check.outcome == "wrong"
    assert check.items[:2] == (
        "driver: NVIDIA 580.95.05, for CUDA up to 13.0",
        "cuda:0: H200, 141.0 GiB memory, GPU-one",
    )
    assert "onnx cannot use them: libcudnn.so.9 is missing" in check.items
    problems.clear()
    devices_tried.clear()
    check = checks_of(workspace)["device"]
    assert (check.outcome, check.items[2]) == ("ok", "onnx can use them")
    assert len(devices_tried) == len(set(devices_tried))
    check = checks_of(workspace, device=("auto", "cuda:0"))["device"]
    assert check.outcome == "ok"


def test_configured_gpu_that_is_absent_is_wrong(workspace: Workspace) -> None:
    """With `auto` the CPU is good enough, with `cuda:0` it is not."""
    assert checks_of(workspace)["device"].outcome == "note"
    assert checks_of(workspace, device=("cpu",))["device"].outcome == "ok"
    assert checks_of(workspace, device=("cuda:0",))["device"].outcome == "wrong"


def test_a_model_that_is_not_there_is_wrong(workspace: Workspace) -> None:
    """`stoker serve` would refuse it."""
    check = checks_of(workspace, ModelSettings(registered="nobody"))["models"]
    assert (check.outcome, "nobody" in check.text) == ("wrong", True)


def test_a_model_at_an_address_is_fetched(workspace: Workspace, tmp_path: Path) -> None:
    """As the server would; one that cannot be is wrong."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    write_mlp(tmp_path / "model.onnx")
    there, gone = (ModelSettings(path=Path(f"file://{tmp_path}/{name}.onnx")) for name in ("model", "gone"))
    checks = checks_of(workspace, there)
    assert "models" not in checks
    assert [check.outcome for name, check in checks.items() if name.startswith("model")] == ["ok"]
    refused = checks_of(workspace, gone)["models"]
    assert (refused.outcome, refused.text) == ("wrong", f"there is nothing at file://{tmp_path}/gone.onnx")


def test_script_with_missing_imports_is_wrong(
    tmp_path: Path, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is not run for it; optional imports are only listed."""
    path = script(tmp_path)
    path.write_text(f"import not_installed\nraise SystemExit\n{SCRIPT}")
    check = checks_of(workspace, ModelSettings(path=path))["imports of digits"]
    assert (check.outcome, check.items) == ("wrong", ("missing  not_installed (score.py:1)",))
    assert run(path, "--workspace", workspace.root, "--port", "0") == 1
    assert "not_installed (score.py:1)" in capsys.readouterr().out

    path.write_text(f"import json\ntry:\n    import not_installed\nexcept ImportError: ...\n{SCRIPT}")
    check = checks_of(workspace, ModelSettings(path=path))["imports of digits"]
    assert check.outcome == "note"
    assert check.text == "2 packages, all there, but for 1 that it can do without"

    path.write_text("def init(:\n")
    check = checks_of(workspace, ModelSettings(path=path))["imports of digits"]
    assert check.outcome == "wrong"
    assert "no valid Python" in check.text


def test_azures_modules_are_there_if_their_distribution_is(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the check names what to install."""
    path = script(tmp_path)
    path.write_text(f"from azureml.core.model import Model\n{SCRIPT}")
    assert checks_of(workspace, ModelSettings(path=path))["imports of digits"].outcome == "ok"
    monkeypatch.setattr(diagnosis, "find_extension", lambda name: None)
    check = checks_of(workspace, ModelSettings(path=path))["imports of digits"]
    assert check.outcome == "wrong"
    assert "install" in check.items[0]


def test_optional_packages_are_listed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By extra, those that are there and those that are not."""
    monkeypatch.setattr(diagnosis, "installed_extras", lambda: {"azure": True, "grpc": True, "ray": False})
    assert checks_of(workspace)["extras"].text == "azure, grpc; not installed: ray"


def test_code_that_a_model_runs_is_listed_without_passwords(tmp_path: Path, workspace: Workspace) -> None:
    """`doctor` lists pickles and packages that run code, and hides passwords of addresses."""
    (tmp_path / "churn.pkl").touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "setup.py").touch()
    (tmp_path / "packages.txt").write_text(
        "--extra-index-url https://me:secret@packages.test/simple\n./own\n"
    )
    model = ModelSettings(
        path=tmp_path / "churn.pkl", environment=tmp_path / "packages.txt", environment_managed="system"
    )
    checks = checks_of(workspace, model)
    assert checks["model churn"].items == (
        "loading it runs the code that the pickle churn.pkl names: serve what you trust",
    )
    assert checks["packages of churn"].items == (
        "from elsewhere than the usual index: ./own (packages.txt, line 2) is built by its own setup.py or "
        "pyproject.toml",
        "from elsewhere than the usual index: packages come from packages.test (--extra-index-url)",
    )


@pytest.mark.parametrize("managed", ["user", "system"])
def test_a_saved_model_without_tensorflow_is_wrong(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, managed: str
) -> None:
    """`stoker serve` would refuse it, unless Stoker installs TensorFlow itself."""
    (tmp_path / "iris").mkdir()
    (tmp_path / "iris" / "saved_model.pb").touch()
    (tmp_path / "packages.txt").touch()
    found = diagnosis.find_spec
    monkeypatch.setattr(diagnosis, "find_spec", lambda name: None if name == "tensorflow" else found(name))
    model = ModelSettings(
        path=tmp_path / "iris", environment=tmp_path / "packages.txt", environment_managed=managed
    )
    check = checks_of(workspace, model)["model iris"]
    if managed == "system":
        assert (check.outcome, check.items) == ("ok", ())
    else:
        assert check.outcome == "wrong"
        assert check.items == (f"it needs tensorflow; {how_to_install('tensorflow')}",)


def test_side_effects_of_a_saved_model_are_listed(tmp_path: Path, workspace: Workspace) -> None:
    """`doctor` reads operators without TensorFlow and lists those that read, write or run something."""
    (tmp_path / "iris").mkdir()
    file = tmp_path / "iris" / "saved_model.pb"
    file.write_bytes(saved_model_bytes({"y": ("WriteFile", [], [])}, {}, {"serving_default": ([], ["y:0"])}))
    check = checks_of(workspace, ModelSettings(path=tmp_path / "iris"))["model iris"]
    assert check.items[-1:] == ("reaches out of the server for requests to serving_default: WriteFile",)
    file.write_bytes(b"no model")
    assert (
        "cannot be read"
        in checks_of(workspace, ModelSettings(path=tmp_path / "iris"))["model iris"].items[-1]
    )
    file.rename(file.with_suffix(".pbtxt"))
    assert "text form" in checks_of(workspace, ModelSettings(path=tmp_path / "iris"))["model iris"].items[-1]


def test_an_onnx_model_without_onnx_runtime_is_wrong(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without such a model, no ONNX Runtime is worth a note: scripts and SavedModels do without."""
    found = diagnosis.find_spec
    monkeypatch.setattr(diagnosis, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    monkeypatch.setattr(diagnosis, "installed_onnx_builds", dict)
    model = write_mlp(tmp_path / "digits.onnx")
    check = checks_of(workspace, ModelSettings(path=model))["model digits"]
    assert (check.outcome, check.items) == ("wrong", (f"it needs onnxruntime; {onnx_missing()}",))
    check = checks_of(workspace)["onnx runtime"]
    assert (check.outcome, check.text) == ("note", f"none: for ONNX models, {onnx_missing()}")


def test_the_build_of_onnx_runtime_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them in one folder are wrong, for any model."""
    check = checks_of(workspace)["onnx runtime"]
    assert (check.outcome, check.text.split()) == ("ok", ["onnxruntime-gpu", onnxruntime.__version__])
    monkeypatch.setattr(diagnosis, "onnx_clash", lambda: "both are installed")
    check = checks_of(workspace)["onnx runtime"]
    assert (check.outcome, check.text) == ("wrong", "both are installed")


def test_notes_alone_are_not_wrong(tmp_path: Path, workspace: Workspace) -> None:
    """Differences between the how-to's packages and today's Python are listed, but the script will be served."""
    path = script(tmp_path, requirements_txt="azureml-defaults\nnumpy\n")
    environment = tmp_path / "myenv.yml"
    environment.write_text("dependencies:\n- python=3.6.2\n- numpy\n")
    checks = checks_of(workspace, ModelSettings(path=path, environment=environment))
    check = checks["packages of digits"]
    assert (check.outcome, check.items) == (
        "note",
        (f"python 3.6.2 is asked for, this is {sys.version.split()[0]}",),
    )
    assert checks["model digits"].outcome == "ok"


def test_system_managed_environments_are_built_on_request(tmp_path: Path, workspace: Workspace) -> None:
    """A missing one is no fault: the start builds it, or `--build` now; a failed build is wrong."""
    path = script(tmp_path, requirements_txt="azureml-defaults\n", bad_txt="--no-index\nno-such-package\n")
    model = ModelSettings(path=path, environment_managed="system")
    check = checks_of(workspace, model)["packages of digits"]
    assert (check.outcome, "not built yet" in check.text) == ("note", True)
    assert checks_of(workspace, model, build=True)["packages of digits"].outcome == "ok"
    check = checks_of(workspace, model)["packages of digits"]
    assert (check.outcome, "built before" in check.text) == ("ok", True)
    bad = ModelSettings(path=path, environment=path.with_name("bad.txt"), environment_managed="system")
    check = checks_of(workspace, bad, build=True)["packages of digits"]
    assert (check.outcome, "no-such-package" in check.text) == ("wrong", True)


def test_the_handler_of_an_archive_is_looked_at(workspace: Workspace, tmp_path: Path) -> None:
    """Its imports are checked, not the entry script's; a note says that loading runs its code; `ts` is provided."""
    code = f"import nowhere_at_all\n{ECHO_HANDLER}"
    path = write_mar(tmp_path, manifest_of("echo", "echo_handler.py"), {"echo_handler.py": code})
    found = checks_of(workspace, ModelSettings(path=path))
    assert "(archive of TorchServe)" in found["model echo"].text
    assert "runs the code of the handler echo_handler.py" in found["model echo"].items[0]
    (missing,) = found["imports of echo"].items
    assert missing.startswith("missing  nowhere_at_all (")

"""`stoker az ml`: Azure's command lines, as files and as commands of Stoker."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_azure.commands import az_actions
from stoker_azure.commands.az import REFUSED
from stoker_azure.sdk import core as azure_sdk
from stoker_runs.launch.azure_files import read_compute, read_run_config
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.targets.container_program import ContainerProgram
from stoker_runs.targets.containers import Image
from stoker_runs.targets.definitions import Target, find_target
from stoker_runs.targets.engine import EngineFailure

Output = pytest.CaptureFixture[str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "aml_config").mkdir(parents=True)
    (folder / "aml_config" / "conda_dependencies.yml").write_text("dependencies: [python=3.5.2]")
    (folder / "train.py").write_text("print(1)")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    return folder


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of Stoker that those of Azure become."""
    found: list[list[str]] = []

    def kept(words: list[str]) -> int:
        found.append(words)
        return 0

    monkeypatch.setattr(az_actions, "_run_stoker", kept)
    return found


def test_files_that_are_written_after_attach_are_used(project: Path, tmp_path: Path, capsys: Output) -> None:
    """The documents attach first, and edit the dependencies then; a line names missing files."""
    conda = project / "aml_config" / "conda_dependencies.yml"
    written = conda.read_text()
    conda.unlink()
    given = ["--name", "box", "--address", "host.lab", "--username", "me"]
    assert main(["az", "ml", "computetarget", "attach", "localdocker", *given]) == 0
    run_config = project / "aml_config" / "box.runconfig"
    before = read_run_config(run_config, tmp_path)
    assert "file" not in before.configuration["environment"]
    assert "there is no aml_config/conda_dependencies.yml" in before.notes[0]
    conda.write_text(written)
    (project / "aml_config" / "spark_dependencies.yml").write_text("configuration: {spark.app.name: later}")
    environment = read_run_config(run_config, tmp_path).configuration["environment"]
    assert Path(environment["file"]).samefile(conda)
    assert environment["variables"]["PYSPARK_SUBMIT_ARGS"] == "--conf spark.app.name=later pyspark-shell"
    lines = run_config.read_text().splitlines()
    run_config.write_text("\n".join(line for line in lines if "Dependencies" not in line))
    without = read_run_config(run_config, tmp_path)
    assert "file" not in without.configuration["environment"]
    assert "CondaDependenciesFile does not name it" in without.notes[0]


def test_attach_writes_two_files_and_no_password(project: Path, tmp_path: Path, capsys: Output) -> None:
    """The password is in a file of the workspace that its owner alone can read."""
    given = ["--name", "box", "--address", "host.lab", "--username", "me", "--password", "s3cret-word"]
    assert main(["az", "ml", "computetarget", "attach", "localdocker", *given]) == 0
    config = project / "aml_config"
    compute = yaml.safe_load((config / "box.compute").read_text())
    assert compute["type"] == "localdocker"
    assert compute["password"].startswith("AzureMlSecret=box#me#")
    assert (compute.get("nvidiaDocker"), compute["sharedVolumes"]) == (None, True)
    run_config = yaml.safe_load((config / "box.runconfig").read_text())
    assert (run_config["ArgumentVector"], run_config["Target"]) == (["$file"], "box")
    assert run_config["CondaDependenciesFile"] == "aml_config/conda_dependencies.yml"
    secret = tmp_path / "home" / "targets" / "box.secret"
    assert json.loads(secret.read_text()) == {"password": "s3cret-word"}
    assert secret.stat().st_mode & 0o077 == 0
    file_text = "".join(
        path.read_text() for path in [*config.iterdir(), *(tmp_path / "home" / "targets").glob("*.yaml")]
    )
    assert "s3cret-word" not in file_text + "".join(capsys.readouterr())


def test_line_for_gpus_is_added_to_the_attached_file(project: Path, capsys: Output) -> None:
    """As the how-to has it: change baseDockerImage, add nvidiaDocker; no note is needed for that."""
    given = ["--name", "box", "--address", "host.lab", "--username", "me", "--no-check"]
    assert main(["az", "ml", "computetarget", "attach", "remotedocker", *given]) == 0
    compute = project / "aml_config" / "box.compute"
    compute.write_text(compute.read_text().replace("plus-0.9.9", "plus-gpu-0.9.9") + "nvidiaDocker: true\n")
    read = read_compute(compute)
    assert (read.image, read.gpus, read.notes) == ("microsoft/mmlspark:plus-gpu-0.9.9", 1, ())


def test_a_target_that_cannot_be_leaves_no_file(project: Path, capsys: Output) -> None:
    """The older form of the command is taken too."""
    assert main(["az", "ml", "computetarget", "attach", "--name", "x", "--type", "remotedocker"]) == 2
    assert "address is missing" in capsys.readouterr().err
    assert not (project / "aml_config" / "x.compute").exists()


def test_detach_removes_the_files_of_attach(project: Path, tmp_path: Path) -> None:
    """Of the project and of the workspace."""
    main(["az", "ml", "computetarget", "attach", "localdocker", "--name", "box", "--password", "x"])
    assert main(["az", "ml", "computetarget", "detach", "--name", "box"]) == 0
    assert [path.name for path in (project / "aml_config").iterdir()] == ["conda_dependencies.yml"]
    assert list((tmp_path / "home" / "targets").iterdir()) == []


@pytest.mark.parametrize(
    ("azure", "stoker"),
    [
        ("experiment submit -c box train.py --lr 0.1", "submit --config box train.py --lr 0.1"),
        ("experiment submit -c gpu --target box train.py", "submit --config gpu --target box train.py"),
        ("experiment submit -c bare train.py", "submit --target bare train.py"),
        ("experiment submit -c local train.py", "submit --target local train.py"),
        ("experiment submit -c gone train.py", "submit --config gone train.py"),
        ("run submit-script -c gpu -e e --async train.py", "submit --experiment e --config gpu --detach train.py"),
        ("history info --run-id R", "runs show R --json"),
        ("history download --run-id R", "runs download R "),
        ("project restore --run-id R", "runs snapshot R --output R"),
        ("run cancel -r R", "runs cancel R"),
        ("job list", "runs list --json"),
        ("job show -n R", "runs show R --json"),
        ("job stream --name R", "runs logs R -f"),
        ("job cancel -n R", "runs cancel R"),
        ("computetarget list", "targets list"),
        ("experiment list", "experiments list"),
    ],
)  # fmt: skip
def test_a_command_line_of_azure_is_one_of_stoker(
    project: Path, lines: list[list[str]], azure: str, stoker: str
) -> None:
    """Word by word."""
    for name in ("box", "gpu"):
        (project / "aml_config" / f"{name}.runconfig").write_text("ArgumentVector: [$file]\nTarget: local\n")
    (project / "aml_config" / "bare.compute").write_text("type: localdocker\n")
    assert main(["az", "ml", *azure.split()]) == 0
    assert lines == [stoker.split(" ")]


@pytest.mark.parametrize(("group", "verb"), [(group, verb) for group in REFUSED for verb in REFUSED[group]])
def test_unsupported_az_command_names_the_supported_ones(
    project: Path, capsys: Output, group: str, verb: str
) -> None:
    """An unsupported command is refused in one sentence, with any options."""
    assert main(["az", "ml", group, verb or "list", "-n", "x", "--query", "y"]) == 2
    expected = capsys.readouterr().err
    assert f"az ml {group} {verb or 'list'} is not offered: " in expected
    assert len(expected.splitlines()) == 1


@pytest.mark.parametrize(
    ("azure", "stoker"),
    [
        ("online-deployment create -n blue -f blue.yml --all-traffic", "stoker serve --deployment blue.yml"),
        ("online-endpoint create --file e.yml", "stoker serve --endpoint e.yml --deployment DEPLOYMENT.yml"),
        ("online-endpoint invoke -n e -r request.json", "stoker score --file REQUEST.json"),
        ("online-deployment show -n blue", "stoker status"),
    ],
)
def test_lines_that_serve_name_the_command_with_its_file(
    project: Path, capsys: Output, azure: str, stoker: str
) -> None:
    """They are lines of the CLI v2 that begin a service on Azure; here it is a server."""
    assert main(["az", "ml", *azure.split()]) == 2
    assert f"'{stoker}'" in capsys.readouterr().err


def test_a_job_of_the_second_cli_is_a_run(project: Path, capsys: Output) -> None:
    """By its YAML; it is followed where Azure would stream it, and options that mean Azure alone are taken."""
    (project / "train.py").write_text("import os, sys; print(sys.argv[1:], os.environ['MODE'])")
    (project / "job.yml").write_text(
        "command: python train.py ${{inputs.lr}}\ninputs: {lr: 0.5}\nenvironment_variables: {MODE: fast}\n"
        "environment: azureml:sklearn:1\nexperiment_name: digits\n"
    )
    assert main(["az", "ml", "job", "create", "-f", "job.yml", "--stream", "-g", "group", "-w", "ws"]) == 0
    expected = capsys.readouterr()
    assert "['0.5'] fast" in expected.out
    assert "job.yml: environment azureml:sklearn:1 is one of Azure's workspace" in expected.err


Run = Callable[[str, float], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Makes a run that has ended and measured its accuracy."""
    store = RunStore(Workspace(tmp_path / "home").create().runs_dir)

    def made(token: str, accuracy: float) -> None:
        record = RunRecord(f"digits_1_{token}", "digits", 1000, Definition("train.py"))
        state = RunState(Status.COMPLETED, since_ms=5, started_ms=2, ended_ms=5)
        folder = store.create(record, state)
        folder.attempt(1).mkdir(parents=True)
        line = {"t": 3, "k": "Accuracy", "v": accuracy, "a": 1}
        (folder.attempt(1) / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    return made


def test_history_shows_metrics_of_runs(project: Path, run: Run, capsys: Output) -> None:
    """As a table, as JSON, and as columns for other programs."""
    run("00000001", 0.5)
    run("00000002", 0.96875)
    assert main(["az", "ml", "history", "list", "-o", "table"]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split()[0] == "Run_id"
    assert title.split()[-1] == "Accuracy"
    assert {row.split()[-1] for row in rows} == {"0.5", "0.96875"}
    assert main(["az", "ml", "history", "list"]) == 0
    assert {one["Accuracy"] for one in json.loads(capsys.readouterr().out)} == {0.5, 0.96875}
    assert main(["az", "ml", "history", "list", "-o", "tsv"]) == 0
    assert {line.split("\t")[-1] for line in capsys.readouterr().out.splitlines()} == {"0.5", "0.96875"}


def test_promote_registers_any_file(project: Path, run: Run, tmp_path: Path, lines: list[list[str]]) -> None:
    """As on Azure; what no server can serve is kept for entry scripts."""
    run("00000001", 0.5)
    outputs = next((tmp_path / "home").rglob("*_00000001")) / "outputs"
    outputs.mkdir(exist_ok=True)
    for name, more in {"weights.txt": ["--framework", "files"], "model.onnx": []}.items():
        (outputs / name).write_bytes(b"x")
        given = ["-r", "@latest", "-ap", f"outputs/{name}", "-n", "digits"]
        assert main(["az", "ml", "history", "promote", *given]) == 0
        assert lines.pop() == ["models", "register", "digits", f"outputs/{name}", "--run", "@latest", *more]


def test_prepare_writes_the_files_of_a_run(project: Path, capsys: Output, tmp_path: Path) -> None:
    """Its target is taken from the file, and the workspace has only the files of runs."""
    lines = "ArgumentVector: [$file]\nTarget: local\nFramework: Python\n"
    (project / "aml_config" / "local.runconfig").write_text(lines)
    (project / "aml_config" / "local.compute").write_text(
        f"type: local\nnativeSharedDirectory: {tmp_path}/share\n"
    )
    assert main(["az", "ml", "experiment", "prepare", "-c", "local"]) == 0
    assert capsys.readouterr().out == "local is prepared\n"
    left = {path.name for path in (tmp_path / "home").iterdir() if path.is_dir()}
    assert left == {"snapshots", "targets"}


def test_a_configuration_of_azure_is_one_of_submit(project: Path, capsys: Output) -> None:
    """`stoker submit --config` takes it, arguments of the file first; an image counts in containers alone."""
    (project / "aml_config" / "sdk.runconfig").write_text(
        "script: train.py\ntarget: local\narguments: [--lr, 1]\n"
        "environment: {docker: {baseImage: lab/train:1}, python: {userManagedDependencies: true}}\n"
    )
    assert main(["submit", "--dry-run", "--config", "sdk"]) == 0
    assert "command      train.py --lr 1" in capsys.readouterr().out
    (project / "aml_config" / "old.runconfig").write_text(
        "ArgumentVector: [$file, --lr, 1]\nTarget: local\nFramework: Python\n"
    )
    assert main(["submit", "--dry-run", "--config", "old", "train.py", "--epochs", "2"]) == 0
    assert "command      train.py --lr 1 --epochs 2" in capsys.readouterr().out


@pytest.mark.parametrize("asks", ["docker: {useDocker: true}", "environment: {docker: {enabled: true}}"])
def test_container_of_an_azure_file_needs_a_container_engine(
    project: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """Where the target has none of its own; without a program a line says that there is none."""
    content = f"script: train.py\ntarget: local\n{asks}\n"
    (project / "aml_config" / "sdk.runconfig").write_text(content)
    monkeypatch.setattr(ContainerProgram, "find", lambda _engine: ContainerProgram("docker", "docker"))
    monkeypatch.setattr(Image, "obtain", lambda *_: None)
    assert main(["submit", "--dry-run", "--config", "sdk"]) == 0
    assert "target       local (docker)" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(project)
    monkeypatch.setenv("STOKER_WORKSPACE", str(project / "home"))
    monkeypatch.setenv("STOKER_CONTAINER_ENGINE", "no-such-program")
    assert main(["submit", "--dry-run", "--config", "sdk"]) == 0
    captured = capsys.readouterr()
    assert "target       local (local)" in captured.out
    assert "the script runs without one: no-such-program is not on the PATH" in captured.err


@pytest.mark.parametrize("options", [[], ["--target", "local"], ["--config", "local"]])
def test_the_interpreter_of_a_compute_file_runs_the_script(
    project: Path, capsys: Output, options: list[str]
) -> None:
    """However the target is named; what Workbench writes where nobody has chosen is the Python that is here."""
    config = project / "aml_config"
    (config / "local.runconfig").write_text(
        "ArgumentVector: [$file]\nTarget: local\nFramework: Python\n"
        "CondaDependenciesFile: aml_config/conda_dependencies.yml\n"
    )
    for location, shown in (("/opt/py/bin/python", "/opt/py/bin/python"), ("python", sys.executable)):
        (config / "local.compute").write_text(f"type: local\npythonLocation: {location}\n")
        assert main(["submit", "--dry-run", *options, "train.py"]) == 0
        assert f"environment  {shown} as it is" in capsys.readouterr().out
    (config / "local.compute").write_text("type: local\npythonLocation: ~/py/bin/python\n")
    assert main(["submit", "--dry-run", *options, "train.py"]) == 0
    assert f"environment  {Path.home()}/py/bin/python as it is" in capsys.readouterr().out


def test_the_interpreter_of_a_compute_file_gives_way_to_packages(project: Path, capsys: Output) -> None:
    """Where a conda file is installed, a line says so; with userManagedEnvironment there is no conda file."""
    config = project / "aml_config"
    (config / "box.runconfig").write_text(
        "ArgumentVector: [$file]\nTarget: box\nFramework: Python\n"
        "CondaDependenciesFile: aml_config/conda_dependencies.yml\n"
    )
    lines = "type: remote\naddress: host.lab\nusername: me\npythonLocation: /opt/python\n"
    (config / "box.compute").write_text(lines)
    assert main(["submit", "--dry-run", "--config", "box", "train.py"]) == 0
    captured = capsys.readouterr()
    assert "environment  exact: " in captured.out
    assert "pythonLocation is not used: the packages are those of " in captured.err
    assert "userManagedEnvironment: true into box.compute" in captured.err
    (config / "box.compute").write_text(lines + "userManagedEnvironment: true\n")
    assert main(["submit", "--dry-run", "--config", "box", "train.py"]) == 0
    printed = capsys.readouterr()
    assert "environment  /opt/python as it is" in printed.out
    assert "the packages of the Python there, without the conda file" in printed.err


def test_targets_of_azure_are_resolved_by_kind(project: Path, capsys: Output) -> None:
    """A cluster's runs are on this machine; Batch takes no scripts, and says so."""
    assert main(["az", "ml", "computetarget", "create", "amlcompute", "-n", "cpu", "--max-nodes", "2"]) == 0
    lines = "ArgumentVector: [$file]\nTarget: cpu\nFramework: Python\n"
    (project / "aml_config" / "cpu.runconfig").write_text(lines)
    assert main(["submit", "--dry-run", "--config", "cpu", "train.py"]) == 0
    captured = capsys.readouterr()
    assert "cpu: the cores and GPUs of this machine stand for the cluster" in captured.out
    assert "target       cpu (amlcompute)" in captured.out
    (Workspace.find().targets_dir / "cpu.yaml").unlink()
    record = Workspace.find().azure_dir / "compute" / "cpu.json"
    record.write_text(record.read_text().replace("AmlCompute", "Batch"))
    assert main(["submit", "--dry-run", "--config", "cpu", "train.py"]) == 2
    assert "cpu is a compute target of type Batch" in capsys.readouterr().err


def test_failed_attach_names_the_cause_and_keeps_files(project: Path, capsys: Output) -> None:
    """A key of the user's is let in by a command that is named; a file is as it was where a new one is refused."""
    attach = ["az", "ml", "computetarget", "attach"]
    assert main([*attach, "-n", "box"]) == 2
    assert "say what it is: remotedocker, remote, cluster" in capsys.readouterr().err
    assert main([*attach, "remote", "-n", "box", "-a", "host.lab", "-u", "me", "-k"]) == 0
    assert "ssh-copy-id me@host.lab" in capsys.readouterr().err
    compute = project / "aml_config" / "box.compute"
    before = compute.read_text()
    assert yaml.safe_load(before) == {
        "type": "remote",
        "address": "host.lab",
        "username": "me",
        "userManagedEnvironment": True,
    }
    run_config = yaml.safe_load((project / "aml_config" / "box.runconfig").read_text())
    assert run_config["Framework"] == "PySpark"
    assert main([*attach, "remote", "-n", "box"]) == 2
    assert compute.read_text() == before


def test_clusters_are_shared_with_the_sdk(project: Path, capsys: Output) -> None:
    """The command line creates, lists, shows, updates and forgets the clusters of the SDK, to which runs go."""
    azure = ["az", "ml", "computetarget"]
    cluster = ["amlcompute", "-n", "cpu-cluster"]
    assert main([*azure, "create", *cluster, "--max-nodes", "4", "-s", "STANDARD_D3_V2"]) == 0
    assert main(["submit", "--dry-run", "--target", "cpu-cluster", "train.py"]) == 0
    assert "target       cpu-cluster (amlcompute)" in capsys.readouterr().out
    assert main([*azure, "list"]) == 0
    assert "cpu-cluster  amlcompute" in capsys.readouterr().out
    assert main([*azure, "update", *cluster, "--min-nodes", "1", "--max-nodes", "3"]) == 0
    assert main([*azure, "show", "-n", "cpu-cluster"]) == 0
    assert "nodes   1 to 3" in capsys.readouterr().out
    ws = azure_sdk.Workspace.from_config()
    target = ws.compute_targets["cpu-cluster"]
    assert (target.vm_size, target.get_status().most) == ("STANDARD_D3_V2", 3)
    assert main([*azure, "detach", "-n", "cpu-cluster"]) == 0
    assert ws.compute_targets == {}

    assert main(["targets", "create", "amlcompute", "gpus", "--max-nodes", "2", "--no-check"]) == 0
    words = ["-n", "vm", "-a", "host.lab", "-u", "me", "-p", "word", "--no-check"]
    assert main([*azure, "attach", "remote", *words]) == 0
    found = {
        name: (target.type, target.serialize()["properties"]) for name, target in ws.compute_targets.items()
    }
    assert found["gpus"] == ("AmlCompute", {"max_nodes": 2})
    assert found["vm"] == ("VirtualMachine", {"address": "host.lab", "username": "me", "containers": False})
    assert ws.compute_targets["gpus"].get_status().serialize()["scaleSettings"]["maxNodeCount"] == 2
    assert main(["targets", "detach", "gpus"]) == 0
    ws.compute_targets["vm"].delete()
    assert (ws.compute_targets, list(Workspace.find().targets_dir.glob("*.yaml"))) == ({}, [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "computetarget update amlcompute -n cpu --max-nodes 2",
            "there is no compute target 'cpu' in the workspace",
        ),
        ("computetarget create amlcompute -n cpu --max-nodes x", "max_nodes is 'x', and has to be a number"),
        ("computetarget create amlcompute -n cpu --max-nodes 1 --min-nodes 2", "less than min_nodes, 2"),
        ("computetarget create amlcompute -n a/b --max-nodes 1", "cannot be a compute target name"),
        ("datastore upload -n none -p .", "there is no data store 'none' in the workspace"),
    ],
)
def test_sdk_error_is_one_sentence_and_creates_nothing(
    project: Path, capsys: Output, words: str, expected: str
) -> None:
    """An error of the SDK is printed in one sentence, and no target is created."""
    assert main(["az", "ml", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert azure_sdk.Workspace.from_config().compute_targets == {}


def test_attach_takes_the_options_of_azure_for_ssh(project: Path, capsys: Output) -> None:
    """They are a port, a key and its passphrase; secrets are in the workspace alone."""
    words = (
        "attach remote --no-check --name vm --address host.lab --username me --ssh-port 25022 "
        "--private-key-file id_rsa"
    )
    assert main(["az", "ml", "computetarget", *words.split(), "--private-key-passphrase", "open sesame"]) == 0
    target = find_target(Workspace.find().targets_dir, "vm")
    assert (target.settings["address"], target.settings["port"]) == ("host.lab", 25022)
    assert target.settings["key_file"] == str(project / "id_rsa")
    secret = Workspace.find().targets_dir / "vm.secret"
    assert json.loads(secret.read_text()) == {"passphrase": "open sesame"}
    assert "sesame" not in (project / "aml_config" / "vm.compute").read_text()


@pytest.mark.parametrize("kind", ["remote", "remotedocker"])
def test_attach_logs_in(project: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The machine's equipment is printed and kept; where the login fails, a line says why, and the files stay."""
    seen: list[Mapping[str, Any]] = []

    class Machine:
        def __init__(self, target: Target, workspace: Workspace) -> None:
            self.settings = target.settings
            self.secret = json.loads((workspace.targets_dir / f"{target.name}.secret").read_text())

        def check(self) -> list[str]:
            seen.append(self.settings)
            if self.secret != {"password": "right"}:
                raise EngineFailure("host.lab has refused the password")
            return ["Python 3.6.15 on host"]

        def discover_settings(self) -> dict[str, Any]:
            return {"cores": 4, "gpus": ["0"]}

    monkeypatch.setattr("stoker_runs.targets.registry.engine_of", Machine)
    words = ["az", "ml", "computetarget", "attach", kind, "-n", "vm", "-a", "host.lab", "-u", "me", "-p"]
    assert main([*words, "wrong"]) == 0
    printed = capsys.readouterr()
    assert "vm is attached, but cannot be used yet: host.lab has refused the password" in printed.err
    assert (project / "aml_config" / "vm.compute").is_file()
    assert main([*words, "right"]) == 0
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[-1], printed.err) == ("Python 3.6.15 on host", "")
    target = find_target(Workspace.find().targets_dir, "vm")
    assert (target.settings["cores"], target.has_containers) == (4, kind == "remotedocker")
    # No image is fetched for it.
    assert not any(settings["containers"] for settings in seen)
    before = len(seen)
    assert main([*words, "right", "--no-check"]) == 0
    assert main([*words[:-1], "-k"]) == 0
    assert len(seen) == before


def test_facts_of_a_machine_are_kept_only_for_its_address(project: Path) -> None:
    """Cores and host key are dropped once the file names another address."""
    compute = project / "aml_config" / "vm.compute"
    targets_dir = Workspace.find().create().targets_dir
    targets_dir.mkdir(exist_ok=True)
    for address, kept in (("host.lab", {"cores": 4}), ("other.lab", {})):
        (targets_dir / "vm.yaml").write_text("{type: ssh, address: host.lab, cores: 4}")
        compute.write_text(f"type: remote\naddress: {address}\nuserManagedEnvironment: true\n")
        assert main(["submit", "--dry-run", "--target", "vm", "train.py"]) == 0
        settings = {"address": address, "containers": False, **kept}
        assert find_target(targets_dir, "vm").settings == settings


def test_a_machine_may_have_an_address_of_ipv6(project: Path) -> None:
    """With a port it is in brackets, as in the file."""
    attach = [
        "az",
        "ml",
        "computetarget",
        "attach",
        "remote",
        "--no-check",
        "-n",
        "vm",
        "-u",
        "me",
        "-a",
        "::1",
    ]
    for more, port in (([], None), (["--ssh-port", "2222"], 2222)):
        assert main([*attach, *more]) == 0
        settings = find_target(Workspace.find().targets_dir, "vm").settings
        assert (settings["address"], settings.get("port")) == ("::1", port)


def test_only_attached_targets_are_detached(project: Path, capsys: Output) -> None:
    """This machine stays; the error of an unknown name has the nearest one."""
    assert main(["az", "ml", "computetarget", "detach", "-n", "local"]) == 2
    assert "local is this machine, and cannot be detached" in capsys.readouterr().err
    assert main(["az", "ml", "computetarget", "detach", "-n", "locl"]) == 2
    assert "did you mean local" in capsys.readouterr().err


def test_a_submission_needs_a_configuration_and_a_script(project: Path, capsys: Output) -> None:
    """The missing one is named."""
    assert main(["az", "ml", "experiment", "submit", "train.py"]) == 2
    assert "no run configuration is named; say which with -c NAME" in capsys.readouterr().err
    (project / "train.py").unlink()
    assert main(["az", "ml", "experiment", "prepare", "-c", "local"]) == 2
    assert "prepare is called in the folder of a project" in capsys.readouterr().err


def test_folders_and_stores_are_those_of_the_sdk(project: Path, tmp_path: Path, capsys: Output) -> None:
    """Code finds its workspace by the file that is written, and its data in the store."""
    assert main(["az", "ml", "folder", "attach", "-w", "demo"]) == 0
    config = json.loads((project / ".azureml" / "config.json").read_text())
    assert config["workspace_name"] == "demo"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    capsys.readouterr()
    assert main(["az", "ml", "datastore", "list"]) == 0
    assert "workspaceblobstore" in (names := capsys.readouterr().out.split())
    assert names == sorted(names)
    upload = ["az", "ml", "datastore", "upload", "-n", "workspaceblobstore", "-p", str(tmp_path / "data")]
    assert main([*upload, "-u", "digits"]) == 0
    assert [path.read_text() for path in (tmp_path / "home").rglob("digits/a.csv")] == ["1"]

"""`.compute` and `.runconfig` files of both generations, as Workbench and the SDK have written them."""

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.launch.azure_files import (
    find_run_config,
    read_compute,
    read_run_config,
    save_target,
    with_spark_options,
)
from stoker_runs.targets.definitions import SshSettings, Target, find_target

OLD = """
ArgumentVector:
- $file
- --rate
- 0.5
CondaDependenciesFile: aml_config/conda_dependencies.yml
EnvironmentVariables:
  EXAMPLE_ENV_VAR: Example Value
"Framework": "Python"
PrepareEnvironment: true
SparkDependenciesFile: aml_config/spark_dependencies.yml
Target: box
TrackedRun: true
UseSampling: true
"""
NEW = """
script: train.py
arguments: [--rate, 0.5]
target: box
framework: python
communicator: OpenMpi
maxRunDurationSeconds: 600
nodeCount: 1
environment:
  name: digits
  environmentVariables: {EXAMPLE_ENV_VAR: EXAMPLE_VALUE}
  python:
    userManagedDependencies: false
    interpreterPath: python
    condaDependencies: {dependencies: [python=3.8, numpy]}
  docker:
    enabled: true
    baseImage: lab/train:2
    sharedVolumes: true
    shmSize: 4g
    arguments: [--cpus, '2']
history: {outputCollection: true, snapshotProject: true, directoriesToWatch: [logs]}
mpi: {processCountPerNode: 2, nodeCount: 1}
batchai: {nodeCount: 4}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    config = tmp_path / "project" / "aml_config"
    config.mkdir(parents=True)
    (config / "conda_dependencies.yml").write_text("dependencies: [python=3.5.2, tensorflow-gpu]")
    (config / "spark_dependencies.yml").write_text(
        "configuration: {spark.app.name: my project}\nrepositories: []\n"
        "packages:\n- {group: com.lab, artifact: tool, version: '1.0'}\n"
    )
    return config.parent


def write(project: Path, name: str, content: str) -> Path:
    path = project / "aml_config" / name
    path.write_text(content)
    return path


def test_a_run_configuration_of_workbench_is_read_as_it_is(project: Path, tmp_path: Path) -> None:
    """Further arguments follow its own; local takes the Python that is there."""
    path = write(project, "box.runconfig", OLD)
    assert find_run_config(project, "box") == path
    file = read_run_config(path, tmp_path)
    conda = project / "aml_config" / "conda_dependencies.yml"
    assert file.configuration == {
        "target": "box",
        "environment": {"variables": {"EXAMPLE_ENV_VAR": "Example Value"}, "file": str(conda)},
        "arguments": ("--rate", "0.5"),
        "framework": "python",
    }
    assert (file.project, file.fixed, file.notes) == (project, True, ())
    local = read_run_config(write(project, "local.runconfig", OLD.replace("box", '"local"')), tmp_path)
    assert "file" not in local.configuration["environment"]
    assert "without the conda file" in local.notes[0]


def test_pyspark_is_the_default_of_workbench(project: Path, tmp_path: Path) -> None:
    """Its dependencies become the arguments that pyspark reads."""
    path = write(project, "box.runconfig", OLD.replace('"Framework": "Python"\n', ""))
    variables = read_run_config(path, tmp_path).configuration["environment"]["variables"]
    assert variables["PYSPARK_SUBMIT_ARGS"] == (
        "--conf 'spark.app.name=my project' --packages com.lab:tool:1.0 pyspark-shell"
    )


def test_properties_of_spark_are_options_of_spark_submit(project: Path, tmp_path: Path) -> None:
    """Those of the file precede those of the variable; without PySpark, the user's own get a line."""
    file = NEW.replace("framework: python", "framework: PySpark")
    file += (
        "spark: {configuration: {spark.app.name: Azure ML Experiment, spark.executor.memory: 2g}}\n"
        "hdi: {yarnDeployMode: cluster}\n"
    )
    found = read_run_config(write(project, "new.runconfig", file), tmp_path)
    assert found.configuration["environment"]["variables"]["PYSPARK_SUBMIT_ARGS"] == (
        "--conf 'spark.app.name=Azure ML Experiment' --conf spark.executor.memory=2g pyspark-shell"
    )
    assert any(note.startswith("hdi is not used: deploy_mode") for note in found.notes)
    assert with_spark_options({"a": "b c"}, {"PYSPARK_SUBMIT_ARGS": "--num-executors 4"}) == {
        "PYSPARK_SUBMIT_ARGS": "--conf 'a=b c' --num-executors 4"
    }
    plain = read_run_config(write(project, "new.runconfig", file.replace("PySpark", "Python")), tmp_path)
    assert "PYSPARK_SUBMIT_ARGS" not in plain.configuration["environment"]["variables"]
    assert "spark.configuration is for the framework PySpark" in plain.notes
    usual = file.replace(", spark.executor.memory: 2g", "").replace("PySpark", "Python")
    assert not any(
        "spark" in note for note in read_run_config(write(project, "x.runconfig", usual), tmp_path).notes
    )


def test_a_run_configuration_of_the_sdk_is_read_as_it_is(project: Path, tmp_path: Path) -> None:
    """Cases of keys do not matter; packages that it has in itself become a file; old sections have a line."""
    snake = NEW.replace("nodeCount", "node_count").replace("baseImage", "base_image")
    files = [read_run_config(write(project, "box.runconfig", one), tmp_path) for one in (NEW, snake)]
    assert files[0] == files[1]
    configuration = files[0].configuration
    packages = Path(configuration["environment"].pop("file"))
    assert "numpy" in packages.read_text()
    assert configuration == {
        "target": "box",
        "script": "train.py",
        "arguments": ("--rate", "0.5"),
        "max_duration": 600.0,
        "processes_per_node": 2,
        "communicator": "mpi",
        "framework": "python",
        "environment": {
            "variables": {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"},
            "image": "lab/train:2",
            "shm_size": "4g",
            "arguments": ["--cpus", "2"],
        },
    }
    assert [note.partition(" ")[0] for note in files[0].notes] == ["batchai"]


def test_a_cluster_for_one_run_and_a_python_of_the_user(project: Path, tmp_path: Path) -> None:
    """Settings of `amlcompute` are kept; the interpreter's path is the environment."""
    lines = NEW.replace("target: box", "target: amlcompute").replace(
        "Dependencies: false", "Dependencies: true"
    )
    lines = lines.replace("interpreterPath: python", "interpreterPath: /opt/bin/python")
    file = read_run_config(
        write(project, "c.runconfig", lines + "amlcompute: {vmSize: STANDARD_D2_V2}\n"), tmp_path
    )
    assert file.cluster == "STANDARD_D2_V2"
    assert file.configuration["environment"]["python"] == "/opt/bin/python"
    assert "file" not in file.configuration["environment"]


def test_a_run_configuration_is_found_by_its_path_too(project: Path) -> None:
    """As by its name, in both folders of projects; else there is none."""
    path = write(project, "box.runconfig", OLD)
    (project / ".azureml").mkdir()
    other = project / ".azureml" / "sdk.runconfig"
    other.write_text(NEW)
    assert find_run_config(project, "aml_config/box.runconfig") == path
    assert find_run_config(project, "sdk") == other
    assert find_run_config(project, "none") is None


def test_a_run_configuration_names_files_of_the_project(project: Path, tmp_path: Path) -> None:
    """An environment, a Dockerfile; one without an environment is of the SDK if it names a script."""
    (project / "env.yml").write_text(
        "name: digits\npython: {condaDependenciesFile: aml_config/conda_dependencies.yml}\n"
        "docker: {baseDockerfile: Dockerfile.lab, baseImageRegistry: {password: x}}\n"
    )
    (project / "Dockerfile.lab").write_text("FROM lab/train:3\n")
    lines = "script: train.py\nframework: PySpark\nenvironment: env.yml\n"
    file = read_run_config(write(project, "box.runconfig", lines), tmp_path)
    environment = file.configuration["environment"]
    assert environment["file"] == str(project / "aml_config" / "conda_dependencies.yml")
    assert Path(environment["dockerfile"]).read_text() == "FROM lab/train:3\n"
    assert "image" not in environment
    assert [note.partition(" is ")[0] for note in file.notes] == ["baseImageRegistry"]
    assert file.configuration["framework"] == "pyspark"
    inline = lines.replace("env.yml", '{docker: {baseDockerfile: "FROM lab/train:4\\nRUN true"}}')
    file = read_run_config(write(project, "box.runconfig", inline), tmp_path)
    written = Path(file.configuration["environment"]["dockerfile"]).read_text()
    assert written == "FROM lab/train:4\nRUN true"
    bare = read_run_config(write(project, "bare.runconfig", "script: train.py\ntarget: box\n"), tmp_path)
    assert bare.configuration == {
        "script": "train.py",
        "target": "box",
        "environment": {"variables": {}},
        "framework": "python",
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (OLD.replace("- $file\n- --rate\n- 0.5", "[]").replace(":\n[]", ": []"), "ArgumentVector is empty"),
        (OLD.replace('"Python"', '"Caffe"'), "framework is 'Caffe'"),
        (OLD.replace("conda_dependencies", "none"), "names the file aml_config/none.yml, which is not there"),
        (NEW.replace("OpenMpi", "Gossip"), "communicator is 'gossip'"),
        (NEW.replace("name: digits", "name: AzureML-TensorFlow-2.0-GPU"), "environment of Azure's own"),
        (NEW + "command: echo\n", "a command in the place of a script"),
        (NEW.replace("nodeCount: 1\nenv", "nodeCount: none\nenv"), "nodeCount is 'none'"),
    ],
)
def test_unsupported_run_configuration_is_refused_by_name(
    project: Path, tmp_path: Path, content: str, words: str
) -> None:
    """The error names the file and the nearest setting that is supported."""
    path = write(project, "box.runconfig", content)
    with pytest.raises(InvalidSettings, match=r"box\.runconfig") as caught:
        read_run_config(path, tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "where", "near"),
    [
        (OLD.replace("UseSampling", "UseSamplin"), "box.runconfig: the key 'UseSamplin'", "UseSampling"),
        (NEW.replace("baseImage", "baseImagen"), "environment.docker: the key 'baseImagen'", "baseImage"),
        (NEW.replace("interpreterPath", "interpreterPat"), "environment.python: the key", "interpreterPath"),
        (NEW.replace("  name: digits", "  nam: digits"), "environment: the key 'nam'", "name"),
        (NEW + "docker: {shmSizes: 1g}\n", "docker: the key 'shmSizes'", "shmSize"),
        (NEW.replace("processCountPerNode", "processCountPerNod"), "mpi: the key", "processCountPerNode"),
        (NEW.replace("nodeCount: 1\nenv", "nodeCounts: 1\nenv"), "the key 'nodeCounts'", "nodeCount"),
    ],
)
def test_an_unknown_key_of_another_tool_has_a_line(
    project: Path, tmp_path: Path, content: str, where: str, near: str
) -> None:
    """It has no effect and refuses nothing, in each section; the line names the nearest key."""
    (line,) = [
        line
        for line in read_run_config(write(project, "box.runconfig", content), tmp_path).notes
        if "is unknown" in line
    ]
    assert where in line
    assert line.endswith(f"has no effect; did you mean {near}?")


def test_each_key_of_workbenchs_own_compute_files_is_known(project: Path) -> None:
    """The files that it has made for every project, and what its documents add; an unknown key has a line."""
    lines = 'type: "local"\npythonLocation: "python"\nsparkSubmitLocation: "spark-submit"\n'
    assert read_compute(write(project, "local.compute", lines)).notes == ()
    other = lines.replace('"spark-submit"', "/opt/spark/bin/spark-submit") + "baseDockerImag: x\n"
    notes = read_compute(write(project, "local.compute", other)).notes
    assert [note.partition(": ")[2] for note in notes[:1]] == [
        "the key 'baseDockerImag' is unknown and has no effect; did you mean baseDockerImage?"
    ]
    assert notes[1].startswith("sparkSubmitLocation is not used")


def test_a_cluster_of_workbench_is_a_spark_cluster(project: Path, tmp_path: Path) -> None:
    """Its head node is reached by SSH; where the driver runs and what submits it are as the file says."""
    lines = "type: cluster\naddress: head:2222\nusername: me\n"
    expected = {"type": "spark", "address": "head", "port": 2222, "username": "me"}
    assert read_compute(write(project, "hdi.compute", lines)).settings == expected
    lines += 'yarnDeployMode: "cluster"\nsparkSubmitLocation: "/opt/spark/bin/spark-submit"\n'
    compute = read_compute(write(project, "hdi.compute", lines))
    assert compute.notes == ()
    assert compute.settings == expected | {
        "deploy_mode": "cluster",
        "spark_submit": "/opt/spark/bin/spark-submit",
    }
    workspace = Workspace(tmp_path / ".stoker").create()
    save_target(compute, workspace, print)
    assert find_target(workspace.targets_dir, "hdi").type == "spark"
    other = read_compute(write(project, "box.compute", lines.replace("cluster\naddr", "remote\naddr")))
    assert [note.partition(" ")[0] for note in other.notes] == ["sparkSubmitLocation", "yarnDeployMode"]


def test_a_compute_file_becomes_a_target(project: Path, tmp_path: Path) -> None:
    """Settings that the file does not have stay as the workspace has them."""
    workspace = Workspace(tmp_path / ".stoker").create()
    compute = read_compute(
        write(
            project,
            "box.compute",
            'type: "localdocker"\nbaseDockerImage: "microsoft/mmlspark:plus-0.9.9"\nsharedVolumes: true\n'
            'nvidiaDocker: "true"\nnativeSharedDirectory: "~/.azureml/share/"\n',
        )
    )
    assert (compute.image, compute.gpus) == ("microsoft/mmlspark:plus-0.9.9", 1)
    workspace.targets_dir.mkdir()
    (workspace.targets_dir / "box.yaml").write_text("type: docker\nmemory: 8g\n")
    notes: list[str] = []
    save_target(compute, workspace, notes.append)
    target = find_target(workspace.targets_dir, "box")
    expected = {"memory": "8g", "shared_directory": "~/.azureml/share/"}
    assert expected.items() <= dict(target.settings).items()
    assert notes == []


@pytest.mark.parametrize("again", ["nvidiaDocker: true", '"NvidiaDocker": "true"', "nvidia_docker: true"])
def test_a_line_that_users_add_to_a_compute_file_counts(project: Path, again: str) -> None:
    """As for the tools that it was written for: the last one wins, and a note says which line."""
    written = f"type: localdocker\nnvidiaDocker: false\nbaseDockerImage: x\n{again}\n"
    compute = read_compute(write(project, "box.compute", written))
    assert compute.gpus == 1
    (note,) = compute.notes
    assert "occurs twice" in note
    assert note.endswith("the last one counts")
    assert "box.compute" in note


def test_lines_that_users_add_to_a_run_configuration_count(project: Path, tmp_path: Path) -> None:
    """Of both forms, and in the files that they name."""
    write(project, "spark.yml", "configuration: {a: 1}\nconfiguration: {a: 2}\n")
    workbench = (
        "ArgumentVector: [$file]\nTarget: local\nTarget: box\nFramework: Python\nframework: PySpark\n"
        "SparkDependenciesFile: aml_config/spark.yml\n"
    )
    read = read_run_config(write(project, "a.runconfig", workbench), tmp_path)
    assert (read.configuration["target"], read.configuration["framework"]) == ("box", "pyspark")
    assert "a=2" in read.configuration["environment"]["variables"]["PYSPARK_SUBMIT_ARGS"]
    assert sum("the last one counts" in note for note in read.notes) == 3
    sdk = "script: t.py\ntarget: local\ntarget: box\nenvironment: {name: e}\n"
    again = read_run_config(write(project, "b.runconfig", sdk), tmp_path)
    assert again.configuration["target"] == "box"
    assert again.notes[0].endswith("b.runconfig, line 3: the key target occurs twice; the last one counts")


def test_local_gets_a_shared_folder_and_an_interpreter(project: Path, tmp_path: Path) -> None:
    """A file for local that says nothing leaves no trace."""
    workspace = Workspace(tmp_path / ".stoker").create()
    lines = "type: local\nuserManagedEnvironment: true\npythonLocation: /opt/bin/python\n"
    compute = read_compute(write(project, "local.compute", lines))
    save_target(compute, workspace, lambda _: None)
    assert compute.python == "/opt/bin/python"
    assert not (workspace.targets_dir / "local.yaml").exists()
    save_target(
        read_compute(write(project, "local.compute", lines + "nativeSharedDirectory: /share\n")),
        workspace,
        lambda _: None,
    )
    assert find_target(workspace.targets_dir, "local").settings["shared_directory"] == "/share"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("type: fpga", "type is 'fpga', and can be local, docker"),
        ("type: remotedocker", "address is missing"),
        ("type: docker\nnvidiaDocker: perhaps", "can be true or false"),
    ],
)
def test_unsupported_compute_file_is_refused_by_name(project: Path, content: str, words: str) -> None:
    """The error comes before anything is written."""
    with pytest.raises(InvalidSettings) as caught:
        read_compute(write(project, "box.compute", content))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("host.lab", {"address": "host.lab"}),
        ("host.lab:2222", {"address": "host.lab", "port": 2222}),
        ("2001:db8::1", {"address": "2001:db8::1"}),
        ("[2001:db8::1]", {"address": "2001:db8::1"}),
        ("[2001:db8::1]:2222", {"address": "2001:db8::1", "port": 2222}),
    ],
)
def test_an_address_may_have_a_port(project: Path, address: str, expected: dict[str, Any]) -> None:
    """Colons of IPv6 begin none; messages name the machine as the file does."""
    compute = read_compute(write(project, "vm.compute", f'type: remote\naddress: "{address}"\n'))
    assert compute.settings == {"type": "ssh", "containers": False, **expected}
    settings = SshSettings.of(Target("vm", "ssh", compute.settings), project)
    assert settings.host == (address if "port" in expected else expected["address"])


def test_a_machine_by_ssh(project: Path) -> None:
    """Address, port and name come out of the file; a password is never read from it."""
    compute = read_compute(
        write(
            project,
            "dsvm.compute",
            "type: remotedocker\naddress: host.lab:2222\nusername: me\npassword: AzureMlSecret=dsvm#me#0123\n"
            "baseDockerImage: x\nnvidiaDocker: true\n",
        )
    )
    address = {"type": "ssh", "address": "host.lab", "port": 2222, "username": "me"}
    assert compute.settings == {**address, "containers": True}
    assert (compute.image, compute.gpus, compute.notes) == ("x", 1, ())

"""Azure's files as settings of Stoker: `.compute` files of Workbench, `.runconfig` files of Workbench and the SDK.

Newer and older versions of these tools write keys that Stoker does not know: such a key gets a note, not an
error. Each key may be written in several cases.

A project's `aml_config/NAME.compute` wins over the target of its name in the workspace, and becomes that target.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker.settings.yaml_files import describe_repeated_key, read_yaml
from stoker_runs.targets.attaching import attach
from stoker_runs.targets.definitions import DOCKER, LOCAL, SPARK, SSH


def fold_key(key: object) -> str:
    """Return a key without case and separators: `NodeCount`, `nodeCount` and `node_count` are one."""
    return str(key).replace("_", "").replace("-", "").lower()


def known_keys(content: Any, known: Iterable[str], where: str, notes: MutableSequence[str]) -> dict[str, Any]:
    """Return the known keys of a mapping, folded, with their values.

    Args:
        content: The mapping; None is an empty one.
        known: All keys that it may have, as they are usually written.
        where: File and section, for messages.
        notes: Gets a line for each unknown key, with the nearest known one, and for each that occurs twice in
            different cases: the last one counts.

    Raises:
        InvalidSettings: It is no mapping.
    """
    names = {fold_key(name): name for name in known}
    found: dict[str, Any] = {}
    for key, value in mapping(content, where).items():
        name = fold_key(key)
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            notes.append(f"{where}: the key {key!r} is unknown and has no effect{hint}")
            continue
        if name in found:
            note = describe_repeated_key(repr(key), ", in different cases", last_counts=True)
            notes.append(f"{where}: {note}")
        found[name] = value
    return found


def mapping(content: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping; nothing is an empty one."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{where} has to be names with values")
    return content


def read_flag(value: Any, where: str) -> bool:
    """Whether something is true, quoted or not."""
    word = str(value).strip().lower()
    if word not in ("true", "false", "none", ""):
        raise InvalidSettings(f"{where} is {value!r}, and can be true or false")
    return word == "true"


def text(value: Any) -> str:
    """A value as text; nothing is an empty one."""
    return "" if value is None else str(value).strip()


def whole(value: Any, where: str) -> int:
    """A number from 1 up, quoted or not."""
    if isinstance(value, bool) or not str(value).strip().isdecimal() or int(str(value)) < 1:
        raise InvalidSettings(f"{where} is {value!r}, and has to be a number from 1 up")
    return int(str(value))


CONFIG_FOLDERS: Final = ("aml_config", ".azureml", ".")
"""Where the files of a project are looked for, in this order."""
_TYPES: Final[Mapping[str, str]] = {
    "local": LOCAL,
    "docker": DOCKER,
    "localdocker": DOCKER,
    "remotedocker": SSH,
    "remote": SSH,
    "cluster": SPARK,
    "amlcompute": LOCAL,
}
_KEYS: Final = (
    *("type", "address", "username", "password", "baseDockerImage", "nvidiaDocker", "sharedVolumes"),
    *("nativeSharedDirectory", "userManagedEnvironment", "pythonLocation", "yarnDeployMode", "nodeCount"),
    *("priority", "useSSHKey", "privateKeyFile", "sparkSubmitLocation"),
)
_DEFAULT_PYTHON: Final = "python"
"""Workbench's default interpreter."""
_SPARK_SUBMIT: Final = "spark-submit"


class ComputeFile(Struct, frozen=True):
    """The content of a `.compute` file.

    Attributes:
        settings: The content of the target's file, including `type`.
        image: The image of its containers; empty for none.
        gpus: Default number of GPUs of its runs; None for the target's default.
        python: The interpreter; empty for the target's own.
        user_managed: Whether the interpreter's packages are used instead of a conda file.
        notes: Settings without effect in Stoker, a line each.
    """

    name: str
    settings: Mapping[str, Any]
    image: str = ""
    gpus: int | None = None
    python: str = ""
    user_managed: bool = False
    nodes: int = 1
    notes: tuple[str, ...] = ()


def find_compute(project: Path, name: str) -> Path | None:
    """The `.compute` file of a target in a project folder; None where it has none."""
    return _file_of_project(project, f"{name}.compute")


def _file_of_project(project: Path, name: str) -> Path | None:
    places = (project / folder / name for folder in CONFIG_FOLDERS)
    return next((path for path in places if path.is_file()), None)


def read_compute(path: Path) -> ComputeFile:
    """Read a `.compute` file."""
    notes: list[str] = []
    content = known_keys(read_yaml(path, "compute file", "names with values", notes), _KEYS, str(path), notes)
    word = text(content.get("type"))
    kind = _TYPES.get(word.lower())
    if kind is None:
        raise InvalidSettings(f"{path}: type is {word!r}, and can be {', '.join(_TYPES)}")
    settings: dict[str, Any] = {"type": kind}
    if content.get("priority") is not None:
        notes.append(_UNUSED_KEYS["priority"])
    if kind == SPARK:
        given = (("sparksubmitlocation", "spark_submit"), ("yarndeploymode", "deploy_mode"))
        settings |= {key: text(content[name]) for name, key in given if text(content.get(name))}
    elif text(content.get("sparksubmitlocation")) not in ("", _SPARK_SUBMIT):
        notes.append("sparkSubmitLocation is not used: Python runs the script, with the package pyspark")
    if kind != SPARK and content.get("yarndeploymode") is not None:
        notes.append("yarnDeployMode is for Spark on a cluster")
    image = text(content.get("basedockerimage"))
    in_docker = "docker" in word.lower()
    if kind in (SSH, SPARK):
        settings |= _address(path, content)
    if kind == SSH:
        settings["containers"] = in_docker
    if word.lower() == "amlcompute":
        notes.append(f"the cores and GPUs of this machine stand for {path.stem}")
    shared = text(content.get("nativeshareddirectory"))
    if shared and (not in_docker or read_flag(content.get("sharedvolumes"), f"{path}: sharedVolumes")):
        settings["shared_directory"] = shared
    elif shared:
        notes.append("nativeSharedDirectory is not used: containers have it with sharedVolumes: true")
    wants_gpu = read_flag(content.get("nvidiadocker"), f"{path}: nvidiaDocker")
    return ComputeFile(
        path.stem,
        settings,
        image if in_docker else "",
        (1 if wants_gpu else 0) if in_docker else None,
        _python(content, word),
        read_flag(content.get("usermanagedenvironment"), f"{path}: userManagedEnvironment"),
        whole(content.get("nodecount") or 1, f"{path}: nodeCount"),
        tuple(notes),
    )


def _address(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    address, port = _host_and_port(text(content.get("address")))
    if not address:
        raise InvalidSettings(
            f"{path}: address is missing: the name of the machine, HOST:PORT or [IPV6]:PORT"
        )
    found: dict[str, Any] = {"address": address}
    if port:
        found["port"] = whole(port, f"{path}: the port of the address")
    if text(content.get("username")):
        found["username"] = text(content["username"])
    if text(content.get("privatekeyfile")):
        found["key_file"] = text(content["privatekeyfile"])
    return found


def _host_and_port(address: str) -> tuple[str, str]:
    """The two parts; several colons outside of brackets are those of an IPv6 address without a port."""
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        return host, port.removeprefix(":")
    if address.count(":") > 1:
        return address, ""
    host, _, port = address.partition(":")
    return host, port


def _python(content: Mapping[str, Any], word: str) -> str:
    python = text(content.get("pythonlocation"))
    if python == _DEFAULT_PYTHON:
        return ""
    return str(Path(python).expanduser()) if word.lower() == LOCAL and python.startswith("~") else python


def save_target(compute: ComputeFile, workspace: Workspace, say: Callable[[str], None]) -> None:
    """Save the target of a `.compute` file in the workspace; other settings of the target are kept."""
    for line in compute.notes:
        say(line)
    # This machine needs no file.
    if compute.name != LOCAL or compute.settings != {"type": LOCAL}:
        attach(workspace, compute.name, compute.settings, {}, None)


CONDA_FILE: Final = "aml_config/conda_dependencies.yml"
"""The file with the packages of a project of Workbench, which may be written after the files that name it."""
SPARK_FILE: Final = "aml_config/spark_dependencies.yml"
"""The same for Spark."""

SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""The variable with options of spark-submit, which PySpark reads without it too."""
_SHELL: Final = "pyspark-shell"
_SPARK_DEFAULTS: Final = ("spark.app.name", "spark.yarn.maxAppAttempts")
"""Properties that Azure's SDK writes into each file."""
_SUFFIX: Final = ".runconfig"
_OF_WORKBENCH_ALONE: Final = ("argumentvector", "condadependenciesfile", "trackedrun")
_FILE: Final = "$file"
_WORKBENCH: Final = (
    *("ArgumentVector", "Target", "Framework", "CondaDependenciesFile", "SparkDependenciesFile"),
    *("EnvironmentVariables", "PrepareEnvironment", "TrackedRun", "UseSampling", "DataSourceSettings"),
    *("DataSourceSubstitutions",),
)
_SDK: Final = (
    *("script", "arguments", "target", "framework", "communicator", "maxRunDurationSeconds", "nodeCount"),
    *("priority", "environment", "history", "spark", "docker", "hdi", "tensorflow", "mpi", "pytorch"),
    *("dataReferences", "data", "outputData", "amlcompute", "command", "environmentVariables"),
    *("prepareEnvironment", "gpuSupport", "batchai", "containerInstance", "credentialPassthrough"),
    "identity",
    *("sourceDirectoryDataStore", "autoPrepareEnvironment", "datacaches", "instanceType", "instanceCount"),
    *("paralleltask", "services", "kubernetescompute", "autoClusterComputeSpecification"),
)
_ENVIRONMENT: Final = (
    *("name", "version", "environmentVariables", "python", "docker", "spark", "databricks", "r"),
    *("inferencingStackVersion", "assetId"),
)
_PYTHON: Final = (
    *("userManagedDependencies", "interpreterPath", "condaDependenciesFile", "condaDependencies"),
    *("baseCondaEnvironment",),
)
_DOCKER: Final = (
    *("enabled", "useDocker", "baseImage", "baseDockerfile", "sharedVolumes", "shmSize", "arguments"),
    *("baseImageRegistry", "platform", "gpuSupport", "enableGpu", "buildContext", "cudaVersion"),
    "extraDockerfileSteps",
)
COMMUNICATORS: Final = {
    "": "none",
    "none": "none",
    "parameterserver": "tensorflow",
    "openmpi": "mpi",
    "intelmpi": "mpi",
    "nccl": "pytorch",
    "gloo": "pytorch",
}
FRAMEWORKS: Final = ("python", "pyspark", "cntk", "tensorflow", "pytorch")
_DEPLOY_MODE: Final = "hdi is not used: deploy_mode of the compute target says where the driver runs"
_UNUSED_KEYS: Final = {
    "batchai": "batchai is of a service that there is no more: target and nodeCount say where the script runs",
    "containerinstance": "containerInstance is Azure's: a compute target of type docker runs scripts in containers",
    "datareferences": "dataReferences are not read here: name the data with --input NAME=PATH, or submit by the SDK",
    "data": "data is not read here: name it with --input NAME=PATH, or submit by the SDK",
    "outputdata": "outputData is not read here: name the folder with --output NAME=STORE/PATH, or submit by the SDK",
    "priority": "priority is not used: who comes first is served first",
}


class RunConfigFile(Struct, frozen=True):
    """The content of a `.runconfig` file.

    Attributes:
        in_container: Whether the run needs a container on any target.
        fixed: Whether further arguments are appended to those of the file.
        cluster: The machine type of a cluster that would be created for this run; empty for none.
        notes: Settings without effect in Stoker, a line each.
    """

    path: Path
    project: Path
    configuration: Mapping[str, Any]
    in_container: bool = False
    fixed: bool = False
    cluster: str = ""
    notes: tuple[str, ...] = field(default=())


def find_run_config(project: Path, name: str) -> Path | None:
    """The `.runconfig` of this name, or path, for a project; None where there is none."""
    given = project / name
    if given.suffix == _SUFFIX and given.is_file():
        return given
    return _file_of_project(project, f"{name}{_SUFFIX}")


def read_run_config(path: Path, scratch: Path) -> RunConfigFile:
    """Read a file of either form: one without the key `environment` is of Workbench.

    Args:
        scratch: A folder for files whose content is inline.
    """
    notes: list[str] = []
    content = read_yaml(path, "run configuration", "names with values", notes)
    inside = path.parent.name in CONFIG_FOLDERS
    project = path.parent.parent if inside else path.parent
    keys = set(map(fold_key, content))
    if "environment" in keys or ("script" in content and keys.isdisjoint(_OF_WORKBENCH_ALONE)):
        return _SdkFile(path, project, scratch, notes).read(content)
    return _of_workbench(path, project, content, notes)


def _of_workbench(path: Path, project: Path, written: Mapping[str, Any], notes: list[str]) -> RunConfigFile:
    content = known_keys(written, _WORKBENCH, str(path), notes)
    vector = content.get("argumentvector")
    if not isinstance(vector, list) or not vector or text(vector[0]) == "":
        raise InvalidSettings(f"{path}: ArgumentVector is empty; its first item is the script, or $file")
    target = text(content.get("target")) or "local"
    environment: dict[str, Any] = {"variables": _variables(content.get("environmentvariables"), path)}
    conda = text(content.get("condadependenciesfile"))
    if target == "local":
        if conda and _found(path, project, conda):
            notes.append("the target local takes its Python as it is, without the conda file")
    elif conda == CONDA_FILE and _found(path, project, conda) is None:
        notes.append(f"there is no {conda}, so the script gets no packages by it")
    elif conda:
        environment["file"] = str(_existing(path, project, conda))
    elif _found(path, project, CONDA_FILE):
        notes.append(f"{CONDA_FILE} is not used: CondaDependenciesFile does not name it")
    framework = "python"
    if _framework(path, content.get("framework"), "PySpark") == "pyspark":
        spark = text(content.get("sparkdependenciesfile"))
        if spark == SPARK_FILE and _found(path, project, spark) is None:
            spark = ""
        lines = _spark_arguments(_existing(path, project, spark), notes) if spark else ""
        environment["variables"].setdefault(SUBMIT_ARGUMENTS, f"{lines}{_SHELL}")
        framework = "pyspark"
    configuration: dict[str, Any] = {"target": target, "environment": environment, "framework": framework}
    if text(vector[0]) != _FILE:
        configuration["script"] = text(vector[0])
    configuration["arguments"] = tuple(map(str, vector[1:]))
    return RunConfigFile(path, project, configuration, fixed=True, notes=tuple(notes))


def _framework(path: Path, value: Any, default: str) -> str:
    word = (text(value) or default).lower()
    if word not in FRAMEWORKS:
        raise InvalidSettings(f"{path}: framework is {value!r}, and can be {', '.join(FRAMEWORKS)}")
    return word


def _variables(value: Any, path: Path) -> dict[str, str]:
    return {str(name): str(value) for name, value in mapping(value, f"{path}: environment variables").items()}


def _found(path: Path, project: Path, file: str) -> Path | None:
    return next((folder / file for folder in (project, path.parent) if (folder / file).is_file()), None)


def _existing(path: Path, project: Path, file: str) -> Path:
    found = _found(path, project, file)
    if found is None:
        raise InvalidSettings(f"{path}: it names the file {file}, which is not there")
    return found


def spark_options(configuration: Mapping[str, Any]) -> list[str]:
    """Return the options of spark-submit that set properties, each quoted as for a shell."""
    return [f"--conf {shlex.quote(f'{key}={value}')}" for key, value in configuration.items()]


def with_spark_options(configuration: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a run, whose PYSPARK_SUBMIT_ARGS sets the properties that it does not set itself."""
    if not configuration:
        return dict(variables)
    words = variables.get(SUBMIT_ARGUMENTS, _SHELL)
    return {**variables, SUBMIT_ARGUMENTS: " ".join([*spark_options(configuration), words])}


def _spark_arguments(path: Path, notes: list[str]) -> str:
    """Return the options of spark-submit for a file of Spark's dependencies."""
    content = known_keys(
        read_yaml(path, "Spark dependencies", "names with values", notes),
        ("configuration", "repositories", "packages", "precachePackages"),
        str(path),
        notes,
    )
    words = spark_options(mapping(content.get("configuration"), str(path)))
    if content.get("repositories"):
        words.append(f"--repositories {','.join(map(str, content['repositories']))}")
    if content.get("packages"):
        names = [
            ":".join(str(one.get(key, "")) for key in ("group", "artifact", "version"))
            if isinstance(one, dict)
            else str(one)
            for one in content["packages"]
        ]
        words.append(f"--packages {','.join(names)}")
    return "".join(f"{word} " for word in words)


class _SdkFile:
    """Reads a file that `RunConfiguration.save` has written."""

    def __init__(self, path: Path, project: Path, scratch: Path, notes: list[str]) -> None:
        self._path = path
        self._project = project
        self._scratch = scratch
        self._notes = notes
        self._in_container = False

    def read(self, content: Mapping[str, Any]) -> RunConfigFile:
        found = known_keys(content, _SDK, str(self._path), self._notes)
        if text(found.get("command")):
            raise InvalidSettings(
                f"{self._path}: a command in the place of a script is not offered: name a script"
            )
        self._notes += [words for key, words in _UNUSED_KEYS.items() if found.get(key)]
        environment = self._environment(found)
        target = text(found.get("target")) or "local"
        is_pyspark = _framework(self._path, found.get("framework"), "Python") == "pyspark"
        spark = mapping(
            self._section(found, "spark", ("configuration",)).get("configuration"),
            f"{self._path}: spark.configuration",
        )
        if is_pyspark:
            environment["variables"] = with_spark_options(spark, environment["variables"])
            self._notes += [_DEPLOY_MODE] if found.get("hdi") else []
        elif spark.keys() - _SPARK_DEFAULTS:
            self._notes.append("spark.configuration is for the framework PySpark")
        configuration: dict[str, Any] = {
            "target": target,
            "environment": environment,
            "framework": "pyspark" if is_pyspark else "python",
            **self._several(found),
        }
        if text(found.get("script")):
            configuration["script"] = text(found["script"])
        if found.get("arguments"):
            configuration["arguments"] = tuple(map(str, found["arguments"]))
        if found.get("maxrundurationseconds"):
            configuration["max_duration"] = float(
                whole(found["maxrundurationseconds"], f"{self._path}: maxRunDurationSeconds")
            )
        section = mapping(found.get("amlcompute"), f"{self._path}: amlcompute")
        size = next((text(value) for key, value in section.items() if fold_key(key) == "vmsize"), "")
        cluster = size if target.lower() == "amlcompute" else ""
        return RunConfigFile(
            self._path,
            self._project,
            configuration,
            self._in_container,
            cluster=cluster,
            notes=tuple(self._notes),
        )

    def _several(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of machines and processes, and the communicator."""
        word = text(found.get("communicator")).lower()
        if word not in COMMUNICATORS:
            raise InvalidSettings(
                f"{self._path}: communicator is {word!r}, and can be None, ParameterServer, OpenMpi, IntelMpi, Nccl "
                "or Gloo"
            )
        kind = COMMUNICATORS[word]
        if kind == "none" and text(found.get("framework")).lower() == "pytorch":
            kind = "pytorch"
        where = f"{self._path}: nodeCount"
        nodes, each, servers = whole(found.get("nodecount") or 1, where), 1, 0
        if kind == "tensorflow":
            section = self._section(found, "tensorflow", ("workerCount", "parameterServerCount"))
            servers = whole(section.get("parameterservercount") or 0, f"{self._path}: parameterServerCount")
            nodes = whole(section.get("workercount") or nodes, f"{self._path}: workerCount") + servers
        elif kind in ("mpi", "pytorch"):
            keys = ("processCountPerNode", "nodeCount", "processCount", "communicationBackend")
            section = self._section(found, kind, keys)
            nodes = max(nodes, whole(section.get("nodecount") or 1, where))
            of_all = whole(section.get("processcount") or nodes, f"{self._path}: processCount")
            if of_all % nodes:
                raise InvalidSettings(
                    f"{self._path}: processCount is {of_all}, no multiple of the {nodes} nodes"
                )
            each = whole(section.get("processcountpernode") or max(1, of_all // nodes), where)
        counts = {"nodes": nodes, "processes_per_node": each, "parameter_servers": servers}
        counts = {name: value for name, value in counts.items() if value > (name != "parameter_servers")}
        return {**counts, "communicator": kind} if counts or kind == "mpi" else {}

    def _section(self, found: Mapping[str, Any], name: str, keys: Iterable[str]) -> Mapping[str, Any]:
        return known_keys(found.get(name), keys, f"{self._path}: {name}", self._notes)

    def _environment(self, found: Mapping[str, Any]) -> dict[str, Any]:
        environment = found.get("environment")
        if isinstance(environment, str):
            file = _existing(self._path, self._project, environment)
            environment = read_yaml(file, "environment", "names with values", self._notes)
        section = known_keys(environment, _ENVIRONMENT, f"{self._path}: environment", self._notes)
        name = text(section.get("name"))
        if name.startswith("AzureML-"):
            raise InvalidSettings(
                f"{self._path}: {name} is an environment of Azure's own; name packages, or a file with them"
            )
        variables = {
            **_variables(section.get("environmentvariables"), self._path),
            **_variables(found.get("environmentvariables"), self._path),
        }
        return {"variables": variables, **self._packages(section), **self._image(section, found)}

    def _packages(self, section: Mapping[str, Any]) -> dict[str, Any]:
        where = f"{self._path}: environment.python"
        python = known_keys(section.get("python"), _PYTHON, where, self._notes)
        if read_flag(python.get("usermanageddependencies"), f"{where}.userManagedDependencies"):
            interpreter = text(python.get("interpreterpath"))
            return {"python": interpreter} if interpreter not in ("", "python") else {}
        if python.get("condadependencies"):
            import yaml

            file = self._scratch / "environment.yml"
            file.write_text(yaml.safe_dump(python["condadependencies"]), encoding="utf-8")
            return {"file": str(file)}
        named = text(python.get("condadependenciesfile"))
        return {"file": str(_existing(self._path, self._project, named))} if named else {}

    def _image(self, section: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the container, which count if the target has containers."""
        docker = known_keys(section.get("docker"), _DOCKER, f"{self._path}: environment.docker", self._notes)
        besides = known_keys(found.get("docker"), _DOCKER, f"{self._path}: docker", self._notes)
        where = f"{self._path}: environment.docker.enabled"
        self._in_container = read_flag(docker.get("enabled"), where) or read_flag(
            besides.get("usedocker"), f"{self._path}: docker.useDocker"
        )
        if docker.get("baseimageregistry") and mapping(docker["baseimageregistry"], "registry").get(
            "password"
        ):
            self._notes.append(
                "baseImageRegistry is not used: 'docker login' once, and leave passwords out of files"
            )
        container: dict[str, Any] = {
            "image": text(docker.get("baseimage")),
            "shm_size": text(besides.get("shmsize") or docker.get("shmsize")),
            "arguments": [*(docker.get("arguments") or ()), *(besides.get("arguments") or ())],
        }
        if text(docker.get("basedockerfile")):
            file = self._scratch / "Dockerfile"
            dockerfile = str(docker["basedockerfile"])
            known = self._project / dockerfile if "\n" not in dockerfile else file
            if known != file and known.is_file():
                dockerfile = known.read_text(encoding="utf-8")
            file.write_text(dockerfile, encoding="utf-8")
            container |= {"dockerfile": str(file), "image": ""}
        return {name: value for name, value in container.items() if value}

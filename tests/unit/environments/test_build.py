"""Building virtual environments: real ones, from wheels made on the spot."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.live_server import wait_until
from tests.patience import PATIENCE_S
from tests.tiny_packages import write_wheel

from stoker.environments import build, installers
from stoker.environments.build import Built, build_environment, find_built
from stoker.environments.build_folders import digest_of
from stoker.environments.files import read_environment
from stoker.environments.installers import Installer, mask_secrets
from stoker.environments.interpreters import Interpreter
from stoker.environments.server_packages import device_requirements, server_paths
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import lock_file

Ask = Callable[..., Specification]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of packages: two versions of one, and some that conflict with the server's own."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tiny-package", version)
    write_wheel(folder, "tqdm", "0.0.1")
    write_wheel(folder, "numpy", "1.20.0")
    write_wheel(folder, "broken-package", "1.0", "raise ValueError('numpy.dtype size changed')\n")
    write_wheel(folder, "orjson", "0.0.1", "raise ImportError('an orjson that is none')\n")
    return folder


@pytest.fixture
def ask(tmp_path: Path, wheels: Path) -> Ask:
    """Write a requirements file that installs from these wheels alone."""

    def write(*lines: str, folder: str = "model") -> Specification:
        file = tmp_path / folder / "requirements.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in ("--no-index", f"--find-links {wheels}", *lines)))
        return read_environment(file)

    return write


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where environments are."""
    return tmp_path / "environments"


def built(specification: Specification, home: Path, say: Callable[[str], None] = lambda _: None) -> Built:
    return build_environment(specification, home, "script", say)


def run_in(environment: Built, program: str) -> list[str]:
    """Run a program in an environment, and return the JSON that it prints."""
    output = subprocess.run(
        [environment.interpreter, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    content: list[str] = json.loads(output)
    return content


def test_an_environment_is_built_once(ask: Ask, home: Path) -> None:
    """Its own versions come first, the server's packages after them; the second time it is there already."""
    lines: list[str] = []
    specification = ask("tiny-package==1.0", "tqdm")
    assert find_built(specification, home, "script") is None
    environment = built(specification, home, lines.append)
    (line,) = lines
    assert str(specification.path) in line
    assert "2 requirements" in line
    assert dict(environment.packages) == {"tiny-package": "1.0", "tqdm": "0.0.1"}
    assert environment.build_s is not None
    program = (
        "import json, tiny_package, tqdm, numpy, stoker.device.process\n"
        "print(json.dumps([tiny_package.VERSION, tqdm.VERSION, numpy.__file__, stoker.__file__]))"
    )
    tiny, tqdm, numpy_file, stoker_file = run_in(environment, program)
    assert (tiny, tqdm) == ("1.0", "0.0.1")
    assert Path(numpy_file).is_relative_to(sys.prefix)
    assert stoker_file == build.stoker.__file__

    again = built(ask("tqdm", "tiny-package==1.0", folder="elsewhere"), home, lines.append)
    assert (again.key, again.interpreter, again.build_s, len(lines)) == (
        environment.key,
        environment.interpreter,
        None,
        1,
    )
    assert find_built(specification, home, "script") == again
    manifest = json.loads((home / again.key / "manifest.json").read_text())
    assert manifest["packages"] == dict(again.packages)

    # A link to a Python that is gone, as after an upgrade of the system.
    environment.interpreter.unlink()
    environment.interpreter.symlink_to("/gone/python3")
    assert built(specification, home, lines.append).build_s is not None
    assert run_in(environment, "print('[]')") == []


def test_an_environment_without_packages_has_the_servers(ask: Ask, home: Path) -> None:
    """A file that asks for nothing but what Stoker provides needs no installer."""
    assert (
        dict(built(ask("azureml-defaults", "azureml-monitoring", "azureml-ai-monitoring"), home).packages)
        == {}
    )


def test_failed_installation_is_explained_and_leaves_no_folder(ask: Ask, home: Path) -> None:
    """The error has the installer's words, the file and what to do; no half-made folder stays."""
    specification = ask("tiny-package==3.0")
    with pytest.raises(EnvironmentUnusable) as caught:
        built(specification, home)
    message = str(caught.value)
    assert "tiny-package==3.0" in message
    assert str(specification.path) in message
    assert "environment_managed: user" in message
    assert [entry.name for entry in home.iterdir() if entry.is_dir()] == []


def test_foreign_code_is_reported_before_it_runs(ask: Ask, home: Path, tmp_path: Path) -> None:
    """The line after the first names each project that is built, whether it succeeds or fails."""
    ask()
    own = tmp_path / "model" / "own"
    own.mkdir()
    (own / "setup.py").write_text("raise SystemExit('it ran')\n")
    lines: list[str] = []
    with pytest.raises(EnvironmentUnusable):
        built(ask("./own"), home, lines.append)
    assert "./own (requirements.txt, line 3) is built by its own setup.py or pyproject.toml" in lines[1]


def test_old_numpy_is_refused_before_the_build(ask: Ask, home: Path) -> None:
    """The line that asks for it is named, and no folder is made."""
    with pytest.raises(
        EnvironmentUnusable, match=r"requirements\.txt, line 3: numpy==1\.19\.5 .*numpy 1\.26 or newer"
    ):
        built(ask("numpy==1.19.5"), home)
    assert not home.exists()


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("numpy", "bring numpy 1.20.0, but the device process needs numpy 1.26 or newer"),
        ("orjson", "the device process cannot run with the packages of"),
    ],
)
def test_packages_that_break_the_device_process_are_refused(
    ask: Ask, home: Path, package: str, reason: str
) -> None:
    """Packages of a requirement are tried before they are kept."""
    with pytest.raises(EnvironmentUnusable, match=reason):
        built(ask(package), home)
    assert [entry.name for entry in home.iterdir() if entry.is_dir()] == []


def test_unimportable_packages_are_installed_as_of_their_date(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins are tried with the packages of their time, but none older than a device process takes; a line says so."""
    dated: list[str] = []

    def run(self: Installer, command: list[str], *rest: Any) -> subprocess.CompletedProcess[str]:
        if "--exclude-newer" in command:
            at = command.index("--exclude-newer")
            dated.append(command[at + 1])
            # The package that was uploaded before can be imported.
            command = [*command[:at], *command[at + 2 :]]
            requirements = Path(command[command.index("--requirement") + 1])
            requirements.write_text(
                requirements.read_text().replace("broken-package==1.0", "tiny-package==1.0")
            )
        return own_run(self, command, *rest)

    own_run = Installer.run
    monkeypatch.setattr(Installer, "run", run)
    for day, as_of in ((date(2023, 6, 7), "2024-02-06"), (date(2025, 6, 7), "2025-06-07")):
        monkeypatch.setattr(build, "date_of_pins", lambda _, day=day: day)
        lines: list[str] = []
        ready = built(ask("broken-package==1.0", folder=as_of), home / as_of, lines.append)
        assert dated[-1:] == [as_of]
        assert dict(ready.packages) == {"tiny-package": "1.0"}
        assert any(
            "cannot be imported: ValueError: numpy.dtype size changed" in line
            and line.endswith(f"trying once more with packages as of {as_of}")
            for line in lines
        )
        again = find_built(ask("broken-package==1.0", folder=as_of), home / as_of, "script")
        assert again is not None
        assert again.key == ready.key


@pytest.mark.parametrize("day", [None, date(2025, 1, 1)])
def test_packages_that_cannot_be_imported_are_no_environment(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch, day: date | None
) -> None:
    """The error names the tries, also as of their date, and the lines to write into the file; no folder stays."""
    monkeypatch.setattr(build, "date_of_pins", lambda _: day)
    expected = r"cannot be imported: ValueError: numpy\.dtype size changed; .*write numpy<2 into the file"
    with pytest.raises(EnvironmentUnusable, match=expected) as raised:
        built(ask("broken-package==1.0"), home)
    assert ("and with packages as of 2025-01-01: " in str(raised.value)) == (day is not None)
    assert not [entry for entry in home.iterdir() if entry.is_dir()]


def test_the_content_decides_the_name(
    ask: Ask, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version, another option, another content of a local file, another server: another environment."""

    def key(*lines: str) -> str:
        return build.make_recipe(ask(*lines), build.this_interpreter(), "script").key

    wheel = write_wheel(tmp_path / "own", "tiny-package", "1.0")
    keys = [
        key("tiny-package==1.0"),
        key("tiny-package==2.0"),
        key("tiny-package==1.0", "--pre"),
        key(str(wheel)),
    ]
    write_wheel(tmp_path / "own", "tiny-package", "1.0", "CHANGED = True\n")
    keys.append(key(str(wheel)))
    monkeypatch.setattr(build.stoker, "__version__", "99.0")
    keys.append(key("tiny-package==1.0"))
    monkeypatch.setattr(build, "server_paths", lambda: ("/another/server",))
    keys.append(key("tiny-package==1.0"))
    assert len(set(keys)) == len(keys)
    assert key("azureml-core", "tiny-package==1.0") == key("tiny_package == 1.0") == keys[-1]


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    """A project that is installed from its folder is installed again when a file of it changes."""
    (tmp_path / "module.py").write_text("A = 1\n")
    before = digest_of(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "module.pyc").touch()
    assert digest_of(tmp_path) == before
    (tmp_path / "module.py").write_text("A = 10\n")
    assert digest_of(tmp_path) != before


def test_two_processes_build_an_environment_once(ask: Ask, home: Path) -> None:
    """The second one waits for the first, says so, and takes what that has made."""
    specification = ask("azureml-defaults")
    key = build.make_recipe(specification, build.this_interpreter(), "script").key
    home.mkdir()
    lock = lock_file(home / f".{key}.lock")
    waits = threading.Event()
    got: list[Built] = []

    def second() -> None:
        got.append(built(specification, home, lambda line: waits.set() if "waiting" in line else None))

    thread = threading.Thread(target=second)
    thread.start()
    assert waits.wait(PATIENCE_S)
    folder = home / key
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "manifest.json").write_text('{"packages": {"made-by": "1"}}')
    os.close(lock)
    thread.join(PATIENCE_S)
    assert [dict(environment.packages) for environment in got] == [{"made-by": "1"}]


def test_a_killed_build_is_swept(ask: Ask, home: Path) -> None:
    """Its folder has no manifest: it is no environment, and the next build removes it, but not one under way."""
    dead, busy = home / "dead", home / "busy"
    for folder in (dead, busy):
        (folder / "venv").mkdir(parents=True)
    lock = lock_file(home / ".busy.lock")
    specification = ask("azureml-defaults")
    key = build.make_recipe(specification, build.this_interpreter(), "script").key
    (home / key / "venv" / "half").mkdir(parents=True)
    environment = built(specification, home)
    os.close(lock)
    assert environment.key == key
    assert not (home / key / "venv" / "half").exists()
    assert (dead.exists(), busy.exists()) == (False, True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"packages": 3}'])
def test_a_damaged_manifest_is_named(ask: Ask, home: Path, text: str) -> None:
    """The error names the folder to remove."""
    specification = ask("azureml-defaults")
    folder = home / build.make_recipe(specification, build.this_interpreter(), "script").key
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(EnvironmentUnusable, match=f"the environment in {folder} is damaged"):
        find_built(specification, home, "script")


def test_the_installer_holds_the_lock_too(ask: Ask, home: Path, tmp_path: Path) -> None:
    """If the server is killed while it builds, nobody begins anew before the installer has ended."""
    specification = ask("azureml-defaults")
    key = build.make_recipe(specification, build.this_interpreter(), "script").key
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    os.mkfifo(gate)
    program = (
        "import sys; from pathlib import Path\n"
        "from stoker.environments import build, files, installers\n"
        f"installers.Installer.creation = lambda *_: ['sh', '-c', 'touch {entered}; read line < {gate}']\n"
        "specification = files.read_environment(Path(sys.argv[1]))\n"
        "build.build_environment(specification, Path(sys.argv[2]), 'script', print)\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, specification.path, home], stdout=subprocess.DEVNULL
    )
    with server:
        wait_until(entered.exists, "the installer has begun")
        server.kill()
    with pytest.raises(BlockingIOError):
        lock_file(home / f".{key}.lock", wait=False)
    gate.write_text("go\n")
    os.close(lock_file(home / f".{key}.lock"))
    assert not (home / key / "manifest.json").exists()


def test_pip_builds_where_there_is_no_uv(ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same environment, slower."""
    monkeypatch.setattr(installers, "uv_command", lambda: None)
    environment = built(ask("tiny-package==2.0", "tqdm"), home)
    assert environment.packages["tiny-package"] == "2.0"
    program = "import json, tiny_package, tqdm; print(json.dumps([tiny_package.VERSION, tqdm.VERSION]))"
    assert run_in(environment, program) == ["2.0", "0.0.1"]


@pytest.mark.parametrize("command", [("uv",), None], ids=["uv", "pip"])
def test_installers_get_no_variables_of_other_places(
    command: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the paths of the server's own Python nor another place to install to; all else is as it was."""
    for name in installers.FOREIGN_VARIABLES:
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("OF_THE_OPERATOR", "kept")
    variables = installers.Installer(command).variables()
    assert not set(installers.FOREIGN_VARIABLES) & set(variables)
    assert variables["OF_THE_OPERATOR"] == "kept"


def test_python_that_cannot_run_the_server_is_not_used(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says that its environment cannot be made, and this Python takes its place."""
    unusable = Interpreter(Path("/nowhere/python3.99"), (3, 99, 0))
    monkeypatch.setattr(build, "choose_interpreter", lambda _: (unusable, ""))
    lines: list[str] = []
    environment = built(ask("tiny-package==1.0"), home, lines.append)
    assert environment.note.startswith("Python 3.99.0 is asked for, but the server does not run in it")
    assert dict(environment.packages) == {"tiny-package": "1.0"}
    assert any("/nowhere/python3.99" in line for line in lines)


@pytest.mark.parametrize(
    ("framework", "runtimes"),
    [("script", set()), ("onnx", {"onnxruntime-gpu"}), ("tensorflow", {"tensorflow"})],
)
def test_another_python_gets_the_imports_of_the_device_process(framework: str, runtimes: set[str]) -> None:
    """Its numpy and the runtime of the model, but no HTTP server; numpy may be older than the server's."""
    needs = device_requirements(framework)
    names = {need.partition(">")[0] for need in needs}
    assert "numpy>=1.26" in needs
    assert "orjson" in names
    assert not names & {
        "starlette",
        "uvicorn",
        "uvloop",
        "httptools",
        "stoker-base",
        "stoker-client",
        "stoker-run",
    }
    assert {name for name in names if name.startswith(("onnx", "tensorflow"))} == runtimes


@pytest.mark.parametrize("requested", ["onnxruntime", "onnxruntime-gpu"])
def test_another_python_gets_one_build_of_onnx_runtime(
    ask: Ask, requested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That which its model asks for takes the place of the server's, whose files are in the same folder."""
    other = Interpreter(Path("/nowhere/python3.99"), (3, 99, 0))
    needs = build.make_recipe(ask(f"{requested}==1.20"), other, "onnx").needs
    assert {need.partition(">")[0] for need in needs if need.startswith("onnx")} <= {requested}
    assert any(need.startswith("orjson") for need in needs)


def test_the_server_is_where_this_interpreter_finds_it() -> None:
    """Its site-packages and the folders of packages installed in place, without the standard library."""
    paths = server_paths()
    assert str(Path(build.stoker.__file__).parents[1]) in paths
    assert str(Path(pytest.__file__).parents[1]) in paths
    assert "" not in paths
    assert str(Path(json.__file__).parents[1]) not in paths


SECRETS = (
    "https://lab.blob.core.windows.net/w/a.whl?sv=2020-08-04&se=2027&sig=s3cr%2Bet%3D and again",
    "https://lab.example/a.whl?X-Amz-Credential=s3cret&X-Amz-Signature=s3cret",
    "Looking in indexes: https://me:s3cret@lab.example/simple, https://s3cret@lab.example/simple",
    "('https://lab.example/f?code=s3cret')",
    "https://lab.example/w?a=1&SIG=s3cret#egg=x; https://lab.example/w?token=s3cret",
)


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_of_addresses_are_masked(text: str) -> None:
    """Each of them, wherever they stand; the rest of the address stays."""
    assert "s3cr" not in mask_secrets(text)
    assert "****" in mask_secrets(text)
    assert mask_secrets(mask_secrets(text)) == mask_secrets(text)
    assert "lab." in mask_secrets(text)


def test_installer_output_hides_secrets_of_addresses(tmp_path: Path) -> None:
    """Installer output, which goes into logs and errors, has no secrets of addresses."""
    with (tmp_path / "lock").open("w") as lock:
        done = Installer(None).run([sys.executable, "-c", f"print({SECRETS[0]!r})"], lock.fileno())
    assert "sig=**** and again" in done.stdout

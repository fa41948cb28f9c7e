"""uv or pip, whichever can make virtual environments on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

FOREIGN_VARIABLES: Final = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_TARGET",
)
"""Environment variables that make uv and pip install elsewhere, or find packages elsewhere."""

# Settings that uv takes only as arguments, with other names.
_ARGUMENTS_OF_UV: Final[Mapping[str, tuple[str, ...]]] = {
    "--pre": ("--prerelease", "allow"),
    "--prefer-binary": (),
    "--require-hashes": ("--require-hashes",),
    "--trusted-host": ("--allow-insecure-host",),
}
# An index configured for pip applies to uv too, which reads other variables.
_VARIABLES_OF_UV: Final = (
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", " "),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", " "),
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", ","),
)


_OF_USERS: Final = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_SIGNED: Final = re.compile(
    r"([?&;](?:sig|signature|token|access_token|api_?key|key|code|password|secret|sas"
    r"|x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid)=)[^&;\s'\"<>)\]#]+",
    re.IGNORECASE,
)


def mask_secrets(text: str) -> str:
    """Replace passwords, signatures and tokens in the addresses of a text by `****`."""
    return _SIGNED.sub(r"\1****", _OF_USERS.sub("****", text))


def uv_command() -> tuple[str, ...] | None:
    """The command of uv; None if it is not installed."""
    if find_spec("uv") is not None:
        return (sys.executable, "-P", "-m", "uv")
    found = shutil.which("uv")
    return (found,) if found else None


def _has_pip() -> bool:
    return find_spec("pip") is not None


def _pip(python: Path) -> list[str]:
    """The command of pip for an environment: this interpreter's, because installing pip there takes seconds."""
    own = (
        [sys.executable, "-P", "-m", "pip", "--python", str(python)]
        if _has_pip()
        else [str(python), "-m", "pip"]
    )
    return [*own, "--disable-pip-version-check"]


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


class Installer(Struct, frozen=True):
    """Makes virtual environments, and installs packages into them, by the command `uv` or by pip if it is None."""

    uv: tuple[str, ...] | None

    @classmethod
    def find(cls) -> Installer:
        """Choose uv if it is installed, because it is much faster, else pip."""
        return cls(uv_command())

    def __str__(self) -> str:
        return "uv" if self.uv else "pip"

    def creation(self, python: Path, venv: Path) -> list[str]:
        """The command that makes a virtual environment for an interpreter."""
        if self.uv:
            return [*self.uv, "venv", "--quiet", "--no-project", "--python", str(python), str(venv)]
        return [str(python), "-m", "venv", *(["--without-pip"] if _has_pip() else []), str(venv)]

    def installation(self, venv: Path, requirements: Path, options: Sequence[str] = ()) -> list[str]:
        """The command that installs a requirements file into a virtual environment."""
        if not self.uv:
            return [*_pip(python_of(venv)), "install", "--no-input", "--requirement", str(requirements)]
        # As in pip: the best version of all indexes, not of the first one that has the package.
        strategy = ["--index-strategy", "unsafe-best-match"]
        command = [*self.uv, "pip", "install", "--python", str(python_of(venv)), *strategy]
        for option in options:
            name, _, value = option.partition(" ")
            if name in _ARGUMENTS_OF_UV:
                command += [*_ARGUMENTS_OF_UV[name], *([value] if value else [])]
        return [*command, "--requirement", str(requirements)]

    def requirements(self, lines: Sequence[str], options: Sequence[str]) -> str:
        """The content of a requirements file with these lines and options."""
        kept = [
            option for option in options if not self.uv or option.partition(" ")[0] not in _ARGUMENTS_OF_UV
        ]
        return "".join(f"{line}\n" for line in (*kept, *lines))

    def run(
        self,
        command: Sequence[str | Path],
        lock: int,
        cwd: Path | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
        interval_s: float = 10.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands; stdout of the result also has its error output, without secrets of addresses.

        Args:
            lock: Descriptor of the lock under which the environment is built.
            on_progress: Called every `interval_s` with the command's last line while it runs.
        """
        with (
            # Not a pipe, which would have to be drained while waiting.
            tempfile.TemporaryFile() as output,
            subprocess.Popen(
                command,
                cwd=cwd,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # If this process is killed, the lock stays held until the installer has ended too.
                pass_fds=(lock,),
            ) as process,
        ):
            try:
                while _goes_on(process, interval_s):
                    on_progress(mask_secrets(_text(output).rstrip().rpartition("\n")[2]))
            except BaseException:
                process.kill()
                raise
            return subprocess.CompletedProcess(command, process.returncode, mask_secrets(_text(output)))

    def variables(self) -> dict[str, str]:
        """The environment variables for its commands."""
        variables = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
        for pip_name, uv_name, separator in _VARIABLES_OF_UV:
            if self.uv and pip_name in variables:
                variables.setdefault(uv_name, separator.join(variables[pip_name].split()))
        return variables


def _goes_on(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process still runs after this many seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _text(output: IO[bytes]) -> str:
    """Return the content of a file without moving the writer's position."""
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace")

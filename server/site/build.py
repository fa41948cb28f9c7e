"""Builds the documentation site: the Markdown of the repository, arranged as the index of server/docs arranges it.

Pages lie in the site as in the repository, so links that hold where the repository is read hold in the site too. The
navigation is server/docs/README.md, whose headings are its parts. Zensical makes the pages, and refuses links to
pages and headings that there are not; what else pages lead to is looked at when they are made.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
DOCS: Final = Path("server/docs")
INDEX: Final = DOCS / "README.md"
DECISIONS: Final = DOCS / "decisions"
OTHERS: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "clients/README.md",
    "runs/agent/README.md",
    "models/README.md",
    "loadtests/README.md",
    "native/README.md",
)
SOURCES: Final = (
    "server",
    "clients",
    "runs/agent",
    "runs",
    "server/stoker_base",
    "server/stoker_cluster",
    "server/stoker_torchserve",
)
COMMANDS: Final = "reference/commands.md"
"""The page of the commands, which is made of their parsers."""
SETTINGS: Final = "reference/settings.md"
"""The page of the settings, which is made of their declarations."""
_DRAWN: Final = re.compile(r"[─│├└▶]|\S {3,}\S")
"""Signs of drawings and columns in a block of text."""
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Return the Markdown of the site, as paths in the repository."""
    found = [path.relative_to(ROOT) for path in sorted((ROOT / DOCS).rglob("*.md"))]
    return [*map(Path, OTHERS), *found]


def linked_files() -> set[Path]:
    """Return the other files that pages link to: pictures and source files.

    Raises:
        SystemExit: There is no such file.
    """
    files = set()
    for page in pages():
        text = re.sub(
            r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for link in LINK.findall(text):
            parts = urlsplit(link)
            if parts.scheme or not parts.path or parts.path.endswith(".md"):
                continue
            target = (ROOT / page).parent / unquote(parts.path)
            if not target.is_file():
                raise SystemExit(f"{page} leads to {link}, which is no file")
            files.add(target.resolve().relative_to(ROOT))
    return files


def navigation() -> list[dict[str, Any]]:
    """Return the parts of the site, each with its pages, in the order of the index; decisions are a part of a part.

    Raises:
        SystemExit: The index leaves a page out.
    """
    decisions = sorted(str(page) for page in pages() if page.parent == DECISIONS and page.name[0].isdigit())
    parts: list[dict[str, Any]] = [{"Stoker": ["README.md", {"All pages": str(INDEX)}]}]
    for part in re.split(r"^## ", (ROOT / INDEX).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        entries = []
        for title, link in re.findall(r"^- \[(.+?)\]\(([^)]+)\)", part, re.MULTILINE):
            page = ((ROOT / DOCS) / link).resolve().relative_to(ROOT)
            shown: Any = [str(page), *decisions] if page.parent == DECISIONS else str(page)
            entries.append({title[:1].upper() + title[1:]: shown})
        parts.append({part.partition("\n")[0]: entries})
    reference = [f"reference/{page.name}" for page in sorted(HERE.glob("reference/*.md"))]
    parts.append({"Reference": [COMMANDS, SETTINGS, *reference]})
    known = {path for entry in parts for path in paths_of(entry)}
    if missing := {str(page) for page in pages()} - known:
        raise SystemExit(f"{INDEX} leaves out {', '.join(sorted(missing))}")
    return parts


def paths_of(entry: Any) -> Iterator[str]:
    """Yield the paths of pages in a part of a navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for child in entry.values() if isinstance(entry, dict) else entry:
            yield from paths_of(child)


def lay(stage: Path) -> Path:
    """Copy the pages and their files, and write the site's configuration; returns the path of that."""
    shutil.rmtree(stage, ignore_errors=True)
    for path in (*pages(), *linked_files()):
        target = stage / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(mark_drawings((ROOT / path).read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copy(ROOT / path, target)
    shutil.copy(HERE / "phone.css", stage / "pages")
    shutil.copytree(HERE / "reference", stage / "pages" / "reference")
    for page, text in ((COMMANDS, command_page()), (SETTINGS, settings_page())):
        (stage / "pages" / page).write_text(mark_drawings(text), encoding="utf-8")
    configuration = yaml.safe_load((HERE / "mkdocs.yml").read_text(encoding="utf-8"))
    configuration["nav"] = navigation()
    for plugin in configuration["plugins"]:
        if "mkdocstrings" in plugin:
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / name) for name in SOURCES]
    file = stage / "mkdocs.yml"
    file.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    return file


def mark_drawings(text: str) -> str:
    """Return a page whose drawings have a class: `phone.css` wraps the other blocks."""

    def marked(block: re.Match[str]) -> str:
        drawn = not block[1] and _DRAWN.search(block[2])
        return f"```{{.text .drawing}}\n{block[2]}```" if drawn else block[0]

    return re.sub(r"^```(.*)\n((?:.*\n)*?)```$", marked, text, flags=re.MULTILINE)


def settings_page() -> str:
    """Return the page of the settings: those of the server, and those of a model."""
    from stoker.settings.model import ModelSettings
    from stoker.settings.readers import settings_of
    from stoker.settings.server import ServerSettings

    chapters = [
        "# Settings",
        "A setting of the server is a key of the [deployment file](../server/docs/deploying.md#the-deployment-file), "
        "a variable and an option: `max_body_mb`, `STOKER_MAX_BODY_MB`, `--max-body-mb`. A setting of a model is a "
        "key of its item in `models`. [Deploying](../server/docs/deploying.md#settings) explains them.",
    ]
    for title, kind in (("Server", ServerSettings), ("Models", ModelSettings)):
        rows = [
            f"| `{name}` | {_default(field.default)} | {_escaped(field.metadata['help'])} |"
            for name, field in settings_of(kind).items()
        ]
        chapters += [f"## {title}", "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])]
    return "\n\n".join(chapters) + "\n"


def _default(value: Any) -> str:
    """Return the default of a setting as a deployment file has it; empty if it has none of its own."""
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def command_page() -> str:
    """Return the page of the commands: each with its summary, arguments and options."""
    from stoker.commands.command_line import full_parser

    parsers = list(_parsers(full_parser()))
    settings = {
        action.dest for parser in parsers if parser.prog == "stoker serve" for action in _arguments(parser)
    }
    chapters = [
        "# Commands",
        "The options that `stoker COMMAND --help` prints, and `--help-all` where there is one.",
    ]
    for parser in parsers[1:]:
        words = parser.prog.split()
        chapters += ["#" * min(4, len(words)) + f" {parser.prog}", *_texts(parser.description)]
        # These take all of `stoker serve`.
        repeated = settings - {"path"} if words[-1] in {"doctor", "quickstart"} else set()
        shown = [action for action in _arguments(parser) if action.dest not in repeated]
        if shown:
            chapters.append("\n".join(["| argument | meaning |", "|---|---|", *map(_row, shown)]))
        chapters += _texts(parser.epilog)
    return "\n\n".join(chapters) + "\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands, each once, without those that are refused."""
    yield parser
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # the same
            for command in dict.fromkeys(action.choices.values()):
                if command.add_help:
                    yield from _parsers(command)


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)  # noqa: SLF001  # argparse has no other way to them
    return [
        action
        for action in parser._actions  # noqa: SLF001  # the same
        if action.help != argparse.SUPPRESS and not isinstance(action, hidden)
    ]


def _texts(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a text; those of several lines, which show something, as they are."""
    for paragraph in (text or "").strip().split("\n\n"):
        if "\n" in paragraph:
            yield f"```\n{paragraph}\n```"
        elif paragraph:
            yield _escaped(paragraph)


def _row(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    value = str(action.metavar or choices).replace("|", "\\|")
    names = ", ".join(action.option_strings)
    shown = names if action.nargs == 0 else f"{names} {value}".strip()
    return f"| `{shown}` | {_escaped((action.help or '') % {**vars(action), 'prog': ''})} |"


def _escaped(text: str) -> str:
    """Return a text in which Markdown finds no marks."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))


class _Leads(HTMLParser):
    """The links and files of a page, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in {"href", "src"}:
                (self.leads if tag == "a" else self.loads).append(value)


def troubles(site: Path) -> Iterator[str]:
    """Yield the defects of a site: links that lead nowhere, and files that are loaded from other sites."""
    for page in sorted(site.rglob("*.html")):
        # Its links are those of a server's root.
        if page.name == "404.html":
            continue
        found, name = _Leads(page.read_text(encoding="utf-8")), page.relative_to(site)
        for link in (*found.leads, *found.loads):
            parts = urlsplit(link)
            if parts.scheme in {"", "http", "https"} and parts.netloc:
                if link in found.loads:
                    yield f"{name} loads {link}"
            elif not parts.scheme and parts.path and not (page.parent / unquote(parts.path)).exists():
                yield f"{name} leads to {link}"


def main() -> None:
    """Build the site, in the interpreter's environment, where Zensical is installed.

    Raises:
        SystemExit: A link leads nowhere, or a page is in no part of the site.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", type=Path, help="a folder for what the site is made of; what is there goes")
    parser.add_argument("site", type=Path, help="where the site is put; what is there goes")
    arguments = parser.parse_args()
    configuration = lay(arguments.stage)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", configuration.name]
    if subprocess.run(command, cwd=arguments.stage, check=False).returncode:
        raise SystemExit("The site has not been built; what is wrong stands above.")
    built = arguments.stage / "site"
    if found := list(troubles(built)):
        raise SystemExit("\n".join(found))
    shutil.rmtree(arguments.site, ignore_errors=True)
    shutil.move(built, arguments.site)
    sys.stdout.write(f"Show the site, with its search: python3 -m http.server --directory {arguments.site}\n")


if __name__ == "__main__":
    main()

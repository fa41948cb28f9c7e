"""The build of the documentation site."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.programs import load_program

FOLDER = Path(__file__).parents[2] / "server" / "site"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return load_program(FOLDER / "build.py", "site_build")


def repository(folder: Path, build: ModuleType, index: str, page: str = "") -> None:
    """A repository with nothing but its pages."""
    for name in (*build.OTHERS, "server/docs/decisions/README.md", "server/docs/models.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# A page\n")
    (folder / "server/docs/README.md").write_text(index)
    (folder / "server/docs/models.md").write_text(page)


def test_every_page_is_in_the_site_once(build: ModuleType) -> None:
    """The index of the documentation is its navigation, with the decisions where it leads to them."""
    parts = {name: entries for part in build.navigation() for name, entries in part.items()}
    shown = [path for entries in parts.values() for path in build.paths_of(entries)]
    assert len(shown) == len(set(shown))
    reference = {f"reference/{page.name}" for page in FOLDER.glob("reference/*.md")} | {
        build.COMMANDS,
        build.SETTINGS,
    }
    assert set(shown) == {str(page) for page in build.pages()} | reference
    assert set(build.paths_of(parts["Reference"])) == reference
    (decisions,) = (entry["Decisions"] for entry in parts["Understand"] if "Decisions" in entry)
    assert decisions[0] == "server/docs/decisions/README.md"
    assert sorted(decisions[1:]) == decisions[1:]
    assert len(decisions) == len([path for path in shown if "/decisions/" in path])


def test_the_page_of_commands_has_each_command_and_option(build: ModuleType) -> None:
    """Those of `stoker serve` once, and no command line of Azure that is refused."""
    page = build.command_page()
    for heading in ("## stoker serve", "### stoker models register", "#### stoker az ml run list"):
        assert page.count(f"\n{heading}\n") == 1
    assert page.count("`--shared-memory-peers PEERS`") == 1
    assert "monitor-tensorboard" not in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {3}


def test_the_page_of_settings_has_each_setting_with_its_default(build: ModuleType) -> None:
    """As a deployment file has it."""
    page = build.settings_page()
    for row in ("| `port` | 8080 |", "| `auth` | true |", "| `device` | auto |", "| `max_body_mb` | 100 |"):
        assert page.count(row) == 1
    assert "| `keys_dir` |  |" in page
    assert "| `default_tier` | normal |" in page


def test_only_drawings_keep_their_lines_on_a_phone(build: ModuleType) -> None:
    """Columns are drawings too; commands, code and other texts are wrapped."""
    drawings = ("stoker serve\n└─ supervisor\n", "name      meaning\n")
    others = ("one line of a log\n", "$ a   b\n")
    for text in drawings:
        assert build.mark_drawings(f"```\n{text}```\n") == f"```{{.text .drawing}}\n{text}```\n"
    for fence, text in zip(("", "console"), others, strict=True):
        assert build.mark_drawings(f"```{fence}\n{text}```\n") == f"```{fence}\n{text}```\n"


def test_a_page_that_the_index_leaves_out_ends_the_build(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would find it."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    others = "".join(f"- [{name}](../../{name})\n" for name in build.OTHERS)
    index = f"# Index\n\n## Pages\n\n{others}- [decisions](decisions/README.md)\n"
    repository(tmp_path, build, index)
    with pytest.raises(SystemExit, match=r"leaves out server/docs/models\.md"):
        build.navigation()
    repository(tmp_path, build, f"{index}- [models](models.md)\n")
    assert build.navigation()[1]["Pages"][-1] == {"Models": "server/docs/models.md"}


def test_linked_files_of_pages_are_copied_to_the_site(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures and sources are copied; a missing one ends the build; other sites and shown code are left alone."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    page = "[code](../stoker/core.py#L3) [site](https://example.com/a.png) [page](keys.md)\n```\n[x](no.png)\n```\n"
    repository(tmp_path, build, "", page)
    with pytest.raises(SystemExit, match=r"core\.py#L3, which is no file"):
        build.linked_files()
    (tmp_path / "server/stoker").mkdir()
    (tmp_path / "server/stoker/core.py").touch()
    assert build.linked_files() == {Path("server/stoker/core.py")}


def test_a_site_leads_somewhere_and_loads_nothing_from_elsewhere(build: ModuleType, tmp_path: Path) -> None:
    """Links to other sites are allowed, resources of them are not."""
    (tmp_path / "here.html").write_text(
        '<a href="https://example.com">.</a><a href="#top">.</a><a href="here.html#top">.</a>'
        '<a href="gone.html">.</a>'
        '<img src="none.png"><script src="https://example.com/x.js"></script><link href="//example.com/font.css">'
    )
    (tmp_path / "404.html").write_text('<a href="/gone.html">.</a>')
    assert list(build.troubles(tmp_path)) == [
        "here.html leads to gone.html",
        "here.html leads to none.png",
        "here.html loads https://example.com/x.js",
        "here.html loads //example.com/font.css",
    ]

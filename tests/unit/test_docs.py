"""The documentation: names exist, and examples work."""

import argparse
import functools
import os
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.house.source_names import stale_names
from tests.parsers import commands_of, options_of

import stoker
from stoker import errors
from stoker.commands.command_line import full_parser
from stoker.control.frontend_messages import LaterRules
from stoker.errors import OperatorError, StokerError
from stoker.gateway.describing.exposition import render
from stoker.gateway.later.spool import Spool
from stoker.metrics import table as metrics_table
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory
from stoker.metrics.metric import Metric
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.readers import read_switch, settings_of
from stoker.settings.server import ServerSettings
from stoker_bench.gpu.command import parser as gpu_bench_parser
from stoker_bench.load import argument_parser as load_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "server" / "docs"
# Each has a pyproject.toml, and but the first a README.md of its own.
PROJECTS = (
    ".",
    "clients",
    "azure-ml",
    "runs/agent",
    "loadtests",
    "models",
    "runs",
    "server/stoker_base",
    "server/stoker_cluster",
    "server/stoker_torchserve",
)
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / project / "README.md" for project in PROJECTS[1:]),
    *sorted(DOCS.rglob("*.md")),
]
IDS = [str(document.relative_to(ROOT)) for document in DOCUMENTS]
# Packages are called so too.
NO_METRICS = {
    f"stoker_{name}"
    for name in ("azure", "base", "bench", "client", "cluster", "run", "runs", "torchserve", "training")
}
# Options of other programs that the pages name outside a command line.
FOREIGN_OPTIONS = {
    *("--build-arg", "--shm-size", "--only", "--resume-from"),
    # Of curl.
    "--resolve",
    # Of torch-model-archiver.
    "--archive-format",
    # Of pip.
    *("--extra-index-url", "--find-links", "--no-binary"),
    # Of perf_analyzer.
    *("--collect-metrics", "--metrics-url"),
    # Of tensorflow_model_server.
    *(
        "--model_name=N",
        "--model_config_file",
        "--batching_parameters_file",
        "--file_system_poll_wait_seconds",
    ),
    *(
        "--rest_api_port",
        "--ssl_config_file",
        "--per_process_gpu_memory_fraction",
        "--monitoring_config_file",
    ),
}


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def blocks(text: str, language: str = "") -> list[str]:
    """Contents of the fenced code blocks, of one language if it is given."""
    return [
        content
        for name, content in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if language in {"", name}
    ]


def prose(text: str) -> str:
    """The text without fenced code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Contents of the inline code of the prose."""
    return re.findall(r"`([^`\n]+)`", prose(text))


def table_rows(text: str, *headings: str) -> list[list[str]]:
    """Cells of the one table with these headings."""
    heading = f"| {' | '.join(headings)} |\n"
    assert text.count(heading) == 1, heading
    lines = text.partition(heading)[2].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def anchors(document: Path) -> set[str]:
    """Anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(text_of(document)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_relative_links_lead_somewhere(document: Path) -> None:
    """Each relative link names a file of the repository, and a heading of it where it names one."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(document))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / unquote(path)).resolve() if path else document
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


def test_named_sources_exist() -> None:
    """Files, folders, modules and their members that pages name are there; the changelog names earlier ones."""
    pages = [document.relative_to(ROOT) for document in DOCUMENTS if document.name != "CHANGELOG.md"]
    assert list(stale_names(ROOT, pages)) == []


def test_source_name_that_has_gone_is_found(tmp_path: Path) -> None:
    """Text that only looks like a name is left alone."""
    there = "`gateway/app.py` `server/stoker` `stoker.gateway.app` `stoker.gateway.app.serve` `stoker.span`"
    gone = "`gateway/direct.py` `tests/gone` `stoker.gateway.direct` `stoker.gateway.app.start`"
    (tmp_path / "page.md").write_text(f"{there} {gone} `models/NAME/1` `example.com`\n")
    (tmp_path / "server/stoker/gateway").mkdir(parents=True)
    (tmp_path / "server/stoker/gateway/app.py").write_text('def serve(): span("stoker.span")\n')
    assert [
        line.split(" names ")[1].partition(",")[0] for line in stale_names(tmp_path, [Path("page.md")])
    ] == [
        "gateway/direct.py",
        "tests/gone",
        "stoker.gateway.direct",
        "stoker.gateway.app.start",
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_tables_are_tables(document: Path) -> None:
    """Each has a heading, and each row as many cells: a row after a blank line would show as text with bars."""
    for table in re.findall(r"(?:^\|.*\n)+", prose(text_of(document)), re.MULTILINE):
        heading, line, *rows = [*table.splitlines(), ""]
        assert re.fullmatch(r"\|[\s:|-]+\|", line), heading
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in (heading, *rows) if row]
        assert len(set(cells)) == 1, heading


def test_every_page_is_in_an_index() -> None:
    """The index of the documentation lists every page beside it, and that of the decisions every decision."""
    for index in (DOCS / "README.md", DOCS / "decisions" / "README.md"):
        linked = set(re.findall(r"\]\(([^)#\s]+)\)", text_of(index)))
        assert {page.name for page in index.parent.glob("*.md")} - {"README.md"} <= linked


def test_decisions_have_one_form() -> None:
    """Each decision has its number in its name and title, and says context, decision and consequences."""
    decisions = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
        assert headings[0].startswith(f"{int(page.name[:4])}. "), page.name
        assert headings[1:] == ["Context", "Decision", "Consequences"], page.name


def options_by_command(parser: argparse.ArgumentParser) -> dict[tuple[str, ...], set[str]]:
    """Return the option strings of each command and subcommand."""
    found: dict[tuple[str, ...], set[str]] = {}

    def walk(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> None:
        found[path] = options_of(parser)
        for name, _, command in commands_of(parser):
            walk(command, (*path, name))

    walk(parser, ())
    return found


@functools.cache
def options_of_stoker() -> dict[tuple[str, ...], set[str]]:
    """Return the option strings of each command and subcommand of `stoker`."""
    return options_by_command(full_parser())


@functools.cache
def all_options() -> set[str]:
    """Return the option strings of all commands."""
    return set().union(
        *options_of_stoker().values(),
        *options_by_command(gpu_bench_parser()).values(),
        options_of(load_parser()),
    )


@functools.cache
def code_of_product() -> str:
    """Return the text of all modules."""
    return "".join(
        text_of(source)
        for folder in ("server", "clients", "runs", "azure-ml", "models", "loadtests")
        for source in (ROOT / folder).rglob("*.py")
    )


def stoker_calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Words after `stoker` in each command line that the text shows, and the line."""
    lines = [line for block in blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *spans(text)]:
        # Text in $(...) is a command of its own; text after # is for the reader.
        for piece in re.split(r"\$\(|\)|\||;|&&", line.partition(" #")[0]):
            try:
                words = shlex.split(piece)
            except ValueError:
                words = piece.split()
            while words and re.match(r"[A-Z_]+=|\$$|Registered$", words[0]):
                del words[0]
            if words and re.fullmatch(r"(.*/)?stoker", words[0]):
                yield line, words[1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_shown_commands_have_the_shown_options(document: Path) -> None:
    """Each `stoker ...` line names a command that exists, and only options that this command has."""
    known = options_of_stoker()
    for line, words in stoker_calls(text_of(document)):
        path: tuple[str, ...] = ()
        for word in words:
            if (*path, word) not in known:
                break
            path = (*path, word)
        assert path or not words or words[0].startswith("-"), line
        for word in words:
            if word.startswith("--") and word != "--":
                assert word.partition("=")[0] in known[path], line


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_named_options_exist(document: Path) -> None:
    """An option that is named alone, as in `--port`, is one of some command."""
    named = {word for span in spans(text_of(document)) if span.startswith("--") for word in span.split()[:1]}
    assert named - all_options() - FOREIGN_OPTIONS == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_named_variables_exist(document: Path) -> None:
    """Each STOKER_ variable is a setting's, or is read or set by the code."""
    settings = {f"STOKER_{name.upper()}" for name in ServerSettings.__dataclass_fields__}
    for variable in set(re.findall(r"\bSTOKER_[A-Z_]+\b", text_of(document))):
        assert variable in settings or f'"{variable}"' in code_of_product(), variable


def test_settings_table_is_complete() -> None:
    """The table of settings has each server setting with its default, and says which are switches."""
    rows = table_rows(text_of(DOCS / "deploying.md"), "setting", "default", "meaning")
    shown = {key.strip("`"): (default, meaning) for key, default, meaning in rows}
    settable = {name: field for name, field in ServerSettings.__dataclass_fields__.items() if field.metadata}
    assert list(shown) == list(settable)
    for name, (default, meaning) in shown.items():
        is_switch = settable[name].metadata["read"] is read_switch
        assert (default in {"true", "false"} or "a switch" in meaning) == is_switch
        if default or settable[name].default is not None:
            assert settable[name].metadata["read"](default) == settable[name].default


def test_table_of_model_keys_is_complete() -> None:
    """The table of a model's keys in the deployment file has each of its settings, once."""
    rows = table_rows(text_of(DOCS / "deploying.md"), "key of a model", "meaning")
    shown = [name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(shown) == sorted(settings_of(ModelSettings))


def test_deployment_file_is_valid(tmp_path: Path) -> None:
    """The deployment file that is shown is read, with all its settings and models."""
    (shown,) = blocks(text_of(DOCS / "deploying.md"), "yaml")
    file = tmp_path / "deployment.yaml"
    file.write_text(shown, encoding="utf-8")
    settings = load_settings({}, {}, file, ())
    assert (settings.host, settings.frontends, settings.metrics_auth) == ("0.0.0.0", 2, True)
    assert [model.registered for model in settings.models] == ["mnist:1", None]
    assert settings.models[1].path == tmp_path / "digits" / "score.py"


def test_shown_installations_have_all_that_is_on_no_index() -> None:
    """Installing from a clone names what of the clone the server needs: pip would look for it on the index."""
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    own = {
        tomllib.loads(text_of(ROOT / folder / "pyproject.toml"))["project"]["name"]: folder
        for folder in PROJECTS
    }
    needed = {
        f"./{own[name]}" for need in project["dependencies"] if (name := need.partition("==")[0]) in own
    }
    shown = [
        line for page in DOCUMENTS for line in re.findall(r"pip install (?:\\\n|[^`\n])*", text_of(page))
    ]
    from_clone = [line for line in shown if re.search(r" '?\.\[", line)]
    assert len(from_clone) >= 6
    for line in from_clone:
        words = [word.strip("'") for word in line.split()]
        assert needed <= {*words}, line
        # pip looks for `stoker` on the index where something that needs it comes before `.`.
        assert words.index(next(word for word in words if word.startswith("."))) == next(
            place for place, word in enumerate(words) if word.startswith(".[")
        ), line
    # A `stoker` on the index would be another project.
    assert not [line for line in shown if re.search(r" '?stoker\b(?!-)", line)]


def test_extras_table_is_complete() -> None:
    """The table of extras has each one of the server."""
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    rows = table_rows(text_of(DOCS / "deploying.md"), "extra", "for")
    assert sorted(name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)) == sorted(extras)


def exposed_metrics() -> tuple[set[str], set[str]]:
    """Names of the metrics, and of all time series that belong to them."""
    descriptor = MetricMemory.create()
    memory = MetricMemory(descriptor)
    memory.page(SUPERVISOR_PAGE).set_model_memory(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(LaterRules(Path(folder), budget_bytes=0, most_requests=0, keep_s=0))
        exposition = render(memory, {}, LoadMeter(memory), spool=spool).decode()
    os.close(descriptor)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE))
    series = {
        name + suffix
        for name, kind in kinds.items()
        for suffix in (("", "_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    return set(kinds), series


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_named_metrics_exist(document: Path) -> None:
    """Each metric that is named is one that the server exposes."""
    _, series = exposed_metrics()
    named = set(re.findall(r"\bstoker_[a-z_]+\b", text_of(document)))
    assert named - NO_METRICS - series == set()


def test_metrics_table_is_complete() -> None:
    """The table of metrics has each metric that the server exposes."""
    metrics, _ = exposed_metrics()
    rows = table_rows(text_of(DOCS / "deploying.md"), "metric", "labels", "meaning")
    assert {name for cell, *_ in rows for name in re.findall(r"`([^`]+)`", cell)} == metrics


def test_metrics_table_names_their_labels() -> None:
    """Each row names the labels of its metrics beside model and version."""
    labels = {
        metric.name + ("_total" if metric.kind == "counter" else ""): set(metric.labels)
        for metric in vars(metrics_table).values()
        if isinstance(metric, Metric)
    }
    labels |= {
        metric.name + ("_total" if metric.kind == "counter" else ""): set(metric.labels)
        for metric in metrics_table.GPU_METRICS.values()
    }
    wrong = {}
    for cell, named, _ in table_rows(text_of(DOCS / "deploying.md"), "metric", "labels", "meaning"):
        names = [name for name in re.findall(r"`([^`]+)`", cell) if name.startswith("stoker_")]
        if names:
            documented = set(re.findall(r"[a-z]+", re.sub(r"\(.*?\)", "", named)))
            declared = set().union(*(labels[name] for name in names))
            if documented != declared:
                wrong[cell] = (documented, declared)
    assert wrong == {}


def test_error_table_is_the_error_tree() -> None:
    """The table of errors has each error that a caller can get, with its status and code."""
    rows = table_rows(text_of(DOCS / "scoring.md"), "status", "code", "when")
    shown = {(int(status), code.strip("`")) for status, code, _ in rows}
    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StokerError)
    ]
    of_callers = [error for error in classes if not issubclass(error, OperatorError)]
    # Without classes that only group others: they have their parent's code.
    own = [error for error in of_callers if error is StokerError or error.code != error.__mro__[1].code]
    assert shown == {(error.status, error.code) for error in own}
    assert len(rows) == len(shown)


def test_versions_agree() -> None:
    """The newest version of the changelog is the one of the package and of each project."""
    (newest, *_) = re.findall(r"^## \[([^]]+)\]", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    projects = [tomllib.loads(text_of(ROOT / folder / "pyproject.toml"))["project"] for folder in PROJECTS]
    assert {newest, *(project["version"] for project in projects)} == {stoker.__version__}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_python_blocks_compile(document: Path) -> None:
    """Python that is shown has no syntax error."""
    for block in blocks(text_of(document), "python"):
        compile(block, document.name, "exec")


def test_shown_entry_scripts_keep_their_contract() -> None:
    """The scripts of the page on entry scripts have `init` and `run`; the first is the README's, in 10 lines."""
    scripts = blocks(text_of(DOCS / "entry-scripts.md"), "python")
    assert all("def init()" in script and "def run(" in script for script in scripts)
    assert len([line for line in scripts[0].splitlines() if line]) == 10
    assert scripts[0] in blocks(text_of(ROOT / "README.md"), "python")


def test_image_copies_existing_files() -> None:
    """Dockerfile.gpu copies files that .dockerignore lets through, installs them, and names its version."""
    dockerfile = text_of(ROOT / "Dockerfile.gpu").replace("\\\n", " ")
    ignored = [
        line for line in text_of(ROOT / ".dockerignore").splitlines() if line and not line.startswith("#")
    ]
    assert ignored[0] == "*"
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from=)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(copied) >= 5
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
        assert not any(fnmatch(source, pattern) for pattern in ignored[1:]), source
    packages = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert {package.partition("/")[0] for package in packages} <= set(copied)
    assert 'ENTRYPOINT ["stoker", "serve"]' in dockerfile
    assert f'org.opencontainers.image.version="{stoker.__version__}"' in dockerfile

"""The `stoker` command as a whole."""

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.parsers import commands_of
from tests.patience import PROGRAM_S
from tests.tiny_models import write_doubler

from stoker.cli import main
from stoker.commands.command_line import full_parser
from stoker.commands.names import EXTRAS, GROUPS, SUMMARIES
from stoker.errors import StokerError
from stoker.settings.readers import settings_of
from stoker.settings.server import ServerSettings
from stoker.system.extensions import command_names, find_command


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of all commands below it."""
    yield parser
    for _, _, command in commands_of(parser):
        yield from parsers(command)


def test_the_help_of_every_command_can_be_shown() -> None:
    """Texts with a per cent sign among it, and none says a default twice."""
    shown = [" ".join(parser.format_help().split()) for parser in parsers(full_parser())]
    assert len(shown) > 80
    for text in shown:
        assert not re.search(r"\(default[^()]*\)[.,;]? \(default", text), text


def test_every_command_and_action_has_a_description() -> None:
    """Also those that are refused; it is a sentence."""
    for parser in parsers(full_parser()):
        assert re.fullmatch(r"[^a-z\s].*[.…:?](\n.*)*", parser.description or "", re.DOTALL), parser.prog


def test_the_help_of_serve_fits_two_screens(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples first; --help-all has each setting, and `doctor` repeats none of them."""
    outputs = {}
    for command, option in (("serve", "--help"), ("serve", "--help-all"), ("doctor", "--help")):
        with pytest.raises(SystemExit) as stopped:
            main([command, option])
        assert stopped.value.code == 0
        outputs[command, option] = capsys.readouterr().out
    short, whole, doctor = outputs.values()
    assert short.count("\n") <= 80
    assert short.index("stoker serve model.onnx") < short.index("--model ")
    settings = {f"--{name.replace('_', '-')}" for name in settings_of(ServerSettings)}
    assert settings <= set(re.findall(r"--[a-z-]+", whole))
    assert 10 < len(settings & set(re.findall(r"--[a-z-]+", short))) < 30
    assert not settings & set(re.findall(r"--[a-z-]+", doctor))


def test_the_help_lists_all_commands_in_groups_without_importing_them() -> None:
    """Each with its summary and its other name."""
    code = (
        "import sys; from stoker.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([name for name in sys.modules if name.endswith(('.serve', '.submit')) or name == 'numpy'])"
    )
    environ = {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        check=True,
        timeout=PROGRAM_S,
        text=True,
    ).stdout
    assert shown.endswith("[]\n")
    for title, commands in GROUPS.items():
        group = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        for name, summary in commands.items():
            assert re.search(rf"^  {name} +{re.escape(summary)}", group, re.MULTILINE), name
    assert "(also: predict)" in shown


def test_every_installed_command_has_its_line() -> None:
    """In one group, and each of another distribution has the extra that brings it."""
    assert command_names() == SUMMARIES.keys()
    assert set().union(*EXTRAS.values()) < SUMMARIES.keys()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["predict", "--file", "x"], "score"),
        (["run", "train.py"], "submit"),
        (["sweep", "sweep.yaml"], "tune"),
    ],
)
def test_a_command_has_another_name(words: list[str], meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same command, also in messages."""
    monkeypatch.setattr(find_command(meant), "run", lambda args: {meant: 7}[args.command])
    assert main(words) == 7


def test_list_is_ls_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every command that lists."""
    for command in ("models", "keys", "runs", "experiments", "targets"):
        messages = []
        for action in ("list", "ls"):
            assert main([command, action, "--workspace", str(tmp_path)]) == 0
            messages.append(capsys.readouterr())
        assert messages[0] == messages[1]


def test_names_keep_their_capitals_where_a_help_becomes_a_sentence() -> None:
    """A description that begins with the help of the command in its list of commands has all its letters."""
    found = 0
    for parser in parsers(full_parser()):
        for _, listed, command in commands_of(parser):
            described = command.description or ""
            if described.lower().startswith((listed or "-").lower()):
                found += 1
                assert described[1:].startswith(str(listed)[1:])
    assert found > 60


def test_error_of_the_system_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workspace that cannot be made ends with exit code 2, its path and what to do, without a traceback."""
    model = write_doubler(tmp_path / "doubler.onnx")
    assert main(["models", "register", "doubler", str(model), "--workspace", "/proc/nowhere"]) == 2
    assert capsys.readouterr().err == (
        "stoker models: No such file or directory: /proc/nowhere; choose another workspace with --workspace\n"
    )


def test_quoted_text_in_an_error_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and contents of files in an error cannot move the terminal."""
    (tmp_path / "a.yaml").write_text('models: [{"path": x, "\\e]0;t\\a": 1}]')
    for arguments in (
        ["serve", str(tmp_path / "no\x1b[2J")],
        ["serve", "--config", str(tmp_path / "a.yaml")],
    ):
        assert main(arguments) != 0
        errors = capsys.readouterr().err
        assert r"\x1b" in errors
        assert all(letter.isprintable() or letter == "\n" for letter in errors)


def test_mistyped_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """The name is of the command or of those below it; an option without a near one is only named.

    The usage before it is that of the command.
    """
    for command, words, suggestion in (
        ("submit", ["--experimnt", "x", "train.py"], "--experimnt; did you mean --experiment?"),
        ("runs list", ["--metrc=loss"], "--metrc=loss; did you mean --metric?"),
        ("runs list", ["--zzzzzz"], "unrecognized arguments: --zzzzzz\n"),
        ("runs list", ["--write-only"], "arguments: --write-only\n"),  # that of another command
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*command.split(), *words])
        errors = capsys.readouterr().err
        assert (stopped.value.code, suggestion in errors) == (2, True)
        assert errors.startswith(f"usage: stoker {command} [")


def test_mistyped_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """By spelling, at each level, with where the others stand; not all of them are named."""
    for words, suggestion in (
        (
            ["serv", "model.onnx"],
            "no command 'serv'; did you mean 'stoker serve'? ('stoker --help' lists them)\n",
        ),
        (
            ["models", "lst"],
            "no command 'lst'; did you mean 'stoker models list'? ('stoker models --help' lists",
        ),
        ([f"{__file__}"], f"did you mean 'stoker serve {__file__}'?"),
        (["zzz"], "there is no command 'zzz' ('stoker --help' lists them)\n"),
        (["--versoin"], "unrecognized arguments: --versoin; did you mean --version?\n"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert (stopped.value.code, suggestion in capsys.readouterr().err) == (2, True), words


def test_missing_command_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """As `help` does, which is no mistake and goes to standard output."""
    for words in ([], ["keys"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        printed = capsys.readouterr()
        with pytest.raises(SystemExit) as helped:
            main(["help", *words])
        assert (stopped.value.code, helped.value.code) == (2, 0)
        assert printed.err == capsys.readouterr().out


def test_standard_streams_that_are_closed_are_opened_on_nothing(tmp_path: Path) -> None:
    """Otherwise the first socket of a server would be its standard output, and prints would fail."""
    seen = tmp_path / "seen"
    code = (
        "import os, sys; from stoker.cli import main; "
        f"code = main(['models', 'list', '--workspace', {str(tmp_path)!r}]); print('text', file=sys.stderr); "
        f"links = [os.readlink('/proc/self/fd/%d' % fd) for fd in (0, 1, 2)]; "
        f"open({str(seen)!r}, 'w').write(repr((code, links)))"
    )
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["/bin/sh", "-c", shell, sys.executable, code], check=True, timeout=PROGRAM_S)
    assert seen.read_text() == repr((0, [os.devnull] * 3))


@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [("targets list", ""), ("targets list", "1"), ("--version", "")]
)
def test_unwritable_output_is_reported_in_a_sentence(tmp_path: Path, arguments: str, unbuffered: str) -> None:
    """A full disk ends with exit code 1; a reader that has seen enough, such as `head`, with 0 and without a word."""
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "STOKER_WORKSPACE": str(tmp_path)}
    unread, pipe = os.pipe()
    os.close(unread)
    outputs = {}
    for place in (os.open("/dev/full", os.O_WRONLY), pipe):
        command = [sys.executable, "-m", "stoker.cli", *arguments.split()]
        ended = subprocess.run(
            command, env=environ, stdout=place, stderr=subprocess.PIPE, check=False, timeout=PROGRAM_S
        )
        outputs[place] = (ended.returncode, ended.stderr.decode())
        os.close(place)
    (full, words), broken = outputs.values()
    assert broken == (0, "")
    assert full == 1
    assert re.fullmatch(r"stoker( targets)?: No space left on device: make room .*\n", words)


@pytest.mark.parametrize("raises", [True, False])
def test_failed_command_fails_with_unread_output_too(
    raises: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own error and exit code win over those of a closed standard output."""

    def fail(_: argparse.Namespace) -> int:
        print("what it has found", file=sys.stdout)
        if raises:
            raise StokerError("it has failed")
        return 3

    monkeypatch.setattr("stoker.commands.doctor.run", fail)
    unread, pipe = os.pipe()
    os.close(unread)
    with os.fdopen(pipe, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        code = main(["doctor"])
    assert (code, capsys.readouterr().err) == ((1, "stoker doctor: it has failed\n") if raises else (3, ""))


def test_too_few_open_files_are_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what raises the limit: it is not the fault of any file that could not be opened."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("stoker.commands.doctor.run", refuse)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "stoker doctor: Too many open files: raise the limit (ulimit -n)\n"


def test_letters_that_the_locale_has_not_are_printed_in_another_way(tmp_path: Path) -> None:
    """A description in German on a terminal of ASCII is no reason to fail."""
    model = write_doubler(tmp_path / "doubler.onnx")
    options = ["--workspace", str(tmp_path / "workspace")]
    assert main(["models", "register", "doubler", str(model), "--description", "für alle", *options]) == 0
    listed = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "models", "list", *options],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=PROGRAM_S,
    )
    assert listed.returncode == 0, listed.stderr
    assert rb"f\xfcr alle" in listed.stdout


@pytest.mark.parametrize("arguments", ["models list", "models list --workspace relative"])
def test_missing_current_folder_is_reported_in_a_sentence(tmp_path: Path, arguments: str) -> None:
    """A release that was swapped; everything that is named by an absolute path goes on."""
    here = tmp_path / "here"
    here.mkdir()
    shell = 'rmdir "$PWD"; shift; exec "$0" -m stoker.cli "$@"'
    environ = {name: value for name, value in os.environ.items() if name != "STOKER_WORKSPACE"}
    command = ["/bin/sh", "-c", shell, sys.executable, "-", *arguments.split()]
    done = subprocess.run(
        command, cwd=here, env=environ, capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    assert (done.returncode, done.stderr) == (
        2,
        "stoker models: the current folder has been removed; change to another one\n",
    )


INTERRUPTED_AT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, sys.argv[2]))
sys.meta_path.insert(0, Interrupts())
from stoker.cli import main
raise SystemExit(main(["keys", "list", "--workspace", sys.argv[3]]))
"""


def interrupted_at(module: str, handler: str, workspace: Path) -> tuple[int, bytes]:
    """Exit code and standard error of a command that gets SIGINT while it looks for a module."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, module, handler, str(workspace)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "module", ["stoker.commands.command_line", "argparse", "stoker.commands.keys", "stoker.keys.callers"]
)
def test_ctrl_c_ends_the_command_quietly_whenever_it_comes(module: str, tmp_path: Path) -> None:
    """While the command line is imported, while the subcommand is, and while that works."""
    assert interrupted_at(module, "default_int_handler", tmp_path) == (130, b"\n")


def test_command_ignores_ctrl_c_like_its_parent(tmp_path: Path) -> None:
    """As those do that a shell has put into the background."""
    code, output = interrupted_at("argparse", "SIG_IGN", tmp_path)
    assert (code, output) == (0, b"there are no named keys; stoker keys add NAME makes one\n")


def test_cli_imports_no_other_module_before_its_ctrl_c_handler() -> None:
    """During an import Ctrl-C would print a traceback."""
    code = (
        "import sys; before = set(sys.modules); import stoker.cli; print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True
    )
    assert ended.stdout.split() == ["stoker", "stoker.cli"]


def test_the_caller_of_main_has_its_signal_handler_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a command that has run, and of one that could not be understood."""
    before = signal.getsignal(signal.SIGINT)
    assert main(["keys", "list", "--workspace", str(tmp_path)]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(SystemExit):
        main(["keys", "lst"])
    assert signal.getsignal(signal.SIGINT) is before
    capsys.readouterr()

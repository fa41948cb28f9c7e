"""The index of runs: an SQLite cache of the folders, so that thousands of runs are listed quickly.

It is not notified of changes. Listing compares the times of the runs' `events.jsonl` with those in the index, and
reads again what has changed or has not ended: so processes that write runs never wait for a database, and a lost,
damaged or outdated index is rebuilt. Metrics may have millions of lines: they are read only when requested for the
first time, and not for a list without metrics.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from stoker.system.durable import private_folder
from stoker_runs.errors import UnknownRun
from stoker_runs.records.children import descendants_of
from stoker_runs.records.folder import EVENTS_FILE, RunFolder
from stoker_runs.records.store import RunStore
from stoker_runs.records.summary import MetricStatistics, RunSummary, metric_statistics, summarize

_VERSION: Final = 5
_SCHEMA: Final = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, stamp TEXT NOT NULL, experiment TEXT NOT NULL, created_ms INTEGER NOT NULL,
    summary TEXT NOT NULL, is_measured INTEGER NOT NULL DEFAULT 0);
CREATE TABLE metrics (
    run TEXT NOT NULL, name TEXT NOT NULL, last REAL, least REAL, most REAL, count INTEGER NOT NULL,
    PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE INDEX runs_by_stamp ON runs (stamp);
CREATE INDEX metrics_by_name ON metrics (name, run, last);
"""
_CHILD_OF: Final = "child of "
"""The stamps of children that a script began have this prefix, and then the id of the script's run."""
_READ_SUMMARY: Final = msgspec.json.Decoder(RunSummary).decode


class RunIndex:
    """The index of a workspace's runs.

    Args:
        once: Whether it looks for changes only once, for a command with several queries.
    """

    def __init__(self, store: RunStore, *, once: bool = False) -> None:
        self._store = store
        self._once = once
        self._is_fresh = False
        self._path = store.runs_dir / ".index.sqlite"

    def runs(
        self, experiment: str | None = None, metrics: Sequence[str] | None = (), limit: int | None = None
    ) -> list[RunSummary]:
        """List runs, the newest first.

        Args:
            metrics: Names of the metrics to include; None for all.
            limit: Maximum number of runs; None for all.
        """
        with self._opened() as database:
            self._refresh(database, experiment)
            if metrics is None or metrics:
                self._measure(database, experiment, limit)
            return _listed(database, experiment, metrics, limit)

    def count(self, experiment: str | None = None) -> int:
        """The number of runs."""
        with self._opened() as database:
            self._refresh(database, experiment)
            return _count(database, experiment)

    def metric_names(self, experiment: str | None = None) -> list[str]:
        """The names of all numeric metrics of runs, in alphabetical order."""
        with self._opened() as database:
            self._refresh(database, experiment)
            self._measure(database, experiment, None)
            query = "SELECT DISTINCT name FROM metrics JOIN runs ON id = run"
            where, values = _where(experiment)
            return sorted(name for (name,) in database.execute(query + where, values))

    def unfinished_runs(self) -> list[str]:
        """The ids of runs that have not ended."""
        with self._opened() as database:
            self._refresh(database, None)
            # Only runs that have ended have a stamp.
            return [run for (run,) in database.execute("SELECT id FROM runs WHERE stamp = ''")]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        private_folder(self._store.runs_dir)
        try:
            database = self._connected()
        except sqlite3.DatabaseError:
            self._remove()
            database = self._connected()
        try:
            with database:
                yield database
        finally:
            database.close()

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=30)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    # Another process may have created it while this one waited.
                    (version,) = database.execute("PRAGMA user_version").fetchone()
                    if version != _VERSION:
                        _make(database)
        except BaseException:
            database.close()
            raise
        return database

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _refresh(self, database: sqlite3.Connection, experiment: str | None) -> None:
        """Read again what has changed, and remove runs that do not exist any more."""
        if self._is_fresh:
            return
        self._is_fresh = self._once and experiment is None
        where, values = _where(experiment)
        stamps = database.execute(f"SELECT id, stamp FROM runs{where}", values)  # noqa: S608  # no user's text
        known = {run: stamp for run, stamp in stamps if not stamp.startswith(_CHILD_OF)}
        for path in self._store.paths(experiment):
            stamp = _stamp(path)
            if known.pop(path.rpartition("/")[2], None) != stamp or not stamp:
                with contextlib.suppress(UnknownRun):
                    _put_family(database, RunFolder(Path(path)), stamp)
        for gone in known:
            _remove_children(database, gone)
            _remove_run(database, gone)

    def _measure(self, database: sqlite3.Connection, experiment: str | None, limit: int | None) -> None:
        """Read the metrics of the runs to list, if not yet done."""
        listed, values = _newest("id, experiment, stamp, is_measured", experiment, limit)
        unread = f"SELECT id, experiment, stamp FROM ({listed}) WHERE NOT is_measured"  # noqa: S608  # no user's text
        for run, of, stamp in database.execute(unread, values).fetchall():
            root = stamp.removeprefix(_CHILD_OF) if stamp.startswith(_CHILD_OF) else run
            folder = RunFolder(self._store.runs_dir / of / root)
            if root != run:
                children = (child for child in descendants_of(folder) if child.id == run)
                folder = next(children, folder)
            # Runs that have not ended are read each time: their metrics grow without an event.
            _put_metrics(database, run, metric_statistics(folder.metric_files()), final=bool(stamp))


def _make(database: sqlite3.Connection) -> None:
    for table in ("runs", "metrics"):
        database.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _SCHEMA.split(";"):
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {_VERSION}")


def _stamp(path: str) -> str:
    try:
        facts = os.stat(f"{path}/{EVENTS_FILE}")  # noqa: PTH116  # thousands of times
    except OSError:
        return ""
    return f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}"


def _put_family(database: sqlite3.Connection, folder: RunFolder, stamp: str) -> None:
    """Put a run and the children that its script has begun, which change only while it goes on."""
    run = summarize(folder)
    # Runs that have not ended are read each time.
    _put(database, run, stamp if run.is_terminal else "")
    _remove_children(database, run.id)
    for child in descendants_of(folder):
        with contextlib.suppress(UnknownRun):
            # Its script has chosen its id: it takes no other run's place.
            _put(database, summarize(child), _CHILD_OF + run.id, "IGNORE")


def _remove_children(database: sqlite3.Connection, run: str) -> None:
    for (child,) in database.execute("SELECT id FROM runs WHERE stamp = ?", (_CHILD_OF + run,)).fetchall():
        _remove_run(database, child)


def _remove_run(database: sqlite3.Connection, run: str) -> None:
    database.execute("DELETE FROM runs WHERE id = ?", (run,))
    database.execute("DELETE FROM metrics WHERE run = ?", (run,))


def _put(database: sqlite3.Connection, run: RunSummary, stamp: str, conflict: str = "REPLACE") -> None:
    database.execute(
        f"INSERT OR {conflict} INTO runs (id, stamp, experiment, created_ms, summary) VALUES (?, ?, ?, ?, ?)",  # noqa: S608  # no user's text
        (run.id, stamp, run.experiment, run.created_ms, msgspec.json.encode(run)),
    )


def _put_metrics(
    database: sqlite3.Connection, run: str, metrics: Mapping[str, MetricStatistics], *, final: bool
) -> None:
    database.execute("DELETE FROM metrics WHERE run = ?", (run,))
    database.executemany(
        "INSERT INTO metrics (run, name, last, least, most, count) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (run, name, numbers.last, numbers.least, numbers.most, numbers.count)
            for name, numbers in metrics.items()
        ],
    )
    database.execute("UPDATE runs SET is_measured = ? WHERE id = ?", (final, run))


def _where(experiment: str | None) -> tuple[str, tuple[str, ...]]:
    return (" WHERE experiment = ?", (experiment,)) if experiment else ("", ())


def _count(database: sqlite3.Connection, experiment: str | None) -> int:
    where, values = _where(experiment)
    (count,) = database.execute(f"SELECT COUNT(*) FROM runs{where}", values).fetchone()  # noqa: S608  # no user's text
    return int(count)


def _newest(columns: str, experiment: str | None, limit: int | None) -> tuple[str, Sequence[str | int]]:
    where, values = _where(experiment)
    query = f"SELECT {columns} FROM runs{where} ORDER BY created_ms DESC, id DESC LIMIT ?"  # noqa: S608  # no user's text
    return query, (*values, -1 if limit is None else limit)


def _listed(
    database: sqlite3.Connection, experiment: str | None, metrics: Sequence[str] | None, limit: int | None
) -> list[RunSummary]:
    found: dict[str, dict[str, MetricStatistics]] = {}
    numbers = "SELECT run, name, last, least, most, count FROM metrics"
    keys = [()] if metrics is None else [(name,) for name in metrics]
    for values in keys:
        rows = database.execute(f"{numbers} WHERE name = ?" if values else numbers, values)
        for run, name, last, least, most, count in rows:
            found.setdefault(run, {})[name] = MetricStatistics(
                _float(last), _float(least), _float(most), count
            )
    rows = database.execute(*_newest("summary", experiment, limit))
    runs = [_READ_SUMMARY(text) for (text,) in rows]
    return [run.replace(metrics=found[run.id]) if run.id in found else run for run in runs]


def _float(value: float | None) -> float:
    """SQLite stores NaN as null."""
    return float("nan") if value is None else value

"""A collector of a test's requests, with the files that it writes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.collected_records import last_records
from tests.puppets import metric_memory

from stoker.collecting.record_files import RecordFiles
from stoker.gateway.scoring.collector import Collector
from stoker.settings.collection import CollectionSettings

NOON_S = datetime(2026, 3, 1, 12, 34, 56, 789000, UTC).timestamp()
HOUR_S = 3600


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Scene:
    """A collector whose writer works when the test calls it, with its counters and files."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.now_s = NOON_S
        self.memory = metric_memory()
        made = CollectionSettings(**settings)
        files = RecordFiles(folder, 7, made.format, max_bytes=made.max_mb << 20, writers=1)
        self.files = files
        self.collector = Collector("digits", 7, made, files, self.memory.page(0).model(0), lambda: self.now_s)

    def ask(
        self,
        body: bytes,
        answer: bytes = b"[1]",
        status: int = 200,
        request_id: bytes = b"id",
        content_type: bytes = b"",
    ) -> None:
        """One request and its answer."""
        self.collector.observe(body, content_type, request_id, lambda *_: None)(status, b"", answer)

    def records(self) -> list[dict[str, Any]]:
        """Write the queue, then read all records."""
        self.collector.write_queued()
        self.files.close()
        return last_records(self.folder, 1_000_000)

    def counts(self) -> tuple[int, int, int]:
        """Records written, dropped for a full queue, dropped for the disk."""
        totals = self.memory.totals().model(0)
        dropped = totals.collection_dropped()
        return totals.collected, dropped["queue_full"], dropped["write_failed"]

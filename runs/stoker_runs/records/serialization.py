"""Records: facts that a file has as JSON. msgspec writes, reads and checks their fields (decision 50)."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec


class Record(msgspec.Struct, frozen=True):
    """The base of classes whose objects are written to files. Keys that later versions add are ignored."""

    ADDED_LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that files of earlier versions lack."""

    def to_json(self) -> Any:
        """Return what `json.dumps` writes."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Return the record that `to_json` was called on.

        Raises:
            ValueError: A field is missing or has another type: the file is damaged, or of something else.
        """
        record = msgspec.convert(content, cls)
        # Of a record that is a list in its file msgspec itself reports what is missing.
        names = cls.__struct_encode_fields__ if isinstance(content, dict) else ()
        missing = [name for name in names if name not in content and name not in cls.ADDED_LATER]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return record

    def replace(self, **changes: Any) -> Self:
        """Return the record with other values of some fields."""
        return msgspec.structs.replace(self, **changes)

"""What a load may say of how a model is batched and where it runs, in the place of its settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.settings.model import ModelSettings

__all__ = ["Adjustments"]


@dataclasses.dataclass(frozen=True, slots=True)
class Adjustments:
    """Settings of a model as one load wants them; None is what the settings say. See `ModelSettings`."""

    max_batch_rows: int | None = None
    max_delay_ms: float | None = None
    instances: int | None = None
    device: tuple[str, ...] | None = None

    def over(self, settings: ModelSettings) -> ModelSettings:
        """Return settings of a model, adjusted."""
        names = (field.name for field in dataclasses.fields(self))
        said = {name: value for name in names if (value := getattr(self, name)) is not None}
        return dataclasses.replace(settings, **said)

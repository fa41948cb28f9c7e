"""What frontends ask of their supervisor for their callers: the index, loading, unloading."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stoker.errors import StokerError
from stoker.versions import VersionPolicy, read_versions

if TYPE_CHECKING:
    from stoker.background import Background
    from stoker.children import Child
    from stoker.control import Message
    from stoker.frontend_processes import FrontendProcesses
    from stoker.rollout import Rollout

__all__ = ["Requests"]

logger = logging.getLogger(__name__)


class Requests:
    """Answers each `request` of a frontend with `reply`; see `stoker.gateway.administration`."""

    def __init__(self, rollout: Rollout, frontends: FrontendProcesses, background: Background) -> None:
        self._rollout = rollout
        self._frontends = frontends
        self._background = background

    def take(self, asker: Child, message: Message) -> None:
        """Begin to answer a request."""
        self._background.spawn(self._answer(asker, message))

    async def _answer(self, asker: Child, message: Message) -> None:
        ticket = message["ticket"]
        try:
            entries = await self._perform(message)
        except StokerError as error:
            self._refuse(asker, ticket, error)
        except Exception:
            logger.exception("the request to %s a model failed", message["operation"])
            self._refuse(asker, ticket, StokerError("An unexpected internal error occurred."))
        else:
            self._frontends.reply(asker, ticket, entries=entries)

    async def _perform(self, message: Message) -> list[dict[str, str]]:
        version: int | None = message.get("version")
        match message["operation"]:
            case "index":
                return await self._rollout.index(ready=message["ready"])
            case "load":
                versions: Any = message.get("versions")
                policy = None if versions is None else VersionPolicy.of(read_versions(versions))
                await self._rollout.load(message["model"], policy, version)
            case "unload":
                await self._rollout.unload(message["model"], version)
        return []

    def _refuse(self, asker: Child, ticket: int, error: StokerError) -> None:
        self._frontends.reply(
            asker,
            ticket,
            status=error.status,
            code=error.code,
            error=str(error)[:2000],
            retry_after_s=error.retry_after_s,
        )

"""A supervisor in a few lines: what a gateway asks it is answered at once, and taken note of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from stoker.control.frontend_messages import Ask, Refusal, Reply
from stoker.gateway.administration import AdminAccess, Administration, admin_key
from stoker.gateway.gateway import Gateway
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier

__all__ = ["Entries", "PuppetSupervisor", "with_admin_key"]

Entries: TypeAlias = tuple[Mapping[str, Any], ...]


def with_admin_key(key: str, *, polls: bool = False) -> AdminAccess:
    """The access of those who have this admin key; `polls` where the server looks for models itself."""
    return AdminAccess(admin_key(KeyVerifier(Path("no-keys"), ".admin", Keys(key, key))), polls=polls)


class PuppetSupervisor:
    """Does all that a gateway asks, or refuses it.

    Attributes:
        asked: What it was asked.
        refusal: What it refuses everything with.
    """

    def __init__(
        self, gateway: Gateway, access: AdminAccess, entries: Entries | Callable[[Ask], Entries] = ()
    ) -> None:
        """Be the supervisor of a gateway.

        Args:
            gateway: Who asks.
            access: Who may ask it.
            entries: What replies have, or gives what the one to a question has.
        """
        self.asked: list[Ask] = []
        self.refusal: Refusal | None = None
        self._gateway, self._entries = gateway, entries
        self.allow(access)

    def allow(self, access: AdminAccess) -> None:
        """Let these load and unload."""
        self._gateway.administration = Administration(self._ask, access)

    def _ask(self, ask: Ask) -> None:
        self.asked.append(ask)
        assert self._gateway.administration is not None
        entries = self._entries(ask) if callable(self._entries) else self._entries
        self._gateway.administration.accept_reply(
            replace(self.refusal, ticket=ask.ticket) if self.refusal else Reply(ask.ticket, entries)
        )

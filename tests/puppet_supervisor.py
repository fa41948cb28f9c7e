"""A supervisor in a few lines: what a gateway asks it is answered at once, and taken note of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

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
    """A supervisor that does all that a gateway requests, or refuses it.

    Attributes:
        requests: The requests so far.
        refusal: Its answer to each request, if it refuses them.
    """

    def __init__(
        self, gateway: Gateway, access: AdminAccess, entries: Entries | Callable[[Ask], Entries] = ()
    ) -> None:
        """Be the supervisor of a gateway.

        Args:
            gateway: The gateway that sends requests.
            access: The callers that may change what is served.
            entries: The entries of each reply, or a function that gives them for a request.
        """
        self.requests: list[Ask] = []
        self.refusal: Refusal | None = None
        self._gateway, self._entries = gateway, entries
        self.allow(access)

    def allow(self, access: AdminAccess) -> None:
        """Let these load and unload."""
        self._gateway.administration = Administration(self._ask, access)

    def _ask(self, ask: Ask) -> None:
        self.requests.append(ask)
        assert self._gateway.administration is not None
        entries = self._entries(ask) if callable(self._entries) else self._entries
        self._gateway.administration.accept_reply(
            msgspec.structs.replace(self.refusal, ticket=ask.ticket)
            if self.refusal
            else Reply(ask.ticket, entries)
        )

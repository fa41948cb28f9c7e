"""The choice of the models that leave memory to make room for another one."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class ModelUse(Struct, frozen=True):
    """A model in memory.

    Attributes:
        bytes: Memory that its eviction frees.
        load_s: Time to load it again.
        last_used_s: When its last request came.
        requests_per_s: Expected requests, as of now: `RequestRates.rate`.
        resident_until_s: End of its minimum residence.
        always_loaded: It never leaves.
        leased: Another load takes over from it or is compared with it, or it keeps state. Requests need no such mark:
            frontends answer those that have begun or waited before they let a model go.
    """

    name: str
    bytes: int
    load_s: float
    last_used_s: float
    requests_per_s: float
    resident_until_s: float = 0.0
    always_loaded: bool = False
    leased: bool = False

    @property
    def eviction_cost(self) -> float:
        """Seconds of loading that requests would wait per second, if the model were gone."""
        return self.requests_per_s * self.load_s

    def explain(self, now_s: float) -> str:
        """Return the figures of its eviction for a log line."""
        return (
            f"unused for {max(0.0, now_s - self.last_used_s):.4g} s, {self.requests_per_s:.3g} requests/s expected, "
            f"loads in {self.load_s:.3g} s, {self.bytes / 1e6:.4g} MB"
        )


def choose_evicted(models: Iterable[ModelUse], needed_bytes: int, now_s: float) -> list[str] | None:
    """Choose the models whose eviction costs the least waiting.

    Models leave in ascending order of `eviction_cost` per byte, as in GreedyDual-Size (Cao and Irani, 1997); of equal
    ones, the least recently used one leaves first. A model that is not needed for the bytes stays.

    Args:
        models: The models in memory.
        needed_bytes: Memory to free.

    Returns:
        Names; None if the models that may leave now do not have that many bytes.
    """
    movable = [
        model
        for model in models
        if not (model.always_loaded or model.leased) and model.resident_until_s <= now_s and model.bytes > 0
    ]
    movable.sort(key=lambda model: (model.eviction_cost / model.bytes, model.last_used_s, model.name))
    evicted, freed_bytes = [], 0
    for model in movable:
        if freed_bytes >= needed_bytes:
            break
        evicted.append(model)
        freed_bytes += model.bytes
    if freed_bytes < needed_bytes:
        return None
    for model in sorted(evicted, key=lambda model: -model.eviction_cost):
        if freed_bytes - model.bytes >= needed_bytes:
            evicted.remove(model)
            freed_bytes -= model.bytes
    return [model.name for model in evicted]

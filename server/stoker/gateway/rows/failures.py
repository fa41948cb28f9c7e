"""The errors of requests whose rows were not run."""

from __future__ import annotations

from stoker.arena import Arena, Outcome
from stoker.errors import (
    BodyTooLarge,
    DeviceLost,
    DeviceOutOfMemory,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    Overloaded,
    Refusal,
    StokerError,
    TooManySequences,
    UnknownSequence,
)
from stoker.gateway.rows.service_rate import ServiceRate
from stoker.gateway.rows.ticket import Ticket

__all__ = ["all_taken", "body_too_large", "device_lost", "device_restarting", "row_error"]


def device_lost() -> DeviceLost:
    """Return the error for a request whose device process died while it had the rows."""
    return DeviceLost("The device process ended while it held this request.", retry_after_s=1)


def device_restarting() -> DeviceLost:
    """Return the error for a request that arrives while the device process restarts."""
    return DeviceLost("The device process ended; it is being restarted.", retry_after_s=1)


def all_taken(arena: Arena, rate: ServiceRate, leased_rows: int) -> Overloaded:
    """Return the error for a request that finds no free row."""
    return Overloaded(
        f"All {arena.capacity} rows of this model's queue are taken; try again later.",
        refusal=Refusal(503, "overloaded", rate.retry_after_ms(leased_rows), rows_ahead=leased_rows),
    )


def body_too_large(arena: Arena, body: bytes | memoryview) -> BodyTooLarge:
    """Return the error for a body that is longer than a row of the arena."""
    room_bytes = arena.signature.inputs[0].row_bytes
    return BodyTooLarge(
        f"The request takes {len(body) / 2**20:.4g} MiB as the model's input; "
        f"{room_bytes / 2**20:.4g} MiB fit: send less at once, or raise max_body_mb."
    )


def row_error(arena: Arena, ticket: Ticket, number: int) -> StokerError:
    """Return the error for a row that the device has handed back without an answer.

    Args:
        arena: The rows.
        ticket: The request that the row belongs to.
        number: The row, whose outcome is not 0.
    """
    outcome = arena.outcome[number]
    if outcome == Outcome.EXPIRED:
        return ticket.lateness(begun=False)
    if outcome == Outcome.REFUSED:
        return InvalidInput(arena.read_bytes("out", 0, number).decode(errors="ignore"))
    if outcome == Outcome.UNKNOWN_SEQUENCE:
        return UnknownSequence()
    if outcome == Outcome.TOO_MANY_SEQUENCES:
        return TooManySequences()
    if outcome == Outcome.TOO_LARGE:
        return OutputTooLarge("The model's answer is larger than the space that its rows have.")
    error_id = f"{int(arena.detail[number]):016x}"
    if outcome == Outcome.OUT_OF_MEMORY:
        return DeviceOutOfMemory(error_id=error_id)
    return ModelFailed(error_id=error_id)

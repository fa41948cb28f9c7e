"""Chooses the dialect of Azure's scoring endpoint for a loaded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.settings.choices import NonFinite

if TYPE_CHECKING:
    from stoker.tensors import Signature


from stoker.gateway.scoring.dialects import JsonDialect, PackedDialect, RowsDialect
from stoker.gateway.scoring.method_dialect import MethodDialect
from stoker.gateway.scoring.script_dialect import ScriptDialect


def loaded_dialect(name: str, signature: Signature, non_finite: NonFinite) -> JsonDialect | ScriptDialect:
    """Make the dialect for a model with this signature; `non_finite` says how NaN and infinities are written."""
    if signature.script is not None:
        return ScriptDialect(name, signature.script)
    if signature.method:
        return MethodDialect(name, signature, non_finite)
    if signature.tensors is None:
        return RowsDialect(name, signature, non_finite)
    return PackedDialect(name, signature.tensors, non_finite)

"""The sample input of a script: a request that the script is known to answer."""

from __future__ import annotations

import json
import mimetypes
from pathlib import Path

from msgspec import Struct

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.script_form import ScriptForm
from stoker.settings.files import read_sample_file
from stoker.system.logs import SELF_CHECK
from stoker.wire.script_requests import RequestHead, ScriptRequest


class Sample(Struct, frozen=True):
    """A request that the script is known to answer."""

    body: bytes
    content_type: str
    source: str

    def request(self, body: bytes | None = None, rows: int = 0, *, with_head: bool = False) -> ScriptRequest:
        """Return a request like the sample, with its body or another one."""
        content = self.body if body is None else body
        headers = [("content-type", self.content_type), ("content-length", str(len(content)))]
        head = RequestHead("POST", "/score", "", headers, "127.0.0.1") if with_head else None
        return ScriptRequest(SELF_CHECK, content, rows, head)


def find_sample(deployment: Deployment, form: ScriptForm) -> Sample | None:
    """Return the sample of the setting or of the model's folder, or else that of the decorators; None without one."""
    if deployment.sample_file is not None:
        return _read_sample(deployment.sample_file)
    example = (form.input_schema or {}).get("example")
    if example:
        return Sample(json.dumps(example).encode(), "application/json", "the decorators' sample")
    return None


def _read_sample(path: Path) -> Sample:
    try:
        body = read_sample_file(path)
    except OSError as error:
        raise LoadFailed.unreadable_sample(error) from error
    return Sample(body, mimetypes.guess_type(path.name)[0] or "application/octet-stream", path.name)

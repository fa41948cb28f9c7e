"""A load generator for tests of whole benches: a slice is one request."""

from stoker_bench.contestants.servers import post
from stoker_bench.generators.load_generator import LoadFigures
from stoker_bench.generators.scoring_request import ScoringRequest


class OneRequest:
    """A generator whose slices are one request each."""

    description = "one request"

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """Send the request once."""
        del connections, seconds
        status, _ = post(request.host, request.port, request.path, request.body, request.headers)
        return LoadFigures(int(status == 200), int(status != 200), duration_s=0.5, p50_ms=1.0, p99_ms=1.0)

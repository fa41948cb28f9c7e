"""In each Python of a run: modules of scikit-learn are found by the names that they had when the script was written.

Python imports a module of this name at its start. The one that it would have imported otherwise is imported too.
Each process of the run imports this, so it imports nothing that can wait.
"""

import os
import sys

_REPORTED = "STOKER_FORMER_NAMES_SAID"


class _Finder:
    """Provides former names once a module of scikit-learn is asked for that nothing else has."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Find nothing itself: what provides the names then stands behind this one, and is asked next."""
        if name.startswith("sklearn."):
            try:
                from stoker_base.former_names import provide_former_names
            except ImportError:  # the script has changed where modules are found
                return
            provide_former_names(_say)


def _say(line: str) -> None:
    reported = os.environ.get(_REPORTED, "")
    if line not in reported.splitlines():
        # Not once more in each process that the script starts.
        os.environ[_REPORTED] = f"{reported}\n{line}".strip()
        sys.stderr.write(f"stoker_run: {line}\n")


def _next() -> None:
    from importlib.machinery import PathFinder

    # Only what stands behind this one: what stands before it has imported it.
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.abspath(entry or ".") for entry in sys.path]
    rest = sys.path[places.index(here) + 1 :] if here in places else []
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


sys.meta_path.append(_Finder)
_next()

"""Former names of scikit-learn's modules, for scripts and pickles of their age.

Scripts of the years before 2020 have `from sklearn.externals import joblib`, and pickles name the module of each
class as it was called then. scikit-learn 0.22 gave most of its modules an underscore, and 0.23 removed what it had
copied from others. The finder stands last in `sys.meta_path`, so installed packages win. It provides today's own
module, so a class has one identity under both names.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Callable, Dict, Iterator, Optional, Sequence, Set, Tuple

_TOP = "sklearn."
# Projects of their own, of which scikit-learn had copies.
_COPIED = {"sklearn.externals.joblib": "joblib", "sklearn.externals.six": "six"}
# Modules that got an underscore before their name, and lost one behind it. `decomposition.dict_learning` is left out:
# there is a function of that name, which the module would hide.
_UNDERSCORED = {
    "cluster": "affinity_propagation_ bicluster birch dbscan_ mean_shift_ optics_ spectral",
    "covariance": "elliptic_envelope empirical_covariance_ graph_lasso_ robust_covariance shrunk_covariance_",
    "cross_decomposition": "pls_",
    "datasets": "base samples_generator",
    "decomposition": (
        "base factor_analysis fastica_ incremental_pca kernel_pca nmf pca sparse_pca truncated_svd"
    ),
    "ensemble": "bagging base forest iforest voting weight_boosting",
    "feature_extraction": "dict_vectorizer stop_words",
    "feature_selection": "base from_model mutual_info_ rfe univariate_selection variance_threshold",
    "gaussian_process": "gpc gpr",
    "linear_model": (
        "base bayes coordinate_descent huber least_angle logistic omp passive_aggressive perceptron ransac ridge "
        "sag sgd_fast stochastic_gradient theil_sen"
    ),
    "manifold": "isomap locally_linear mds spectral_embedding_ t_sne",
    "metrics": "base classification ranking regression scorer",
    "mixture": "base bayesian_mixture gaussian_mixture",
    "neighbors": (
        "ball_tree base classification graph kd_tree kde lof nca nearest_centroid quad_tree regression "
        "unsupervised"
    ),
    "neural_network": "base multilayer_perceptron rbm",
    "preprocessing": "data label",
    "semi_supervised": "label_propagation",
    "svm": "base bounds classes liblinear libsvm libsvm_sparse",
    "tree": "export",
}
_RENAMED = {
    "cluster.hierarchical": "cluster._agglomerative",
    "cluster._hierarchical": "cluster._agglomerative",
    "cluster.k_means_": "cluster._kmeans",
    "cross_decomposition.cca_": "cross_decomposition._pls",
    "decomposition.online_lda": "decomposition._lda",
    "ensemble.gradient_boosting": "ensemble._gb",
    "ensemble.voting_classifier": "ensemble._voting",
    "feature_extraction.hashing": "feature_extraction._hash",
    "neighbors.dist_metrics": "metrics._dist_metrics",
    "neighbors._dist_metrics": "metrics._dist_metrics",
    "tree.tree": "tree._classes",
}


def _names() -> Iterator[Tuple[str, str]]:
    for package, modules in _UNDERSCORED.items():
        for module in modules.split():
            yield f"{_TOP}{package}.{module}", f"{_TOP}{package}._{module.rstrip('_')}"
    for former, present in _RENAMED.items():
        yield _TOP + former, _TOP + present


FORMER_NAMES: Dict[str, str] = dict(_names())
"""Former names of modules of scikit-learn, and what they are called today."""


class _FormerNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda _: None
        self.reported: Set[str] = set()

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        del path, target
        if not fullname.startswith(_TOP):
            return None
        project, present = copied_project(fullname)
        if project and importlib.util.find_spec(project) is None:
            # Not that the module is missing: `from sklearn.externals import …` would say something else then.
            raise ImportError(
                f"{fullname} was a copy of {project}, which is not installed: pip install {project}, or list it in "
                "the environment of the script",
                name=fullname,
            )
        present = present or FORMER_NAMES.get(fullname, "")
        found = importlib.util.find_spec(present) if present else None
        if found is None:
            return None
        self._report(fullname, present)
        # With an empty path: Python must not load what lies in the folder a second time, under the former name.
        return ModuleSpec(
            fullname, self, origin=present, is_package=found.submodule_search_locations is not None
        )

    def _report(self, former: str, present: str) -> None:
        """Say once in a process that a name was needed; of a copied project once for all of its modules."""
        for name, project in _COPIED.items():
            if former.startswith(f"{name}."):
                former, present = name, project
        if former not in self.reported:
            self.reported.add(former)
            version = getattr(sys.modules.get("sklearn"), "__version__", "of today")
            self.say(f"scikit-learn {version} has no {former}; it is {present} for this process")

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        present = importlib.import_module(spec.origin)
        if spec.submodule_search_locations is None:
            # An import ends with what stands here, as for any module that replaces itself.
            sys.modules[spec.name] = present
        else:
            kept = {name: value for name, value in vars(present).items() if not name.startswith("__")}
            vars(module).update(kept, __all__=getattr(present, "__all__", [*kept]))


def copied_project(fullname: str) -> Tuple[str, str]:
    """The project of which this was a copy, and the name of the module there; empty where there is none."""
    for former, project in _COPIED.items():
        if fullname == former or fullname.startswith(f"{former}."):
            return project, project + fullname[len(former) :]
    return "", ""


FINDER = _FormerNames()


def provide_former_names(say: Callable[[str], None]) -> None:
    """Let former names be imported; a second call changes only `say`."""
    FINDER.say = say
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)

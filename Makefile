# Everything a user or CI needs; `make install` is implied by the others.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What is a distribution of its own, beside the server.
PARTS := server/stoker_base clients runs/agent runs azure-ml models server/stoker_cluster server/stoker_torchserve loadtests
NATIVE := $(VENV)/.native
KSERVE := $(VENV)/kserve
KSERVE_NEEDS := tests/contract/kserve_client/requirements.txt
SBOM_NEEDS := deploy/image/sbom-requirements.txt
MLFLOW := $(VENV)/mlflow
CONSOLE_SOURCES := server/console
CONSOLE := server/stoker/gateway/api_docs/page/libraries/swagger-ui-bundle.js
TORCH := $(VENV)/torch
TORCH_NEEDS := tests/torch/requirements.txt
STORES := $(VENV)/stores
STORES_NEEDS := tests/stores/requirements.txt
SPARK := $(VENV)/spark
SPARK_NEEDS := tests/spark/requirements.txt
AZURITE := $(STORES)/azurite/node_modules/azurite/dist/src/blob/main.js
OPENAPI := $(VENV)/openapi
OPENAPI_NEEDS := tests/openapi/requirements.txt
TRITON := $(VENV)/triton
TRITON_NEEDS := tests/triton/requirements.txt
MODEL_ANALYZER := $(VENV)/model-analyzer
MODEL_ANALYZER_NEEDS := tests/triton/requirements-model-analyzer.txt
MLFLOW_NEEDS := tests/targets/requirements-mlflow.txt
LEGACY_KERAS := $(VENV)/tf-keras
SITE := $(VENV)/site
SITE_NEEDS := server/site/requirements.txt
# Some images of Python set it, and each of the thousand processes of the tests would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install ci-all console image-test screenshots serve docs test test-bench test-cluster test-console test-monitoring test-offline test-openapi test-pods test-ray test-servers test-simdjson test-spark test-stores test-targets test-torch test-triton test-tutorials examples hunt house prepare coverage frames lint chaos chaos-later soak bench load compare dist constraints clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

install: $(STAMP) $(NATIVE) console  ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml $(PARTS:%=%/pyproject.toml) constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Stoker needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@echo 'Some GB of packages are downloaded and installed now; the first time that takes minutes.'
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --compile-bytecode -c constraints.txt $(PARTS:%=-e ./%) -e '.[gpu,training,azure,cluster,torchserve,load,bench,dev]'
	touch $@

# Nothing needs it, and without a C++ compiler it is installed without its extension.
$(NATIVE): native/pyproject.toml native/setup.py $(wildcard native/stoker_native/*.cpp) | $(STAMP)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --verbose --reinstall-package stoker-native ./native 2> $(VENV)/native.log
	@$(BIN)/python -c 'import stoker_native' 2> /dev/null || \
	    echo 'stoker-native was not built ($(VENV)/native.log says why): simdjson reads JSON rows, Pillow resizes.'
	touch $@

# Where there is no npm, or it fetches nothing, a line says so: all but the console works.
console: $(CONSOLE)  ## the libraries of the pages for browsers, from npm by the lock file

$(CONSOLE): $(CONSOLE_SOURCES)/package-lock.json $(CONSOLE_SOURCES)/build.py | $(STAMP)
	$(BIN)/python $(CONSOLE_SOURCES)/build.py

serve: install  ## train if nothing is registered, register, serve; prints the scoring URI and a curl line
	$(BIN)/stoker quickstart

$(KSERVE)/.installed: $(KSERVE_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(KSERVE)
	VIRTUAL_ENV=$(KSERVE) $(BIN)/uv pip install --no-config --quiet -r $(KSERVE_NEEDS)
	touch $@

# A test process a core, and one for the time that tests wait for servers. Those of servers are the long ones: they come
# first, as they are collected, and the many small ones fill what is left.
WORKERS ?= 3
# How long `hunt` and `chaos` look for defects.
SECONDS ?= 600
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What pytest compiles of the tests, by one process once: in a fresh clone each of the workers would do it, at one time.
$(VENV)/.compiled: $(STAMP)
	$(BIN)/python -m pytest --collect-only -qq > $@.log || { cat $@.log; exit 1; }
	touch $@

# The types take one core, as what is compiled does, and where neither is needed any more both take little.
test: install $(KSERVE)/.installed  ## lint, types, import rules and all tests
	$(MAKE) --no-print-directory --output-sync -j 2 lint $(VENV)/.compiled
	$(BIN)/python $(PYTEST) -m "not long"

test-servers: install  ## the tests of real servers that take longest: faults in turn, memory on demand, Azure's deployments
	$(BIN)/python $(PYTEST) -m long

# What is measured means nothing here, only that it is.
test-bench: install  ## whole benches, each with its servers, as short as they can be
	$(BIN)/python $(PYTEST) loadtests/tests/benches

# One process: they share a control plane.
test-cluster: install  ## what needs a Kubernetes control plane, which Go builds here the first time
	$(BIN)/python -m tests.cluster.tools
	$(BIN)/python -m pytest -rs tests/cluster

image-test: install  ## Dockerfile.gpu built and run by podman, which takes root; the base is made by debootstrap
	$(BIN)/python -m pytest -rs --timeout 3600 tests/image

$(VENV)/.traefik: tests/pods/requirements.txt $(STAMP)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -r tests/pods/requirements.txt
	touch $@

# In network, mount and process namespaces of their own, as root: the machine keeps nothing of them.
test-pods: install $(VENV)/.traefik  ## servers in pods, by containerd, kubelet and kube-proxy on this machine, under load; PODS are options of pytest
	$(BIN)/python -m tests.pods $(PODS)

$(MLFLOW)/.installed: $(MLFLOW_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(MLFLOW)
	VIRTUAL_ENV=$(MLFLOW) $(BIN)/uv pip install --no-config --quiet -r $(MLFLOW_NEEDS)
	touch $@

# What scripts of before Keras 3 need of their Keras where their models are read.
$(LEGACY_KERAS): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $(LEGACY_KERAS) tf-keras==2.21.0
	touch $@

test-targets: install $(MLFLOW)/.installed $(LEGACY_KERAS)  ## training runs with real processes, killed ones among them, on each kind of compute target
	$(BIN)/python -m pytest -m targets tests/targets

$(TRITON)/.installed: $(TRITON_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TRITON)
	VIRTUAL_ENV=$(TRITON) $(BIN)/uv pip install --no-config --quiet --no-deps -r $(TRITON_NEEDS)
	touch $@

# An environment of its own, for it wants other versions; where it cannot be installed its test is skipped.
$(MODEL_ANALYZER)/.tried: $(MODEL_ANALYZER_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(MODEL_ANALYZER)
	VIRTUAL_ENV=$(MODEL_ANALYZER) $(BIN)/uv pip install --no-config --quiet --no-deps -r $(MODEL_ANALYZER_NEEDS) || \
	    echo 'Model Analyzer cannot be installed here: its test is skipped.'
	touch $@

# Docstrings are read without importing anything. The commands are imported, and need no framework: nothing that training
# runs on.
$(SITE)/.installed: $(SITE_NEEDS) pyproject.toml $(PARTS:%=%/pyproject.toml)
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	VIRTUAL_ENV=$(SITE) $(SITE)/bin/uv pip install --no-config --quiet -r $(SITE_NEEDS) -e . \
	    $(patsubst %,-e ./%,$(filter-out models,$(PARTS)))
	VIRTUAL_ENV=$(SITE) $(SITE)/bin/uv pip install --no-config --quiet --no-deps -e ./models
	touch $@

docs: $(SITE)/.installed  ## the documentation as a site in site/; what leads nowhere fails it
	$(SITE)/bin/python server/site/build.py $(VENV)/site-pages site

test-tutorials: install  ## the tutorials: every command that they show, and what it writes
	$(BIN)/python -m pytest -rs tests/tutorials

test-monitoring: install  ## dashboards and alerts by a real Prometheus, which needs Debian's prometheus; traces by a receiver of OTLP
	$(BIN)/python -m pytest -rs tests/monitoring

$(OPENAPI)/.installed: $(OPENAPI_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OPENAPI)
	VIRTUAL_ENV=$(OPENAPI) $(BIN)/uv pip install --no-config --quiet -r $(OPENAPI_NEEDS)
	touch $@

test-openapi: install $(OPENAPI)/.installed  ## what /openapi.json says, by schemathesis against a server
	$(BIN)/python -m pytest -rs tests/openapi

# Beside what is in .venv, whose packages it sees: `addsitedir` reads the files of editable installs too.
$(TORCH)/.installed: $(TORCH_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TORCH)
	VIRTUAL_ENV=$(TORCH) $(BIN)/uv pip install --no-config --quiet -c constraints.txt -r $(TORCH_NEEDS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > $$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stoker.pth
	touch $@

test-torch: install $(TORCH)/.installed  ## models of PyTorch, whose packages take some GB and minutes the first time
	$(TORCH)/bin/python -m pytest -rs tests/torch

# Without npm the tests on Azure's blobs are skipped.
$(STORES)/.installed: $(STORES_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(STORES)
	VIRTUAL_ENV=$(STORES) $(BIN)/uv pip install --no-config --quiet -r $(STORES_NEEDS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > $$($(STORES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stoker.pth
	npm install --silent --no-fund --no-audit --prefix $(STORES)/azurite azurite@3.35.0 || echo 'Azurite was not installed.'
	touch $@

test-stores: install $(STORES)/.installed  ## models in object stores: S3, Azure's blobs, Google's, SFTP
	STOKER_TEST_AZURITE=$(CURDIR)/$(AZURITE) $(STORES)/bin/python -m pytest -rs tests/stores

$(SPARK)/.installed: $(SPARK_NEEDS) $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(SPARK)
	VIRTUAL_ENV=$(SPARK) $(BIN)/uv pip install --no-config --quiet -c constraints.txt -r $(SPARK_NEEDS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > $$($(SPARK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stoker.pth
	touch $@

test-spark: install $(SPARK)/.installed  ## frames scored on a Spark cluster of this machine, scripts that spark-submit runs; needs Java 17
	$(SPARK)/bin/python -m pytest -rs tests/spark

test-triton: install $(TRITON)/.installed $(MODEL_ANALYZER)/.tried  ## Triton's perf_analyzer and Model Analyzer against a server
	$(BIN)/python -m pytest -rs tests/triton

$(VENV)/.playwright: tests/console/requirements.txt $(CONSOLE_SOURCES)/package-lock.json $(STAMP)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -c constraints.txt -r tests/console/requirements.txt
	$(BIN)/python $(CONSOLE_SOURCES)/build.py --tests $(VENV)/console
	touch $@

test-console: install $(VENV)/.playwright  ## the console in a real browser, Chromium: what it shows, its keys, axe-core
	$(BIN)/python -m pytest -rs tests/console

screenshots: install $(VENV)/.playwright  ## the pictures of the console in the documentation
	$(BIN)/python -m tests.console.screenshots

# Of connections, keys, memory that callers share and TensorFlow: nothing there is read in C++.
WITHOUT_NUMBERS := cuda_shared_memory keys request_ids saved_model shared_memory sockets tls tokens
test-simdjson: install  ## bodies and answers over HTTP where nothing is read in C++
	STOKER_NATIVE=0 $(BIN)/python $(PYTEST) tests/http tests/contract tests/unit/wire $(WITHOUT_NUMBERS:%=--ignore=tests/http/test_%.py)

examples: install  ## the property tests of bodies, messages and plans with four times as many examples
	$(BIN)/python $(PYTEST) -m hypothesis --hypothesis-profile=long tests/unit/wire tests/unit/device/test_target_decisions.py \
		tests/unit/device/test_service_times.py

hunt: install  ## the property tests with fresh examples for SECONDS (600); SEED has a round's examples again, TESTS names files
	$(BIN)/python -m tests.hunt --seconds $(SECONDS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(TESTS)

# Engines are large, and tests with them take minutes.
$(VENV)/.engines: $(STAMP)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -c constraints.txt -e '.[spark,ray]'
	touch $@

test-offline: $(VENV)/.engines  ## a million rows through Ray Data, Spark and four shards, as a server answers them
	$(BIN)/python -m pytest tests/offline

test-ray: $(VENV)/.engines  ## servers and runs on Ray clusters on this machine; CHILDREN=1000 runs a sweep of that many alone, and prints its speed
	$(BIN)/python -m pytest tests/ray $(if $(CHILDREN),-s -k sweep)

prepare: install $(MLFLOW)/.installed $(OPENAPI)/.installed $(TORCH)/.installed $(STORES)/.installed $(SPARK)/.installed $(LEGACY_KERAS) $(TRITON)/.installed $(MODEL_ANALYZER)/.tried $(VENV)/.engines $(VENV)/.playwright $(VENV)/.traefik
	$(BIN)/python -m tests.cluster.tools

coverage: install lint $(KSERVE)/.installed $(MLFLOW)/.installed  ## test and test-targets, measured: fails where they reach less than 95 % of lines and branches; 25 minutes
	rm -rf .coverage
	$(BIN)/coverage run $(PYTEST) -m "not interrupts"
	$(BIN)/coverage run -m pytest -m targets tests/targets
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

H2SPEC_VERSION := v2.2.1+incompatible
frames: install  ## the published tests of HTTP/2; builds h2spec with Go where it is not there yet
	test -x $(BIN)/h2spec || GOBIN=$(abspath $(BIN)) go install github.com/summerwind/h2spec/cmd/h2spec@$(H2SPEC_VERSION)
	H2SPEC=$(abspath $(BIN))/h2spec $(BIN)/python -m pytest tests/contract/test_h2spec.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# `.ci/run` alone skips a suite that was green before with the same content of all that it needs.
ci-all:  ## every suite that CI runs; half an hour
	.ci/run --all

house: install  ## figures of the code: its size, joints, names, decisions, documentation and settings
	$(BIN)/python -m tests.house

chaos: install  ## hurt a server for SECONDS (600) while callers check every answer; SEED runs an episode again
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

chaos-later: install  ## kill a server that answers later 20 times, with 10,000 requests under way
	$(BIN)/python -m tests.chaos.later $(if $(SEED),--seed $(SEED))

soak: install  ## a process of 40 models killed under load, and 10,000 loads of a model beside another; some 20 minutes
	STOKER_TEST_MODELS=40 STOKER_TEST_CYCLES=10000 $(BIN)/python -m pytest --timeout 7200 -s tests/process/test_packing.py

bench: install  ## Stoker against the baselines, in one run
	$(BIN)/stoker bench

load: install  ## locust against a server that it starts itself
	$(BIN)/python -m stoker_bench.load

compare: install  ## Stoker against other servers, each from PyPI in an environment of its own
	$(BIN)/python -m stoker_bench.compare

# Without its libraries a wheel would have no console.
dist: install  ## wheels and sdists of the server, the client, the agent, training and the bench in dist/, checked
	rm -rf dist
	$(BIN)/python $(CONSOLE_SOURCES)/build.py --require
	for project in $(PARTS) .; do \
	    $(BIN)/uv build --no-build-isolation --python $(BIN)/python --out-dir dist $$project || exit; \
	done
	$(BIN)/uv build --python $(BIN)/python --out-dir dist native
	unzip -l dist/stoker_native-*.whl | grep -q '_rows.*\.so'
	$(BIN)/uv tool run twine@7.0.0 check --strict dist/*
	$(BIN)/python -m pytest tests/unit/test_distributions.py

constraints:  ## refresh the lock of the other targets
	printf '%s\n' $(PARTS:%='-e ./%') '-e .[cpu,gpu,training,load,bench,dev,spark,ray,ssh,keras2,torch,import,tuning,text,s3,gcs,blob,sftp,https]' uv > requirements.in
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip compile --universal --upgrade --quiet --no-annotate --no-header \
	    --python-version 3.11 requirements.in | grep -v '^-e' > constraints.txt
	rm requirements.in
	echo kserve | $(BIN)/uv pip compile --no-config --universal --upgrade --quiet --no-annotate --no-header \
	    --python-version 3.11 - > $(KSERVE_NEEDS)
	echo cyclonedx-bom | $(BIN)/uv pip compile --no-config --universal --upgrade --quiet --no-annotate --no-header \
	    --python-version 3.11 - > $(SBOM_NEEDS)
	echo triton-model-analyzer | $(BIN)/uv pip compile --no-config --universal --upgrade --quiet --no-annotate --no-header \
	    --python-version 3.11 - | grep -v '^perf-analyzer' > $(MODEL_ANALYZER_NEEDS)
	printf '%s\n' zensical mkdocstrings-python pyyaml ruff | $(BIN)/uv pip compile --no-config --universal --upgrade --quiet \
	    --no-annotate --no-header --python-version 3.11 - > $(SITE_NEEDS)

clean:  ## remove what the targets made, but not the workspace
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

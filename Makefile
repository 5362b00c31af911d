# Everything is set up by the targets themselves: a virtual environment in .venv from the locked requirements,
# and the C parts in src/tessera/_native. `make help` lists what a person would type.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first interpreter that is new enough; override with `make PYTHON=/path/to/python3`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
PY := $(BIN)/python
FAST := tests/core tests/policy tests/vendors tests/allocator tests/promises tests/wire tests/golden tests/house
export OPENBLAS_NUM_THREADS := 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 with venv is needed (Debian, Ubuntu: apt-get install python3 python3-venv)"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(PY) -m compileall -q src
	@touch $@

.PHONY: native
native: ## build the C library and the simulated driver
	@command -v gcc >/dev/null || { echo "gcc is needed (Debian, Ubuntu: apt-get install gcc libc6-dev)"; exit 1; }
	@$(MAKE) --no-print-directory -C limiter all

.PHONY: setup
setup: .venv/ready native ## set everything up and nothing more

.PHONY: demo
demo: setup ## the main job: plan a cluster, then three tenants on one device
	@$(PY) examples/demo.py

.PHONY: check
check: .venv/ready ## the inner loop: format, lint, types, layering, sizes, fast tests
	$(BIN)/ruff format --check --quiet src tests tools bench examples
	$(BIN)/ruff check --quiet src tests tools bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PY) tools/sizes.py
	TESSERA_LAW_EXAMPLES=25 $(PY) -m pytest $(FAST) tests/laws

.PHONY: test-c
test-c: .venv/ready ## the C parts under the sanitizers, and their symbols
	$(MAKE) -j2 --output-sync=target -C limiter test sim-test mutants symbols

.PHONY: mutants
mutants: .venv/ready ## break the allocator in many small ways; every law must object
	$(PY) tools/mutants.py

.PHONY: engine
engine: ## build the real engine once: etcd, Kubernetes, kubectl, helm (needs go, 8 minutes)
	@$(PYTHON) tools/real_cluster.py build

.PHONY: cluster
cluster: setup ## leave a real cluster running, and print its kubeconfig
	@$(PY) tools/real_cluster.py up

.PHONY: cluster-down
cluster-down: ## end that cluster
	@$(PYTHON) tools/real_cluster.py down

.PHONY: cluster-demo
cluster-demo: setup ## the road of one pod on a real cluster, with what each part wrote (as root: a real node)
	@$(PY) tools/real_cluster.py build
	@PYTHONPATH=tests $(PY) examples/cluster_demo.py

SEED ?= 1
KILLS ?= 200
.PHONY: chaos
chaos: setup ## kill -9 at KILLS seeded random moments under load, and judge what the API saw: make chaos SEED=7
	@$(PY) tools/real_cluster.py build
	@PYTHONPATH=tests $(PY) -m cluster.chaos --seed $(SEED) --kills $(KILLS)

.PHONY: bench-cluster
bench-cluster: setup ## print the figures of a cluster (20 minutes)
	@$(PY) tools/real_cluster.py build
	@PYTHONPATH=tests $(PY) bench/cluster/run.py

# Tests on the real engine wait more than they compute, and a machine has room for one real node: so `make test` runs in
# three lanes. lane-node and lane-cluster take what is in ON_ENGINE, with and without a real node; lane-alone computes
# beside them, and takes every test that they do not.
ON_ENGINE := tests/cluster tests/chart tests/ports

.PHONY: test
test: setup ## every test: pure core, C library under ASan and UBSan, end to end
	$(BIN)/ruff format --check --quiet src tests tools bench examples
	$(BIN)/ruff check --quiet src tests tools bench examples
	$(PY) tools/sizes.py
	@echo "the rest in three lanes at once; each is printed when it has ended"
	@mkdir -p build/lanes && rm -f build/lanes/*
	@$(MAKE) --no-print-directory -j3 --output-sync=target lane-engine lane-alone lane-node lane-cluster || { \
	    echo "failed, of all lanes:"; grep -hE '^(FAILED|ERROR) ' build/lanes/*; exit 1; }

.PHONY: lane-alone lane-engine lane-node lane-cluster
lane-alone:
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	nice $(MAKE) -C limiter test sim-test mutants-region symbols
	nice $(PY) tools/mutants.py
	$(PY) -m pytest -rsfE tests $(ON_ENGINE:%=--ignore=%) | tee build/lanes/alone

lane-engine:
	$(PY) tools/real_cluster.py build --if-possible

lane-node: lane-engine
	$(PY) -m pytest -rsfE -m node tests/cluster | tee build/lanes/node

lane-cluster: lane-engine
	$(PY) -m pytest -rsfE -m "not node" $(ON_ENGINE) | tee build/lanes/cluster

.PHONY: bench
bench: setup ## print the figures of this machine
	$(PY) bench/run.py

.PHONY: parity
parity: setup ## compare the published policies with what they published, on the public trace (long)
	$(PY) tools/parity.py

.PHONY: quality
quality: setup ## measure the default policy against what it has to reach, on the public trace (long)
	$(PY) tools/quality.py

.PHONY: bench-limiter
bench-limiter: setup ## the limiter's figures beside their goals, and build/limiter-report.html (long)
	$(PY) bench/limiter_report.py

.PHONY: verify
verify: setup ## regenerate what is generated; fails where that changes anything
	$(PY) tools/plan_schema.py --check
	$(PY) tools/crds.py --check
	$(PY) tools/chart.py --check
	$(PY) tools/protos.py --check
	$(PY) tools/metrics_table.py --check
	$(PY) tools/promises_page.py --check
	git diff --exit-code --stat

.PHONY: ci
ci: test verify ## what continuous integration runs beside the packages that it installs
	$(MAKE) -j2 --output-sync=target -C limiter mutants-gate mutants-compute
	$(MAKE) -C limiter arm64 valgrind
	$(MAKE) demo

.PHONY: clean
clean: ## remove what was built; keeps the environment
	rm -rf build dist src/tessera/_native
	$(MAKE) -C limiter clean

.PHONY: lock
lock: ## renew the locked requirements (needs uv)
	uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11 --custom-compile-command "make lock" pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11 --custom-compile-command "make lock" --extra dev pyproject.toml -o requirements/dev.txt

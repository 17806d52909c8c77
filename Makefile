# Everything that a contributor runs. `make` alone prints this list.
PYTHON ?= python3
# An interpreter that is given, `make test PYTHON=python3.13`, has an environment of its own: .venv-3.13.
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
LOWEST := .venv-lowest
QUIETLY := --quiet --disable-pip-version-check --no-deps
UV := 'uv>=0.8'
RESOLVE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock'
WORKERS := --numprocesses=3 --dist=worksteal
COVERED := tests/unit tests/integration tests/acceptance/test_processes.py tests/acceptance/test_run.py
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
AT_NIGHT = OUTBOXKIT_TEST_NIGHT=1 OUTBOXKIT_TEST_SEED=$(SEED) $(BIN)/python -m pytest -o faulthandler_timeout=1800 --hypothesis-seed=$(SEED) $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help install demo docs dist matrix model mutation soak test test-all test-lowest coverage bench check format lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## build .venv with outboxkit in it

demo: $(VENV)/.installed ## the whole story on this machine, nothing else needed
	@$(BIN)/outboxkit demo

test: $(VENV)/.tests ## every promise once, on real PostgreSQL and RabbitMQ (found, or started, or installed)
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m pytest -m "not night" $(WORKERS) --ignore=tests/test_architecture.py --ignore=tests/test_prose.py $(ARGS)

test-all: $(VENV)/.tests ## what a night can afford: long storms, fresh examples, random seeds (SEED=… for the same again)
	@$(BIN)/python -m tests.servers --provide --night
	@$(MAKE) --no-print-directory coverage
	$(AT_NIGHT) -m "hypothesis or drawn" $(COVERED) $(ARGS)
	$(AT_NIGHT) $(addprefix --ignore=,$(COVERED)) $(ARGS)
	@$(MAKE) --no-print-directory dist

coverage: $(VENV)/.tests ## how much of outboxkit the tests of its parts run; fails below what pyproject.toml asks
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m pytest -q $(WORKERS) --cov --cov-report=term:skip-covered $(COVERED)

model: $(VENV)/.tests ## check the models of the protocol with spin, and that each broken variant of them fails (ARGS="--night", "--help")
	$(BIN)/python -m tests.model $(ARGS)

mutation: $(VENV)/.tests ## change the modules that carry promises, one thing at a time, and name what no test notices (ARGS="relay")
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'mutmut==3.8.1'
	$(BIN)/python -m tests.mutation $(ARGS)

soak: $(VENV)/.tests ## real processes under faults drawn from a seed, and the history checked (MINUTES=2 SEED=…)
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),2) --seed $(SEED) $(ARGS)

matrix: $(VENV)/.tests ## every step of every process, stopped in five ways (half an hour; ARGS="-k Relay" for some)
	@$(BIN)/python -m tests.servers --provide
	OUTBOXKIT_TEST_NIGHT=1 OUTBOXKIT_TEST_MATRIX=1 $(BIN)/python -m pytest -q tests/faults/test_matrix.py $(WORKERS) $(ARGS)

bench: $(VENV)/.tests ## how fast it is here, beside what it is compared with (ARGS="--quick", "--help")
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m tests.benchmarks $(ARGS)

docs: $(VENV)/.docs ## build the site of the documentation into .site/; a broken link, an anchor or a page out of the menu fails
	@# not --quiet, which keeps warnings from being counted
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo ".site/index.html is there; with its search: $(BIN)/python -m http.server --directory .site"

dist: $(VENV)/.dist ## build sdist and wheel into dist/ and check them: metadata, README, each extra in a bare environment
	$(BIN)/python -m tests.distribution

check: $(VENV)/.tests ## format, lint, types, import rules, architecture, the documentation's site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_prose.py
	@$(MAKE) --no-print-directory docs

format: $(VENV)/.tests ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-lowest: $(LOWEST)/.installed ## the unit and integration tests with the lowest versions that pyproject.toml allows
	@$(LOWEST)/bin/python -m tests.servers --provide
	$(LOWEST)/bin/python -m pytest -m "not night" $(WORKERS) --ignore=tests/unit/test_distribution.py tests/unit tests/integration $(ARGS)

lock: | $(VENV)/bin/python ## renew the lock files: the newest versions that pyproject.toml allows
	@$(BIN)/python -m pip install $(QUIETLY) $(UV)
	$(RESOLVE) --upgrade pyproject.toml --all-extras --group test --group lint -o tests/requirements.lock
	$(RESOLVE) --upgrade pyproject.toml --extra worker --extra metrics --group workers -c tests/requirements.lock --no-annotate -o workers/requirements.lock
	$(RESOLVE) --upgrade -c tests/requirements.lock --group docs -o docs/site/requirements.lock
	$(RESOLVE) --upgrade -c tests/requirements.lock --group dist -o tests/distribution/requirements.lock

clean: ## remove the environments and what the tools left
	rm -rf .venv .venv-* .site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "outboxkit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: workers/requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing outboxkit into $(VENV)"
	@$(BIN)/python -m pip install $(QUIETLY) --require-hashes --requirement workers/requirements.lock
	@$(BIN)/python -m pip install $(QUIETLY) --editable .
	@touch $@

$(VENV)/.tests: tests/requirements.lock $(VENV)/.installed
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/python -m pip install $(QUIETLY) --require-hashes --requirement tests/requirements.lock
	@touch $@

$(VENV)/.docs: docs/site/requirements.lock | $(VENV)/bin/python
	@echo "installing what builds the documentation's site into $(VENV)"
	@$(BIN)/python -m pip install $(QUIETLY) --require-hashes --requirement docs/site/requirements.lock
	@touch $@

$(VENV)/.dist: tests/distribution/requirements.lock $(VENV)/.tests
	@echo "installing what checks the distributions into $(VENV)"
	@$(BIN)/python -m pip install $(QUIETLY) --require-hashes --requirement tests/distribution/requirements.lock
	@touch $@

$(LOWEST)/.installed: pyproject.toml tests/requirements.lock | $(VENV)/bin/python
	@$(BIN)/python -m pip install $(QUIETLY) $(UV)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --resolution lowest-direct -o $(LOWEST)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --requirement $(LOWEST)/lowest.txt --group test
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --editable .
	@touch $@

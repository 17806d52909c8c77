# Everything that a contributor runs. `make` alone prints this list.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS := --numprocesses=2 --dist=worksteal
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all coverage bench check format clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## build .venv with outboxkit in it

demo: $(VENV)/.installed ## the whole story on this machine, nothing else needed
	@$(BIN)/outboxkit demo

test: $(VENV)/.tests ## every promise once, on real PostgreSQL and RabbitMQ (found, or started, or installed)
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m pytest -m "not night" $(WORKERS) --ignore=tests/test_architecture.py $(ARGS)

test-all: $(VENV)/.tests ## what a night can afford: long storms, fresh examples, random seeds (SEED=… for the same again)
	@$(BIN)/python -m tests.servers --provide
	OUTBOXKIT_TEST_NIGHT=1 OUTBOXKIT_TEST_SEED=$(SEED) $(BIN)/python -m pytest --hypothesis-seed=$(SEED) $(WORKERS) $(ARGS)

bench: $(VENV)/.tests ## how fast it is here, beside what it is compared with (ARGS="--quick", "--help")
	@$(BIN)/python -m tests.servers --provide
	$(BIN)/python -m tests.benchmarks $(ARGS)

check: $(VENV)/.tests ## format, lint, types, import rules, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(VENV)/.tests ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv and what the tools left
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "outboxkit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing outboxkit into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.tests: pyproject.toml $(VENV)/.installed
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test --group lint
	@touch $@

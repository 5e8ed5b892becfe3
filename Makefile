# Every target makes or updates the virtual environment it needs; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Any Python 3.11 to 3.13. Unless named, the first one found: python3 if it is one of these.
PYTHON ?= $(shell .ci/find-python.sh 3.11 3.12 3.13 || echo python3)
# The newest JAX needs a newer Python than the oldest we support.
NEWEST_PYTHON ?= $(shell .ci/find-python.sh 3.13)

VENV := .venv
NEWEST_VENV := .venv-newest
PYTEST_FLAGS ?= -n 2 --dist worksteal
ARGS ?=

empty :=
space := $(empty) $(empty)
# Installing is silent and takes its time, so it is announced.
announce = [ -e $(1)/.installed-$(subst $(space),-,$(2)) ] || printf '%s\n' \
  "First use: JAX and what else is needed is installed into $(1); about a minute, and silent." >&2
venv = @$(call announce,$(VENV),$(1)); .ci/venv.sh $(VENV) "$(PYTHON)" "$(1)"

.PHONY: help compare bench test test-slow test-newest lint format types docs tables clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

compare:  ## Compare compilecut with the usual ways on two workloads (about 2 minutes)
	$(call venv,bench)
	@$(VENV)/bin/python bench/compare.py --preset quick $(ARGS)

bench:  ## Take every figure of bench/results again and check it (about 20 minutes)
	$(call venv,bench)
	@$(VENV)/bin/python bench/init.py $(ARGS)
	@$(VENV)/bin/python bench/chunks.py $(ARGS)

test:  ## Run the tests
	$(call venv,test bench)
	@$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) $(ARGS)

test-slow:  ## Run the tests, with those that take long
	$(call venv,test bench)
	@$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --run-slow $(ARGS)

test-newest:  ## Run the quick tests on the newest JAX (needs Python 3.13)
	@if [ -z "$(NEWEST_PYTHON)" ]; then \
	  echo "make test-newest: the newest JAX is tested on Python 3.13, and none was found on PATH" \
	    "or in pyenv. Install one, or name it: make test-newest NEWEST_PYTHON=/path/to/python3.13"; \
	  exit 1; fi >&2
	@$(call announce,$(NEWEST_VENV),test bench); \
	  .ci/venv.sh $(NEWEST_VENV) "$(NEWEST_PYTHON)" "test bench"
	@$(NEWEST_VENV)/bin/python -m pytest $(PYTEST_FLAGS) -m quick $(ARGS)

lint:  ## Check formatting and lint
	$(call venv,lint)
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .

format:  ## Format, and fix what ruff can fix
	$(call venv,lint)
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

types:  ## Check types
	$(call venv,test bench lint)
	@$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

docs:  ## Build the documentation into site/
	$(call venv,docs)
	@# Not --quiet: it would hide the warnings from --strict too, and nothing would ever fail.
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

tables:  ## Write the measured tables of README.md and docs/ again from bench/results
	$(call venv,bench)
	@$(VENV)/bin/python bench/tables.py

clean:  ## Remove the environments, caches and built documentation
	rm -rf $(VENV) $(NEWEST_VENV) site .pytest_cache .ruff_cache .hypothesis bench/out
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

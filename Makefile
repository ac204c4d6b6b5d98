# Everything a contributor or a CI machine runs. Needs python3 (3.11 or newer) and nothing else.

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
TORCH   := torch==2.13.0

BIN     := $(VENV)/bin
# -qq: errors only.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input

# Several ranks share one machine in the tests: more threads each would only be in the way.
export OMP_NUM_THREADS ?= 1
# Hundreds of processes start in the tests: what one has compiled is there for the next, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test lint types pytest fmt bench clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo  ## print the bill of one training step of Llama 3.1 70B (needs no torch)
	@$(BIN)/meshcost analyze examples/llama-3.1-70b.yaml
	@echo "The command is $(BIN)/meshcost; $(BIN)/meshcost --help lists what it can do."

test: lint  ## lint, types and all tests: what CI runs
	@$(MAKE) --no-print-directory -j2 types pytest

pytest: $(VENV)/.test
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

lint: $(VENV)/.test  ## style, format and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/.test  ## mypy, strict
	$(BIN)/mypy

fmt: $(VENV)/.test  ## format, and mend what can be mended
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(VENV)/.test  ## run the benchmarks
	@if [ -f benchmarks/run.py ]; then $(BIN)/python benchmarks/run.py; else echo "no benchmarks/run.py"; fi

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find meshcost tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: installed once, and again when pyproject.toml changes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e .
	@$(BIN)/python -m compileall -qq meshcost  # also where the environment forbids bytecode: a bill starts faster
	@touch $@

# --no-compile: of the many modules of torch and transformers few are ever imported, and those are compiled then.
$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --no-compile -e '.[test]' '$(TORCH)'
	@touch $@ $(VENV)/.demo

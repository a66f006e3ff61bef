# Each target does its own set-up: a virtual environment with pinned versions, made once and reused.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types check bench bench-gamma clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt --editable ".[dev,bench]"
	touch $(READY)

setup: $(READY) ## make the virtual environment

demo: $(READY) ## simulate a confounded log, show what the confounding does and what repairs it
	$(BIN)/puid demo

test: $(READY) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY) ## check format, style and types
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy

check: lint test ## everything that must pass before a change lands

bench: $(READY) ## time the data layer, the engine and the metrics
	$(BIN)/python bench/loading.py
	$(BIN)/python bench/metrics.py
	$(BIN)/python bench/engine.py shape
	$(BIN)/python bench/engine.py large

bench-gamma: $(READY) ## propensities, entropies and Γ for 100 million rows
	$(BIN)/python bench/gamma.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build

# Each target does its own set-up: a virtual environment with pinned versions, made once and reused.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEMO := $(VENV)/.ready-demo
DATA ?= $(or $(PUIDREC_DATA),data)
WORKERS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check
# `make setup HASHES=1`: the files whose hashes are known, and no others (SECURITY.md).
HASHED = $(PIP) install --quiet --require-hashes -r constraints-hashes.txt && \
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
# Formulas, tables, the audit, rules of the code base, and the pages: what most changes break first.
QUICK := $(addprefix tests/,features exposure evaluation scores losses auditing \
	$(patsubst %,test_%.py,errors layers methods plugins public_names settings suite) \
	$(patsubst %,docs/test_%.py,contributing equations site))

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test lint check docs pages wheel bench bench-gamma bench-faults reproduce clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(HASHES),$(HASHED),$(PIP) install --quiet -c constraints.txt --editable ".[dev,bench]")
	touch $(READY)

$(READY_DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt --editable .
	touch $(READY_DEMO)

setup: $(READY) ## make the virtual environment

# Only what puid itself needs, unless the developers' tools are there already.
demo: $(if $(wildcard $(READY)),$(READY),$(READY_DEMO)) ## simulate a confounded log, show what the confounding does and what repairs it
	$(BIN)/puid demo

quick: $(READY) ## run the quick part of the tests, under a minute
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not real_data" $(QUICK)

test: $(READY) ## run all tests
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY) ## check format, style and types
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy

check: lint test ## everything that must pass before a change lands

docs: $(READY) ## build the documentation
	$(BIN)/mkdocs build --strict

pages: $(READY) ## measure the pages with figures that are not of this version, in an hour (DATA=folder of the data sets; WORKERS=2)
	$(BIN)/python bench/pages.py make --data $(DATA) --workers $(WORKERS)

page-%: $(READY) # one of them: paper, field, truth, guarantees, scaling; goes on where it was interrupted
	$(BIN)/python bench/pages.py make $* --data $(DATA) --workers $(WORKERS)

wheel: $(READY) ## build into dist/, and try the wheel in a new environment (DATA=folder of coat: the README too)
	$(BIN)/python bench/wheel.py $(if $(wildcard $(DATA)/coat),--data $(DATA))

reproduce: $(READY) ## run the paper's questions again (DATA=folder of the data sets; under 90 minutes)
	$(BIN)/puid reproduce all --data-root $(DATA) --seeds 3 --out reproduction

bench: $(READY) ## time the data layer, the engine, the metrics, the audit and the server
	$(BIN)/python bench/loading.py
	$(BIN)/python bench/metrics.py
	$(BIN)/python bench/engine.py fits
	$(BIN)/python bench/audit.py
	$(BIN)/python bench/serve.py

bench-gamma: $(READY) ## propensities, entropies and Γ for 100 million rows
	$(BIN)/python bench/gamma.py

bench-faults: $(READY) ## kills, full disks, damaged models and odd data sets, many times over
	$(BIN)/python bench/faults.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build

# One word for each thing a developer does. `make demo` and `make test` need only Python 3.11+ and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types contracts stubs check clean

$(VENV)/.demo: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/uec demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

stubs: $(VENV)/.dev
	$(BIN)/python proto/generate.py

check: lint types contracts test
	$(BIN)/python proto/generate.py --check

clean:
	rm -rf $(VENV) build dist *.egg-info

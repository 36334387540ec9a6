# Every action has one name here; continuous integration calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check format weights clean

## A real model, plain and speculative in turn, with the measured speedup.
run: $(STAMP)
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/outrider generate --compare --max-tokens 160 \
	  "List the integers from 1 to 40, one per line, each followed by its square. 1: 1, 2: 4, 3: 9,"

test: $(STAMP) weights
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

weights: $(STAMP)
	$(BIN)/outrider pull smollm2-135m gemma3-270m

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	# torch first and by itself: the pinned build then satisfies every later requirement.
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

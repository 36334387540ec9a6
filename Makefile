# Every action has one name here; continuous integration calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check format weights clean

## A real model, plain and speculative in turn, with the measured speedup.
run: $(STAMP)
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/outrider generate --compare --max-tokens 120 \
	  "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. The months of the year are January,"

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

# Every action has one name here; continuous integration calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip
ASAN := build/asan
PLAIN := build/nocompiler

.PHONY: run test test-torch test-asan test-nocompiler check format native weights clean

## A real model, plain and speculative in turn, with the measured speedup.
run: $(STAMP)
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/outrider generate --compare --max-tokens 120 \
	  "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. The months of the year are January,"

test: $(STAMP) weights
	$(BIN)/python -m pytest

## What runs a decoder, without the native kernels: on torch ops.
test-torch: $(STAMP) weights
	OUTRIDER_KERNELS=torch $(BIN)/python -m pytest tests/model $(addprefix tests/unit/test_,llm.py load.py rows.py cli.py doctor.py)

## The kernels' own tests with AddressSanitizer and UndefinedBehaviorSanitizer.
test-asan: $(STAMP)
	$(BIN)/cmake -S . -B $(ASAN) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOUTRIDER_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	$(BIN)/cmake --build $(ASAN)
	# Python's memory comes from malloc, so that what its objects point to is not taken for leaked. Python and numpy
	# never free everything: leaks are errors only below, where a frame of the extension allocated.
	OUTRIDER_TEST_NATIVE=$$(ls $(ASAN)/_native.*.so) PYTHONMALLOC=malloc LSAN_OPTIONS=exitcode=0 \
	  ASAN_OPTIONS=abort_on_error=1:stack_trace_format='"    #%n %F %L in %m"' UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest tests/kernels --capture=sys --confcutdir=tests/kernels 2> $(ASAN)/report \
	  || { cat $(ASAN)/report; exit 1; }
	! awk 'BEGIN {RS=""} / leak of / && /_native\./' $(ASAN)/report | grep .

## Install where there is no compiler, into an environment that borrows the libraries of this one.
test-nocompiler: $(STAMP)
	$(BIN)/outrider pull smollm2-135m
	rm -rf $(PLAIN)
	$(BIN)/python -m venv $(PLAIN)/venv
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(PLAIN)/borrowed.pth
	cp $(PLAIN)/borrowed.pth $$($(PLAIN)/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
	CC=/bin/false CXX=/bin/false $(PLAIN)/venv/bin/python -m pip install --no-deps --no-build-isolation \
	  -C build-dir=$(PLAIN)/cmake .
	! $(PLAIN)/venv/bin/python -c "import outrider.kernels._native" 2> /dev/null
	$(PLAIN)/venv/bin/outrider generate --max-tokens 8 "Once upon a time"
	$(PLAIN)/venv/bin/outrider doctor | grep "not built"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## Compile what changed in the native kernels since; an error if they do not build.
native: $(STAMP)
	for folder in build/editable-*; do $(BIN)/cmake --build $$folder || exit 1; done
	$(BIN)/python -c "import outrider.kernels._native"

weights: $(STAMP)
	$(BIN)/outrider pull smollm2-135m gemma3-270m

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt
	$(PYTHON) -m venv $(VENV)
	# torch first and by itself: the pinned build then satisfies every later requirement.
	$(PIP) install --quiet -c constraints.txt torch
	# The build tools stay in the environment: the pins hold for them, and a later `make native` finds them.
	$(PIP) install --quiet -c constraints.txt scikit-build-core nanobind cmake ninja
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@$(BIN)/python -c "import outrider.kernels._native" 2> /dev/null \
	  || echo "The native kernels were not built (no C++ compiler?): outrider will run on torch ops. \`make native\` says why."
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/outrider/kernels/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Each command makes the virtual environment, installs what it needs and runs:
# a new machine needs python3 (3.11 or newer) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.installed-cli

.PHONY: demo test test-all check browser docs bench packages sanitize clean

demo: $(DEMO)
	$(BIN)/gbplearn demo

test: check browser
	$(BIN)/pytest -q -n 2

test-all: check browser
	$(BIN)/pytest -q -n 2 -m "slow or not slow"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

browser:
	tests/get_browser.sh

docs: $(STAMP)
	$(BIN)/mkdocs build --strict
	@echo "To read it: $(PYTHON) -m http.server -d site"

bench: $(STAMP)
	$(BIN)/gbplearn bench --gate

# The sdist and the wheel, in clean environments of their own; a subset: make packages ONLY="--python 3.11 --jax newest"
packages:
	$(PYTHON) tools/check_packages.py $(ONLY)

# The kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer; needs g++.
sanitize: $(STAMP)
	$(BIN)/python tools/sanitize.py

SOURCES := pyproject.toml hatch_build.py $(wildcard src/gbplearn/kernels/cpu/*.cc src/gbplearn/kernels/cpu/*.h src/gbplearn/kernels/cpu/headers/xla/ffi/api/*.h)

# The demo does without what developers need.
$(DEMO): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[cli]"
	touch $(DEMO)

$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $(STAMP) $(DEMO)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

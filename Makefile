# Everything a newcomer needs: `make demo` shows the product, `make test` checks it.
# Each target sets up its own environment in .venv; a second run only checks that nothing changed.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: audit demo docs test test-full test-gpu lint setup clean help

help:
	@echo "make demo       set up and run the main job on the built-in demo cell"
	@echo "make test       set up and run the checks: ruff, mypy, the fast tests"
	@echo "make test-full  the same with the long tests: many seeds, fuzzing, kill tests"
	@echo "make test-gpu   only the tests that need a CUDA device, in the Python on the PATH"
	@echo "make docs       build the docs site into build/site"
	@echo "make audit      look the pinned dependencies up in a database of known problems (needs the network)"
	@echo "make clean      remove the environment and everything generated"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "knockgraph needs Python 3.11 or newer; '$(PYTHON)' is older. Run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pip check

# Two processes of one thread for two cores, each with one half of the tests, so that what the tests of a file share is
# made once; the first to end takes from the other. The profiler's tests inject delays and measure them, so they have the machine to themselves.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/profile
	$(BIN)/python -m pytest tests/profile

test-full: lint
	$(BIN)/python -m pytest -m 'not gpu'

test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests --ignore=tests/test_fitted.py --ignore=tests/integration/test_notebooks.py

demo: $(READY)
	$(BIN)/knockgraph train

# Asks a database on the network, so it is not part of the tests.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) $(VENV)-audit build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `make demo` and `make test` work from a clean checkout with nothing but Python 3.11+.
.DEFAULT_GOAL := help
.PHONY: help env demo test thorough lint format bench coverage mutation sweep bugs fuzz matrix overlap clean FORCE

# The environment made here is the one used, whatever the shell has active.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-for

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*##/\t/' | expand -t 10

# The stamp holds the checkout's path: an environment does not survive being moved or copied.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jax-pmap needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Install one and name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@rm -f $(STAMP)
	@echo "making $(VENV) (once; jax and the rest are downloaded)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev]'
	@printf '%s\n' '$(CURDIR)' > $(STAMP)

env: $(STAMP)  ## make or refresh .venv

demo: $(STAMP)  ## turn examples/train.py::train_step into its proved multi-device version
	@rm -rf build/demo && mkdir -p build/demo
	$(BIN)/jax-pmap gen examples/train.py::train_step --axis-name batch -o build/demo/train_pmap.py
	@cat build/demo/train_pmap.py
	$(BIN)/python examples/compare.py build/demo/train_pmap.py

lint: $(STAMP)  ## ruff and mypy, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

test: lint  ## lint, then the tests but for those whose lines others run as well
	$(BIN)/pytest -n 2 -m "not thorough"

thorough: lint  ## lint, then every test
	$(BIN)/pytest -n 2

format: $(STAMP)  ## let ruff lay out and fix the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutation: $(STAMP)  ## plant every fault into every example, case and hand-written function; the proof must catch it
	cd tests && ../$(BIN)/python -m mutation
	cd tests && ../$(BIN)/python -m mutation --witness derivation
	cd tests && ../$(BIN)/python -m mutation --witness run

sweep: $(STAMP)  ## what gen has proved, held to verify, check --accept and the assertion, for two hundred functions
	cd tests && ../$(BIN)/python -m sweep

bugs: $(STAMP)  ## errors that were reported in public: what verify, check and gen say of each, and the score
	cd tests && ../$(BIN)/python -m public_bugs

fuzz: $(STAMP)  ## two hundred generated functions, the standard library as targets, ten thousand derivations
	JAX_PMAP_FUZZ=200 $(BIN)/pytest tests/test_fuzz.py tests/test_derivation_fuzz.py -s -n 2
	$(BIN)/python tests/derivation_fuzz.py --count 10000 --seed 0

matrix: $(STAMP)  ## the worker and emitted code on jax 0.6.2, 0.10.2 and 0.12
	$(BIN)/python tests/matrix.py

overlap: $(STAMP)  ## measure which lines each test runs, and choose anew what `make test` leaves out; Python 3.12
	cd tests && ../$(BIN)/python -m overlap

bench: $(STAMP)  ## print the speed ratios
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/derivation.py
	$(BIN)/python benchmarks/quality.py

coverage: $(STAMP)  ## print the share of functions that are proved, checked on other inputs
	$(BIN)/python benchmarks/coverage.py

clean:  ## remove everything that can be made again
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

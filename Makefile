# Two commands do everything: `make demo` and `make test`. Both make .venv themselves and are quick when repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo test test-all check bench docs wheel clean

help:
	@echo "make demo      train three methods on handwritten digits, harden, print one table (no download)"
	@echo "make test      checks and tests, under 15 minutes on two cores"
	@echo "make test-all  the slow tests too (kills, long runs)"
	@echo "make check     ruff, pyright and the import order"
	@echo "make bench     accuracy of the gradients, and the activations timed against torch.sigmoid"
	@echo "make docs      API pages into site/"
	@echo "make wheel     sdist and wheel into dist/"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "htaf needs Python >= 3.11, this is %s; try make PYTHON=python3.12 ..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^pip==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --build-constraint constraints.txt -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/htaf demo --out runs/demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_import_order.py

test: check
	$(BIN)/python -m pytest -q -m "not slow" --durations=10

test-all: $(STAMP)
	$(BIN)/python -m pytest -q -m slow --durations=10

bench: $(STAMP)
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/activations.py

docs: $(STAMP)
	$(BIN)/python -m pdoc --output-directory site htaf

wheel: $(STAMP)
	PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist site .pytest_cache .ruff_cache

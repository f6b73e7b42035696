# Every target does its own set-up: the first one run on a fresh machine makes .venv.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The interpreter that .venv is made from, and how many test processes run side by side.
PYTHON ?= python3
JOBS ?= 2
# What test-torch installs, for instance TORCH=torch==2.13.0.
TORCH ?= torch

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# PyTorch has an environment of its own: its builds for GPUs pin other versions of CUDA's packages.
TORCH_VENV := .venv-torch
TORCH_READY := $(TORCH_VENV)/.ready
PACKAGES := monarch reference kernels_numba costmodel
NOTEBOOKS := $(wildcard notebooks/*.py)

# Test processes share the cores already: one BLAS thread each keeps them from fighting.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-gpu test-torch sanitize measure notebooks docs lint clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

demo: $(READY) ## predict the best plan for N = 256..4M and set it beside the measurements
	@$(BIN)/python -m costmodel demo

test: $(READY) ## every test that needs no GPU (and the GPU ones where there is a GPU)
	@$(BIN)/python -m pytest tests -n $(JOBS) --dist loadgroup --hypothesis-profile=ci

test-gpu: $(READY) ## the tests that need a GPU (it compiles hundreds of kernels: minutes); fails without a GPU
	@$(BIN)/python -m pytest tests -m gpu --require-gpu --hypothesis-profile=ci

test-torch: $(TORCH_READY) ## the tests of monarch.torch, with PyTorch in an environment of its own (.venv-torch)
	@$(TORCH_VENV)/bin/python -m pytest tests/test_torch*.py -n $(JOBS) --hypothesis-profile=ci

sanitize: $(READY) ## every kernel family under compute-sanitizer (needs a GPU and the CUDA toolkit)
	@$(BIN)/python tests/sanitize.py

measure: $(READY) ## time the kernels on this machine's GPU and write the measurement files
	@$(BIN)/python -m costmodel measure

notebooks: $(READY) ## execute notebooks/*.py; the results go to build/notebooks
	@for source in $(NOTEBOOKS); do \
	  result=build/notebooks/$$(basename "$$source" .py).ipynb; \
	  echo "executing $$source -> $$result"; \
	  $(BIN)/python tests/execute_notebook.py "$$source" "$$result"; \
	done

docs: $(READY) ## build/site from docs/; a broken link or heading fails (so it does in make test)
	@$(BIN)/mkdocs build --quiet

lint: $(READY) ## style, formatting, types and spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) $(TORCH_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Installs once; again only when the dependencies change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c '' 2>/dev/null || { \
	  echo "'$(PYTHON)' does not run. Install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "'$(PYTHON)' is $$($(PYTHON) -V 2>&1); this project needs Python 3.11 or newer." \
	       "Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) -V): a minute or more and about 1.5 GB, once."
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --progress-bar off -c constraints.txt hatchling editables
	@$(BIN)/python -m pip install --progress-bar off --no-build-isolation -c constraints.txt -e '.[dev]' \
	  | { grep --line-buffered -E '^(Collecting|Installing|Successfully)' || true; } | cut -c 1-100
	@touch $@

# What is installed in both has the same version in both, except for CUDA's packages.
$(TORCH_READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "'$(PYTHON)' must be Python 3.11 or newer with venv. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(TORCH_VENV) with PyTorch: a build for GPUs is several GB, once."
	@$(TORCH_VENV)/bin/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(TORCH_VENV)
	@grep -v -E '^(cuda|nvidia)-' constraints.txt > $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python -m pip install --quiet --progress-bar off -c $(TORCH_VENV)/constraints.txt \
	  hatchling editables setuptools
	@$(TORCH_VENV)/bin/python -m pip install --progress-bar off --no-build-isolation -c $(TORCH_VENV)/constraints.txt \
	  $(TORCH) -e '.[gpu,torch]' hypothesis pytest pytest-xdist scipy \
	  | { grep --line-buffered -E '^(Collecting|Installing|Successfully)' || true; } | cut -c 1-100
	@touch $@

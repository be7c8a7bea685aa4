# make compare       Horovod or DDP? A real comparison on this machine's CPU
# make compare-gpu   the same on every visible GPU, Horovod built with NCCL
# make test          lint, then all tests
# make clean         remove the environment and caches; results stay
#
# The first run makes .venv and builds Horovod for the torch in it. No root is needed.
# PYTHON=python3.12 chooses the interpreter, TORCH='torch==2.13.0' the torch; pip's own variables choose the index.

PYTHON ?= python3
TORCH ?= torch torchvision

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip

# torchvision pins torch: as an extra it would replace a torch that was installed without it.
comma := ,
EXTRAS := dev,data,text$(if $(findstring torchvision,$(TORCH)),$(comma)vision)

.PHONY: compare compare-gpu test lint clean
.DELETE_ON_ERROR:

compare: $(VENV)/.horovod
	$(BIN)/ringduel run experiment=smoke

compare-gpu: $(VENV)/.horovod-nccl
	$(BIN)/ringduel run experiment=gpu

test: lint $(VENV)/.horovod
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each step is done once.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "PYTHON=$(PYTHON): Python 3.10 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	$(PIP) install -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.horovod: | $(VENV)/.installed
	$(BIN)/ringduel install-horovod
	@touch $@

# The environment is this Makefile's own: a Horovod without NCCL in it is replaced.
$(VENV)/.horovod-nccl: | $(VENV)/.installed
	$(BIN)/ringduel install-horovod --gpu --force
	@touch $@ $(VENV)/.horovod

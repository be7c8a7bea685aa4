# make compare       Horovod or DDP? A real comparison on this machine's CPU
# make compare-gpu   the same on every visible GPU, Horovod built with NCCL
# make test          lint, then the tests
# make proofs        the rest of the tests: more cells, world sizes and moments of failure; about 10 minutes
# make fidelity      is our step as fast as a bare script's? 40 to 120 minutes, as noise is; ARGS=--quick for a try
# make hook-cost     what our Python hook adds to a step; ARGS='study.launches=3' for a try
# make curve-check   does our all-reduce curve over MPI agree with a bare mpi4py loop? ARGS='--max-mb 4' for a try
# make parking       do parked contestants survive, cost nothing and disturb nobody? Nearly half an hour; ARGS=--quick
# make calibrate     are equal contestants called equal as often as we say? At most 30 minutes (calibrate-long: 4 hours)
# make sensitivity   are true slow-downs of 5 and 2 % found, and how fast? 2 to 3 hours; ARGS='--minutes 30'
# make duel-cost     what the same interval costs by a duel and by other ways. An hour; ARGS='--minutes 20'
# make kills         20 processes of real duels are killed: is anything left, is it told, does the study go on?
# make ring-check    four virtual nodes at 1 Gb/s: is any cell within 15 % of the ring bound, does none beat it? As root
# make bucket-optimum  eight virtual nodes: has DDP's bucket size an optimum inside its range, twice? 20 minutes, as root
# make emulation-check  does an emulated ResNet-18 take the time of the real one? About 10 minutes
# make gpu-check     on one GPU: builds Horovod with NCCL, runs both engines, prints their records; ARGS=--dry-run
# make beyond        what else differs: size, build, lines, profile, a killed rank; about a minute; ARGS=STUDY
# make report-bench  a report of very many records: time and memory
# make clean         remove the environment and caches; results stay
#
# The first run makes .venv and builds Horovod for the torch in it. No root is needed.
# PYTHON=python3.12 chooses the interpreter, TORCH='torch==2.13.0' the torch; pip's own variables choose the index.

PYTHON ?= python3
TORCH ?= torch torchvision

VENV := .venv
BIN := $(VENV)/bin
# Bytecode is compiled for what is imported (see .installed): most of the environment never is.
INSTALL := $(BIN)/python -m pip install --no-compile
# In a shell that has this variable each rank would compile torch anew, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE

# torchvision pins torch: as an extra it would replace a torch that was installed without it.
comma := ,
EXTRAS := data,mpi$(if $(findstring torchvision,$(TORCH)),$(comma)vision)

.PHONY: compare compare-gpu test proofs lint fidelity hook-cost curve-check gpu-check clean
.DELETE_ON_ERROR:

compare: $(VENV)/.horovod
	$(BIN)/ringduel run experiment=smoke

compare-gpu: $(VENV)/.horovod-nccl
	$(BIN)/ringduel run experiment=gpu

test: lint $(VENV)/.horovod
	$(BIN)/python -m pytest

proofs: $(VENV)/.developed $(VENV)/.horovod
	$(BIN)/python -m pytest -m proof

lint: $(VENV)/.developed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fidelity: $(VENV)/.horovod
	$(BIN)/python -m benches.checks.fidelity $(ARGS)

hook-cost: $(VENV)/.installed
	$(BIN)/python -m benches.checks.hook_cost $(ARGS)

curve-check: $(VENV)/.installed
	$(BIN)/python -m benches.checks.curve_check $(ARGS)

.PHONY: report-bench parking calibrate calibrate-long sensitivity duel-cost kills beyond ring-check bucket-optimum emulation-check

report-bench: $(VENV)/.developed
	$(BIN)/python tests/analysis/report_bench.py $(ARGS)

parking: $(VENV)/.horovod
	$(BIN)/python -m benches.checks.parking $(ARGS)

calibrate: $(VENV)/.installed
	$(BIN)/python -m benches.checks.calibrate $(ARGS)

calibrate-long: $(VENV)/.installed
	$(BIN)/python -m benches.checks.calibrate --minutes 240 --launches 6 $(ARGS)

# It slows down a ResNet-18 too, which torchvision brings.
sensitivity: $(VENV)/.installed
	$(BIN)/python -m benches.checks.sensitivity $(ARGS)

duel-cost: $(VENV)/.installed
	$(BIN)/python -m benches.checks.duel_cost $(ARGS)

kills: $(VENV)/.horovod
	$(BIN)/python -m benches.checks.kills $(ARGS)

beyond: $(VENV)/.horovod
	$(BIN)/python -m benches.checks.beyond $(ARGS)

ring-check: $(VENV)/.horovod
	$(BIN)/python -m benches.checks.ring_check $(ARGS)

bucket-optimum: $(VENV)/.installed
	$(BIN)/python -m benches.checks.bucket_optimum $(ARGS)

# ResNet-18 comes with torchvision.
emulation-check: $(VENV)/.installed
	$(BIN)/python -m benches.checks.emulation_check $(ARGS)

# It builds Horovod itself, since that is a part of what it checks.
gpu-check: $(VENV)/.installed
	$(BIN)/python -m benches.checks.gpu_check --force $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each step is done once.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "PYTHON=$(PYTHON): Python 3.10 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	$(INSTALL) -e '.[$(EXTRAS)]'
	$(BIN)/python -c 'import torch._dynamo,torch.distributed.run' & $(BIN)/python -c 'import benches.commands' && wait $$!
	$(BIN)/python -c 'import benches.rank'
	@touch $@

$(VENV)/.developed: pyproject.toml | $(VENV)/.installed
	$(INSTALL) -e '.[dev,text]'
	@touch $@

$(VENV)/.horovod: | $(VENV)/.installed
	$(BIN)/ringduel install-horovod
	@touch $@

# The environment is this Makefile's own: a Horovod without NCCL in it is replaced.
$(VENV)/.horovod-nccl: | $(VENV)/.installed
	$(BIN)/ringduel install-horovod --gpu --force
	@touch $@ $(VENV)/.horovod

# make demo    set up, get the model, and let a swarm of processes on this machine answer a prompt
# make test    set up and run the tests
# make lint    every static check, and the tests that hold the design
# make exact   the whole product of the exactness tests (slow)
# make soak    the tests that watch for minutes
# make gpu     the tests that need a CUDA device, and what forwards take there computed and replayed
# make proto   regenerate shardp2p/wire/pb from proto/
# PYTHON=...   the interpreter that makes .venv (default: the first of python3, python3.13, … that is >= 3.11)

.DEFAULT_GOAL := demo
.PHONY: venv demo test lint exact soak gpu proto

BIN := .venv/bin
STAMP := .venv/.installed
DESIGN_TESTS := tests/design

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/set_up_venv.sh scripts/prerequisites.sh
	@PYTHON='$(PYTHON)' sh scripts/set_up_venv.sh
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/shardp2p demo

test: $(STAMP)
	@$(BIN)/python -m pytest

exact: $(STAMP)
	@$(BIN)/python -m pytest -m exact

soak: $(STAMP)
	@$(BIN)/python -m pytest -m soak

gpu: $(STAMP)
	@$(BIN)/python -m pytest tests/gpu
	@$(BIN)/python scripts/time_graphs.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q $(DESIGN_TESTS)

proto: $(STAMP)
	@$(BIN)/python proto/generate.py

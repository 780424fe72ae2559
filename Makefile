# `make` alone lists the targets. demo and test need Python 3.10+, make and a package index, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The version that needs no GPU libraries; used only when no torch is there yet.
TORCH  := torch==2.13.0

.PHONY: help demo test lint quality gpu-test bench clean

help:
	@echo "make demo      install, fetch the default model, ask a sample document twice"
	@echo "make test      install, run all tests"
	@echo "make lint      ruff, import-linter, mypy"
	@echo "make quality   the slow set: passkeys at 32K and 128K tokens (about an hour on 2 cores)"
	@echo "make bench     speed of the engine on this machine's CPU"
	@echo "make gpu-test  kernel tests on a GPU, with the python3 that has torch"
	@echo "make clean     remove the virtual environment and caches of tools"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(BIN)/python
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -q $(TORCH)
	@touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml setup.py
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml setup.py
	$(BIN)/python -m pip install -q -e ".[test]"
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run
	@sh samples/demo.sh $(BIN)/hip

test: $(VENV)/.test lint
	$(BIN)/hip models pull smollm2 --quiet
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	sh tests/lint_types.sh $(BIN)

quality: $(VENV)/.test
	$(BIN)/hip models pull smollm2 --quiet
	$(BIN)/python -m pytest -q -m slow

gpu-test:
	python3 -m pytest -q -m gpu tests/gpu

bench: $(VENV)/.test
	$(BIN)/python benchmarks/engine.py --device cpu

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

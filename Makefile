# make demo: create .venv, install, train and compare on the 4-goal gridworld (the main job).
# make test: create .venv, install with every extra, check and test everything.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := tables,mujoco,morl,marl,tensorboard,dev

.PHONY: demo test lint bench clean

demo: .venv/installed
	$(BIN)/qdfm reproduce multigoal --quick --out runs/demo --resume

test: .venv/installed-all lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed-all
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/peers.py

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/installed-all: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	touch .venv/installed $@

clean:
	rm -rf .venv runs

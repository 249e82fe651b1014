# Every target makes the virtual environment it needs, with plain venv and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test chaos check bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## one session, live: a question, a tool call, an approval, the reply
	$(BIN)/turnstream demo

test: $(VENV)/.installed  ## every test but the long ones (`pytest -m soak`), on the embedded broker and on a real server
	$(BIN)/python -m pytest -n 2 --dist loadfile

SEED ?= 1
PARTS ?= 10
OLD ?= 1
chaos: $(VENV)/.installed  ## kills, freezes, restarts, cuts over 5,000 turns: nothing is lost; under an hour (SEED= PARTS= TURNS= OLD= INTO=)
	$(BIN)/python tests/chaos/run.py --seed $(SEED) --parts $(PARTS) --old $(OLD) $(if $(TURNS),--turns $(TURNS)) $(if $(INTO),--into $(INTO))

check: $(VENV)/.installed  ## lint, format, types, module size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	set -e; for file in tests/*/conftest.py; do $(BIN)/mypy $$file; done
	$(BIN)/python tests/module_size.py

bench: $(VENV)/.installed  ## ours beside raw Redis and stock arq, in one run
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .turnstream

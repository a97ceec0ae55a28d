# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need.

PYTHON ?= $(shell for v in 3.11 3.12 3.13 3; do p=$$(command -v python$$v) && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo

.PHONY: demo test test-versions dist conform check format docs bench bench-memory bench-restore bench-verify bench-bucket bench-22b torture clean

$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on the path; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(VENV)/ready
	@rm -rf $(DEMO)
	$(BIN)/ax2mt plan tests/data/axlearn/micro-hybrid-qkpair
	$(BIN)/ax2mt convert tests/data/axlearn/micro-hybrid-qkpair $(DEMO) --untie
	$(BIN)/ax2mt verify tests/data/axlearn/micro-hybrid-qkpair $(DEMO)
	$(BIN)/ax2mt verify $(DEMO)
	$(BIN)/ax2mt params tests/data/axlearn/micro-hybrid-qkpair $(DEMO)

test: $(VENV)/ready
	$(BIN)/python tests/helpers/environments.py
	@mkdir -p build
	@scratch=$$($(BIN)/python tests/helpers/scratch.py); code=0; \
	    set -x; $(BIN)/python -m pytest -n 2 --dist loadfile --basetemp=$$scratch || code=$$?; rm -rf $$scratch; exit $$code

# The tests of the core on Python 3.11, 3.12 and 3.13, with the lowest and the newest versions of what it needs;
# NAMES="3.11-lowest" runs some of them.
test-versions: $(VENV)/ready
	$(BIN)/python tests/helpers/versions.py $(NAMES)

# Wheel and source distribution, checked and installed into clean environments.
dist: $(VENV)/ready
	@rm -rf build/dist
	$(BIN)/python -P -m build --outdir build/dist .
	$(BIN)/python -m twine check --strict build/dist/*
	$(BIN)/python -P tests/helpers/distributions.py build/dist

# Every published size in both layouts against the real MaxText.
conform: $(VENV)/ready
	$(BIN)/python tests/helpers/environments.py
	$(BIN)/ax2mt conform --maxtext .venv-maxtext/bin/python

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/ready
	$(BIN)/python -m converter.report.json_page docs/json.md

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.run

bench-memory: $(VENV)/ready
	$(BIN)/python -m benchmarks.memory

bench-restore: $(VENV)/ready
	$(BIN)/python -m benchmarks.restore

bench-verify: $(VENV)/ready
	$(BIN)/python -m benchmarks.verify

bench-bucket: $(VENV)/ready
	$(BIN)/python -m benchmarks.bucket
	$(BIN)/python -m benchmarks.many_chunks
	$(BIN)/python -m benchmarks.many_hosts
	$(BIN)/python -m benchmarks.bucket_memory

bench-22b: $(VENV)/ready
	$(BIN)/python -m benchmarks.switch_base

torture: $(VENV)/ready
	$(BIN)/python -c "from pathlib import Path; from benchmarks.source import random_source; \
	    random_source(Path('build/torture/source'), 200_000_000)"
	$(BIN)/python -m tests.torture.kill build/torture/source build/torture/work --count 200
	$(BIN)/python -m tests.torture.kill_gcs --count 100
	$(BIN)/python -m tests.torture.kill_shares build/torture/shares --count 50
	AX2MT_FUZZ=100 $(BIN)/python -m pytest tests/faults/test_fuzz.py -n 2 --timeout=0 --basetemp=build/torture/fuzz

clean:
	rm -rf $(VENV) .venv-maxtext .venv-orbax .venv-beam build .pytest_cache .ruff_cache .hypothesis

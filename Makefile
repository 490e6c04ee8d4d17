# Every verb of the project; each works on a fresh clone. Needs Python 3.11 or newer and a network to install from, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test serve lint format bench papers faults soak pack constraints clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with the service, its encoders and the developers' tools

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Anchorage needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV): a minute or two the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,text,vision,onnx]"
	@touch $@

demo: $(INSTALLED) ## the main job on real sentences: translate, measure, stitch, draw (under a minute)
	$(BIN)/anchorage demo

# Compiled modules are kept, whatever the environment says: each of dozens of processes would compile them again.
test: $(INSTALLED) ## all tests, in two processes that share the files
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

serve: $(INSTALLED) ## the service on http://127.0.0.1:8080, its data in .anchorage
	$(BIN)/anchorage serve

lint: $(INSTALLED) ## style, types and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure, for hours; tables on the screen, numbers in benchmarks/results (some need ANCHORAGE_DATA)
	$(BIN)/anchorage demo --json benchmarks/results/demo.json
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.confidence
	$(BIN)/python -m benchmarks.thresholds
	$(BIN)/python -m benchmarks.hubness
	$(BIN)/python -m benchmarks.suggestions
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.bootstrap

papers: $(INSTALLED) ## reproduce the papers, for an hour and more; numbers in research/results (needs ANCHORAGE_DATA)
	$(BIN)/python -m research.stitching
	$(BIN)/python -m research.anchor_strategies
	$(BIN)/python -m research.proxy
	$(BIN)/python -m research.bootstrap

faults: $(INSTALLED) ## kill, restart, fill up and attack real processes, and count what was lost (needs PostgreSQL's and Redis's binaries)
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.faults.shared_cache

soak: $(INSTALLED) ## everything at once for MINUTES=10, and count what was wrong and what grew (needs PostgreSQL's and Redis's binaries)
	$(BIN)/python -m benchmarks.faults.soak --minutes $(or $(MINUTES),10)

pack: $(INSTALLED) ## make the demo's data pack again (needs ANCHORAGE_DATA)
	$(BIN)/python scripts/make_demo_pack.py

constraints: ## resolve constraints.txt again (needs uv)
	uv pip compile --universal --all-extras --python-version 3.11 --no-annotate --no-header \
		-c constraints.in pyproject.toml -o constraints.txt
	sed -i '1i # Versions every test ran with; made by `make constraints`. Pins only: an extra that is not asked for is not pulled.' constraints.txt

clean: ## remove the virtual environment, caches and the demo's output
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-output

# Every verb of the project; each works on a fresh clone. Needs Python 3.11 or newer and a network to install from, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test serve docs docs-serve pages lint format bench faults soak pack constraints clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

docs: $(INSTALLED) ## the documentation as a site in build/site; a link that leads nowhere fails
	$(BIN)/python -m scripts.site

docs-serve: docs ## the site on http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

pages: $(INSTALLED) ## write the generated parts of the pages again
	$(BIN)/python -m scripts.pages

lint: $(INSTALLED) ## style, types, the import contracts and the language (docs/style.md)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/lint_language.py

format: $(INSTALLED) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure, for hours; tables on the screen, numbers in benchmarks/results (some need ANCHORAGE_DATA)
	$(BIN)/anchorage demo --json benchmarks/results/demo.json && cp demo-output/map.png docs/assets/demo-map.png
	$(BIN)/python benchmarks/quality.py
	$(BIN)/python benchmarks/confidence.py
	$(BIN)/python benchmarks/thresholds.py
	$(BIN)/python benchmarks/hubness.py
	$(BIN)/python benchmarks/anchor_strategies.py
	$(BIN)/python benchmarks/suggestions.py
	$(BIN)/python benchmarks/proxy.py
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/stitching.py
	$(BIN)/python benchmarks/bootstrap.py

faults: $(INSTALLED) ## kill, restart, fill up and attack real processes, and count what was lost (needs PostgreSQL's and Redis's binaries)
	$(BIN)/python benchmarks/faults/run.py
	$(BIN)/python benchmarks/faults/shared_cache.py

soak: $(INSTALLED) ## everything at once for MINUTES=10, and count what was wrong and what grew (needs PostgreSQL's and Redis's binaries)
	$(BIN)/python benchmarks/faults/soak.py --minutes $(or $(MINUTES),10)

pack: $(INSTALLED) ## make the demo's data pack again (needs ANCHORAGE_DATA)
	$(BIN)/python scripts/make_demo_pack.py

constraints: ## resolve constraints.txt again (needs uv)
	uv pip compile --universal --all-extras --python-version 3.11 --no-annotate --no-header \
		-c constraints.in pyproject.toml -o constraints.txt
	sed -i '1i # Versions every test ran with; made by `make constraints`. Pins only: an extra that is not asked for is not pulled.' constraints.txt

clean: ## remove the virtual environment, caches and the demo's output
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-output

# Each target works on a fresh clone. It needs Python 3.11 or newer and a package index.
PYTHON ?= python3
VENV := .venv
DIST := dist
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What `anchorage demo` needs, and no tool of the tests.
DEMO := $(VENV)/.demo

# Tests create tables by these, which ask for older releases of pgvector and SQLAlchemy than they need.
FRAMEWORKS := langchain-postgres==0.0.19 llama-index-vector-stores-postgres==0.9.0 asyncpg==0.32.0 psycopg2-binary==2.9.13

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-long serve docs docs-serve pages lint format bench papers faults soak torture pack
.PHONY: constraints dist release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## install the service, its encoders and the development tools into .venv

$(INSTALLED): EXTRAS := dev,text,vision,onnx
$(DEMO): EXTRAS := demo
$(INSTALLED) $(DEMO): pyproject.toml constraints.txt clients/python/pyproject.toml scripts/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Anchorage needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV): a minute or two the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install.py $(EXTRAS)
	$(if $(filter $@,$(INSTALLED)),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(FRAMEWORKS))
	@touch $@ $(DEMO)

demo: $(DEMO) ## move a table to a new model while an application uses it (a minute)
	$(BIN)/anchorage demo

# The tests start dozens of processes. Each would compile every module again if the environment
# forbade compiled modules, and threads of OpenMP would wait for one another in busy loops.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# beartype checks every annotated shape of the maths, whose tests then take half as long again.
SHAPES := --jaxtyping-packages=app.maths,app.heads,beartype.beartype

# Four processes for two cores: tests of the maths compute while others wait for their servers. More
# would cost more: each imports all tests first. tests/conftest.py says which tests stay together.
test: $(INSTALLED) ## run all tests that CI runs (about seven minutes on two cores)
	$(PYTEST) -n 4 -m "not long"

test-fast: $(INSTALLED) ## run the tests of the maths and of the services, without bootstraps (a minute)
	$(PYTEST) -n 2 -m "not long" -k "not redis and not bootstrap" tests/maths tests/anchors tests/bootstrap tests/translate tests/search

test-long: $(INSTALLED) ## run sweeps, many seeds, all shapes of the maths, ten minutes of soak, the demo in a fresh clone
	$(PYTEST) -n 2 -m long
	$(PYTEST) -n 2 -m "not long" $(SHAPES) tests/maths tests/heads
	$(MAKE) soak
	scripts/demo_in_fresh_clone.sh

serve: $(INSTALLED) ## run the service on http://127.0.0.1:8080, with its data in .anchorage
	$(BIN)/anchorage serve

docs: $(INSTALLED) ## build the documentation in build/site; broken links fail
	$(BIN)/python -m scripts.site

docs-serve: docs ## serve the documentation on http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

pages: $(INSTALLED) ## update the generated parts of the documentation and of the Python client
	$(BIN)/python -m scripts.pages
	$(BIN)/python -m scripts.unasync

lint: $(INSTALLED) ## check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## run the benchmarks, for hours, into benchmarks/results (some need ANCHORAGE_DATA)
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.search --open
	$(BIN)/python -m benchmarks.search.service
	$(BIN)/python -m benchmarks.estimates
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.fair_turns
	$(BIN)/python -m benchmarks.fill_search
	$(BIN)/python -m benchmarks.stores
	$(BIN)/python -m benchmarks.bootstrap
	$(BIN)/python -m benchmarks.embed

papers: $(INSTALLED) ## reproduce the papers, for hours, into research/results (needs ANCHORAGE_DATA)
	$(BIN)/python -m research.stitching
	$(BIN)/python -m research.anchor_strategies

faults: $(INSTALLED) ## kill and restart real processes, and count losses (needs PostgreSQL and Redis binaries)
	$(BIN)/python -m benchmarks.faults

soak: $(INSTALLED) ## run a mixed load for MINUTES=10, and count errors and leaks (needs PostgreSQL and Redis binaries)
	$(BIN)/python -m benchmarks.faults.soak --minutes $(or $(MINUTES),10)

torture: $(INSTALLED) ## kill and alter everything during migrations of the stores with a cutover for MINUTES=10 (SEED= repeats a run, FILL=embed embeds texts, POOLER=1 needs pgbouncer)
	$(BIN)/python -m tests.torture --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(FILL),--fill $(FILL)) $(if $(POOLER),--pooler)

pack: $(INSTALLED) ## rebuild the demo's data (needs ANCHORAGE_DATA)
	$(BIN)/python scripts/make_demo_pack.py

dist: ## build the wheels of the service and of its client into dist/
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(DIST) . ./clients/python

constraints: ## update constraints.txt (needs uv)
	uv pip compile --universal --all-extras --python-version 3.11.5 --no-annotate --no-header \
		-c constraints.in pyproject.toml -o constraints.txt
	sed -i '1i # The versions that the tests ran with, written by `make constraints`. It pins; it installs nothing.' constraints.txt

release: ## build the sdist, wheel, SBOM and image (with Docker), and check them
	$(PYTHON) scripts/release.py

clean: ## remove .venv, caches, the built files and the demo's output
	rm -rf $(VENV) build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-output

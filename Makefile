# Every target makes what it needs: its own virtual environment and the real servers in .cache/bin. A second run of any
# of them installs nothing and asks no network.

PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.installed
SERVERS := .cache/bin/.fetched

# Tests run real servers against the clock, two at a time; what failed on a busy machine is tried once more by itself.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long mutations test-vllm lint bench pictures clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(VENV) $(SERVERS) ## the virtual environment and the real servers

demo: setup ## a simulated service, real servers, three faults and their notifications, in two minutes
	$(BIN)/k3observe demo

test: setup lint ## lint, types and the quick tests
	@$(BIN)/python -m tools.setup_crds
	$(BIN)/python -m pytest -m 'not long and not mutations' -n 2 || $(AGAIN)

test-long: setup ## minutes of real servers, node, Chromium, wheels
	$(BIN)/python -m tools.setup_node
	$(BIN)/python -m tools.setup_chromium
	$(BIN)/python -m tools.setup_crds
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile || $(AGAIN)

mutations: setup ## faults planted in every rendered rule: which tests notice them; a quarter of an hour
	$(BIN)/python -m pytest -m mutations

test-vllm: $(VENV) ## the plugin in vLLM's real load balancer, four versions; downloads about 5 GB
	$(BIN)/python -m tools.test_vllm

lint: $(VENV) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy -p k3observe
	$(BIN)/mypy -p tools

bench: setup ## the benchmarks, one script a goal
	@set -e; for script in bench/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

pictures: setup ## the pictures of the documentation, drawn by Chromium
	$(BIN)/python -m tools.setup_chromium
	$(BIN)/python -m tools.pictures

clean: ## everything that was made, the environment and the servers too
	rm -rf .venv .cache .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# setuptools first, from the same constraints: the project is then built by the pinned one, without a build environment
# of its own that would be fetched again.
$(VENV): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "$(PYTHON) is older than 3.10: make PYTHON=/path/to/python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv \
	  || { echo "no virtual environment: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,web]'
	@touch $@

# The stamp is only written when all are there; else the next run tries again.
$(SERVERS): tools/fetch_binaries.py tools/apt.py k3observe/drill/binaries.py | $(VENV)
	@$(BIN)/python -m tools.fetch_binaries --stamp $@

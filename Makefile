# Everything runs in a venv of the checkout's own, made on first use. Needs make (GNU make 3.81,
# which macOS has, will do) and Python 3.11 or newer with venv and pip; no root, no Redis.

# The first of these that fits is taken, or the one you name: make test PYTHON=python3.12
PYTHON ?=
PYTHONS = python3.14 python3.13 python3.12 python3.11 python3
# The lowest versions are for the oldest Python, so there the search begins with it.
PYTHONS_LOWEST = python3.11 python3.12 python3.13 python3.14 python3
# For pytest: make test PYTEST_ARGS="-k robots"
PYTEST_ARGS ?=
# Anything makes it a short look: make bench QUICK=1
QUICK ?=
# The first of ten seeds: make chaos SEED=7
SEED ?=
# Anything makes the crawls whose memory is looked at long: make bench LONG=1
LONG ?=

VENV = .venv
VENV_LOWEST = .venv-lowest
RUN = $(VENV)/bin/python
RUN_LOWEST = $(VENV_LOWEST)/bin/python

help:
	@echo "make demo         crawl a local site through local proxies, with both strategies"
	@echo "make test         run the tests; PYTEST_ARGS=\"-k robots\" runs some of them"
	@echo "make test-lowest  the same with the oldest Scrapy, redis and Twisted we support"
	@echo "make lint         ruff, mypy, import-linter; luacheck where it is on PATH"
	@echo "make bench        run the benchmarks and write docs/performance.md; QUICK=1 for a short look, LONG=1 for a long one"
	@echo "make chaos        crawl while Redis breaks in every way, ten times; SEED=7 chooses the first"
	@echo "make clean        remove what the others made"

demo: $(VENV)/.demo
	@echo "Running demo_spider/run_demo.py"
	@$(RUN) demo_spider/run_demo.py

test: $(VENV)/.test
	@echo "Running the tests; they run whole crawls, so allow some minutes:"
	@$(RUN) -m pytest $(PYTEST_ARGS)

test-lowest: $(VENV_LOWEST)/.test
	@echo "Running the tests with the lowest versions; allow some minutes:"
	@$(RUN_LOWEST) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.lint
	@echo "ruff check:"
	@$(RUN) -m ruff check .
	@echo "ruff format --check:"
	@$(RUN) -m ruff format --check .
	@echo "mypy, strict:"
	@$(RUN) -m mypy
	@echo "import-linter:"
	@$(RUN) -c "from importlinter.cli import lint_imports_command as lint; lint()" --no-cache
	@if command -v luacheck >/dev/null 2>&1; then echo "luacheck:"; \
	    luacheck --quiet --no-color --std lua51 --read-globals redis cmsgpack cjson KEYS ARGV -- \
	        scrapy_smoothpool/store/lua; \
	else echo "luacheck: not on PATH, left out"; fi

bench: $(VENV)/.bench
	@echo "Running the benchmarks; allow ten to fifteen minutes on two idle cores:"
	@$(RUN) benchmarks/run_all.py $(if $(QUICK),--quick) $(if $(LONG),--long)

chaos: $(VENV)/.test
	@echo "Crawling while Redis breaks; a seed takes a minute:"
	@PYTHONPATH=demo_spider:tests $(RUN) tests/chaos.py $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) $(VENV_LOWEST) .tox dist build .hypothesis .import_linter_cache \
	    .mypy_cache .pytest_cache .ruff_cache benchmarks/results/quick

# --- the venvs ---------------------------------------------------------------------------

# pip's errors are shown as they are; of the rest only the names of what it fetches.
PIP_INSTALL = -u -m pip install --no-input --disable-pip-version-check --progress-bar off
NAMES = { while read -r verb what rest; do case "$$verb $$what" in \
	    "Collecting "*) printf ' %s' "$${what%%[!A-Za-z0-9._-]*}";; \
	    "Successfully installed") printf ' ... done';; \
	esac; done; echo; }

# One stamp an extra: installed once, and again when pyproject.toml changes.
$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.bench: pyproject.toml $(RUN)
	@rm -f $@; extra=$(@F); extra=$${extra#.}; \
	printf '%s' "Installing the package and its extra \"$$extra\" into $(VENV):"; \
	{ $(RUN) $(PIP_INSTALL) -e ".[$$extra]" && touch $@; } | $(NAMES); test -f $@

# What pyproject.toml gives as ">=" is taken as "==".
$(VENV_LOWEST)/.test: pyproject.toml $(RUN_LOWEST)
	@rm -f $@; pins=$$($(RUN_LOWEST) -c "import tomllib; print(*( \
	    d.replace('>=', '==') for d in \
	    tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))") && \
	printf '%s' "Installing the package with $$pins into $(VENV_LOWEST):" && \
	{ $(RUN_LOWEST) $(PIP_INSTALL) -e ".[test]" $$pins && touch $@; } | $(NAMES); test -f $@

# Sees to it that a half-made venv is never taken for a whole one.
MAKE_VENV = venv=$(@D); venv=$${venv%/bin}; \
	if test -n "$(PYTHON)"; then set -- "$(PYTHON)"; else set -- $$candidates; fi; \
	for python in "$$@"; do \
	    "$$python" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); \
import ensurepip, venv' >/dev/null 2>&1 || continue; \
	    echo "Making $$venv with $$("$$python" --version)"; \
	    trap 'rm -rf "$$venv"; exit 1' HUP INT TERM; \
	    "$$python" -m venv --clear "$$venv" || { rm -rf "$$venv"; exit 1; }; \
	    echo "*" > "$$venv/.gitignore"; \
	    exit 0; \
	done; \
	echo "No Python 3.11 or newer with venv and pip found; tried: $$*." >&2; \
	echo "Install one (Debian, Ubuntu: python3-venv too), or name it:" >&2; \
	echo "  make PYTHON=/path/to/python3 ..." >&2; \
	exit 1

$(RUN):
	@candidates="$(PYTHONS)"; $(MAKE_VENV)

$(RUN_LOWEST):
	@candidates="$(PYTHONS_LOWEST)"; $(MAKE_VENV)

.PHONY: help demo test test-lowest lint bench chaos clean
# Two at once would install into one venv at the same time.
.NOTPARALLEL:

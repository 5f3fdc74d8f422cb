# The two commands: `make up` serves and mounts a file system, `make test` runs all
# checks and tests. `make help` lists the others.

DATA ?= /var/lib/glint
MOUNT ?= /mnt/glint
PREFIX ?= /usr/local
# Mounting needs root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
GLINT := target/release/glint
FUZZ_SECONDS ?= 5
SEEDS ?= 10000

.PHONY: help up build install test check unit sim e2e fuzz long bench tools clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

up: build ## Build Glint, create a file system in DATA if there is none, mount it at MOUNT until Ctrl-C
	$(SUDO) $(GLINT) up --data "$(DATA)" --mount "$(MOUNT)"

build: ## Build the release binary
	cargo build --release --locked -p glint

install: build ## Install the binary and the helper of mount(8)
	$(SUDO) install -D -m 755 $(GLINT) "$(DESTDIR)$(PREFIX)/bin/glint"
	$(SUDO) install -d "$(DESTDIR)/sbin"
	$(SUDO) ln -sf "$(PREFIX)/bin/glint" "$(DESTDIR)/sbin/mount.fuse.glint"

test: tools check unit sim e2e fuzz ## All checks and tests

check: ## Formatting, lints, licences of dependencies, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo deny --log-level error check bans licenses sources
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

unit: ## Unit and property tests, and the tests of this repository's own rules
	cargo test --workspace --lib --bins --locked
	cargo test -p glint --test tidy --locked
	cargo test -p glint-mds --test allocations --test sessions --locked
	cargo test -p glint-client --test write_back --locked

sim: ## The deterministic simulation, SEEDS seeds; SEED=n runs one again, with its log
	cargo run -q -p glint-sim --locked -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

e2e: ## The real binary on real mounts; needs root
	cargo test -p glint --locked --no-run
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" cargo test -p glint --locked --no-fail-fast \
		--test commands --test conventions --test network --test coherence --test hosts --test leases --test write_back --test certificates --test adapter --test oss --test posix --test crashes --test power --test faults --test space --test disk_faults --test trees --test pages \
		-- --test-threads=2

fuzz: ## Each decoder, FUZZ_SECONDS seconds; a hostile client, twelve times as long
	scripts/fuzz $(FUZZ_SECONDS)

long: ## The random tests for hours: other seeds, more rounds, more fuzzing
	$(MAKE) sim SEEDS=200000
	for seed in $$(seq 1 20); do \
		$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" SEED=$$seed ROUNDS=1000 cargo test -p glint --locked \
			--test write_back --test hosts random || exit 1; \
	done
	scripts/fuzz 600

bench: build ## The figures of docs/benchmarks.md
	scripts/bench

tools: ## Install what the tests need
	scripts/tools

clean: ## Remove what was built
	cargo clean
	rm -rf fuzz/target

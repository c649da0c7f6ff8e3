#!/bin/sh
# Makes sure that what the other verbs need is there. Cargo brings everything but itself.
set -eu
if ! command -v cargo > /dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs, then try again" >&2
    exit 1
fi

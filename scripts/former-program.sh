#!/bin/sh
# Prints the path of the former version's program: that of FROM, or else what is built here, once, from the tag or commit that
# scripts/former-version names, in a folder of its own.
set -eu
cd "$(dirname "$0")/.."
if [ -n "${FROM:-}" ]; then
    [ -x "$FROM" ] || { echo "FROM: $FROM is not a program" >&2; exit 1; }
    realpath "$FROM"
    exit 0
fi
name=$(grep -v '^#' scripts/former-version)
commit=$(git rev-parse --verify --quiet "$name^{commit}") || {
    echo "the former version, $name of scripts/former-version, is not in this clone: git fetch --tags --unshallow, or give its program as FROM=PATH" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
folder=$(realpath "$target")/former
program=$folder/tidings-$commit
if [ ! -x "$program" ]; then
    echo "building the former version, $name" >&2
    rm -rf "$folder/source"
    mkdir -p "$folder/source"
    git archive "$commit" | tar -x -C "$folder/source"
    (cd "$folder/source" && CARGO_TARGET_DIR="$folder/target" cargo build --release --locked -p tidings --no-default-features --features otel >&2)
    cp "$folder/target/release/tidings" "$program.new"
    mv "$program.new" "$program"
    # The program is all that is kept.
    rm -rf "$folder/source" "$folder/target"
fi
echo "$program"

#!/bin/sh
# Cargo calls this in place of rustc for our crates (RUSTC_WORKSPACE_WRAPPER, in .ci/run). Clippy compiles the crate, as under
# `cargo clippy`; then rustdoc reads a library or a program with what was compiled for it, so that a broken link of the documentation
# is an error of the build. `cargo doc` would compile all libraries that we use once more for that.
set -eu
clippy-driver "$@"
is_read=
for argument; do
    case $argument in
    # A test, a build script, or cargo's question about the target.
    --test | build_script_* | --print | --print=* | -vV) exit 0 ;;
    lib | bin) is_read=yes ;;
    esac
done
[ -n "$is_read" ] || exit 0

# What rustc is asked to write, and where, is not for rustdoc. The first argument is the compiler's path.
shift
skip=
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    if [ -n "$skip" ]; then
        skip=
        continue
    fi
    case $argument in
    --out-dir) skip=yes ;;
    --emit=* | --diagnostic-width=*) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
rustdoc "$@" --document-private-items -D warnings --out-dir "$pages"

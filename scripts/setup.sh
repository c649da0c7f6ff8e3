#!/bin/sh
# Makes sure that what the other verbs need is there. Cargo brings everything but itself and the servers that
# tests start.
set -eu
if ! command -v cargo > /dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs, then try again" >&2
    exit 1
fi

# Debian packages whose programs tests start. Installed where that may be done, asked for elsewhere.
missing=""
ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || missing="$missing postgresql-15"
# Tests start servers of their own: the service that the package brings is not needed, and may be switched off.
command -v redis-server > /dev/null && command -v redis-cli > /dev/null || missing="$missing redis-server"
command -v setpriv > /dev/null || missing="$missing util-linux"
/usr/bin/python3 -c "import yaml" 2> /dev/null || missing="$missing python3-yaml" # for scripts/check-deploy.py
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        # shellcheck disable=SC2086 # a list of words
        apt-get update -qq && apt-get install -y --no-install-recommends $missing
    else
        echo "missing, and needed by tests: apt-get install$missing" >&2
        exit 1
    fi
fi

#!/bin/sh
# Installs what the suites of interop/ use, each from its own registry: a virtual environment for Python, packages of
# npm, modules of Go. Does nothing when all is there as the lock files say.
set -eu
cd "$(dirname "$0")"

stamp=.venv/requirements.installed
if ! cmp -s requirements.txt "$stamp"; then
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$stamp"
fi
stamp=node_modules/package-lock.installed
if ! cmp -s package-lock.json "$stamp"; then
    npm ci --no-audit --no-fund --loglevel=error
    cp package-lock.json "$stamp"
fi
if [ -f go/go.mod ]; then
    (cd go && go mod download)
fi

#!/bin/sh
# Installs what the suites of interop/ and the clients of sdk/ and the page of web/ use, each from its own registry: a virtual environment for
# Python, packages of npm, modules of Go. Does nothing when all is there as the lock files say.
set -eu
cd "$(dirname "$0")"

stamp=.venv/requirements.installed
if ! cmp -s requirements.txt "$stamp"; then
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$stamp"
fi
for packages in . ../sdk/typescript ../sdk/react ../web; do
    stamp=$packages/node_modules/package-lock.installed
    if ! cmp -s "$packages/package-lock.json" "$stamp"; then
        (cd "$packages" && npm ci --no-audit --no-fund --loglevel=error)
        cp "$packages/package-lock.json" "$stamp"
    fi
done
if [ -f go/go.mod ]; then
    (cd go && go mod download)
fi

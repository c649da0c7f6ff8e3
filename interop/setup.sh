#!/bin/sh
# Installs what the suites of interop/ and the clients of sdk/ and the page of web/ use, each from its own registry: a virtual environment for
# Python, packages of npm, modules of Go. Does nothing when all is there as the lock files say.
set -eu
cd "$(dirname "$0")"

# Two at once, such as of `make test` and `make web`, would remove each other's files: the later one waits, and finds all there.
if command -v flock > /dev/null; then
    exec 9< setup.sh
    flock 9
fi

python() {
    stamp=.venv/requirements.installed
    cmp -s requirements.txt "$stamp" && return
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$stamp"
}

npm_packages() {
    for packages in . ../sdk/typescript ../sdk/react ../web; do
        stamp=$packages/node_modules/package-lock.installed
        cmp -s "$packages/package-lock.json" "$stamp" && continue
        (cd "$packages" && npm ci --no-audit --no-fund --loglevel=error)
        cp "$packages/package-lock.json" "$stamp"
    done
}

# Suites that begin together would each compile Go's library by themselves.
go_modules() {
    (cd go && go mod download && go build -o /dev/null ./...)
}

# Most of the time goes to waiting for the registries.
python & python=$!
npm_packages & npm=$!
go_modules
wait "$python"
wait "$npm"

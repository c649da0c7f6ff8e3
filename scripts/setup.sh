#!/bin/sh
# Makes sure that what the other verbs need is there. Cargo brings everything but itself, the servers that tests start, and
# the clients of interop/ that others wrote.
set -eu
cd "$(dirname "$0")/.."
if ! command -v cargo > /dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs, then try again" >&2
    exit 1
fi

# Debian packages whose programs tests start. Installed where that may be done, asked for elsewhere.
missing=""
ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || missing="$missing postgresql-15"
command -v redis-server > /dev/null && command -v redis-cli > /dev/null || missing="$missing redis-server"
command -v setpriv > /dev/null || missing="$missing util-linux"
/usr/bin/python3 -c "import yaml" 2> /dev/null || missing="$missing python3-yaml" # for scripts/check-deploy.py
# For interop/: what runs the clients. Whatever version is there is taken.
/usr/bin/env python3 -c "import venv, ensurepip" 2> /dev/null || missing="$missing python3-venv"
command -v node > /dev/null && command -v npm > /dev/null || missing="$missing nodejs npm"
command -v go > /dev/null || missing="$missing golang-go"
command -v javac > /dev/null || missing="$missing default-jdk-headless"
command -v chromium > /dev/null || missing="$missing chromium"
command -v curl > /dev/null || missing="$missing curl"
command -v openssl > /dev/null || missing="$missing openssl"
# The reverse proxies that stand before a server there. What is for administrators is not on everybody's path.
PATH="$PATH:/usr/sbin:/sbin"
command -v nginx > /dev/null || missing="$missing nginx-light"
command -v haproxy > /dev/null || missing="$missing haproxy"
command -v caddy > /dev/null || missing="$missing caddy"
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        # Tests start what they need by themselves: the services that come with packages are started neither now (Debian's
        # policy for that; there is none on most machines) nor at the next boot.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e "$policy" ]; then
            trap 'rm -f "$policy"' EXIT
            printf '#!/bin/sh\nexit 101\n' > "$policy"
            chmod +x "$policy"
        fi
        # shellcheck disable=SC2086 # a list of words
        apt-get update -qq && apt-get install -y --no-install-recommends $missing
        for service in nginx haproxy caddy redis-server; do
            case "$missing " in *" $service"[\ -]*)
                systemctl disable --quiet "$service" 2> /dev/null || true ;;
            esac
        done
    else
        echo "missing, and needed by tests: apt-get install$missing" >&2
        exit 1
    fi
fi

interop/setup.sh

#!/bin/sh
# Makes sure that what the other verbs need is there: Rust and a C compiler, the servers that tests start, and the clients of
# interop/ that others wrote. With --no-install nothing is installed: what is missing is named. With --without-clients those
# of interop/ are left to interop/setup.sh.
set -eu
cd "$(dirname "$0")/.."
install=yes
clients=yes
for argument in "$@"; do
    case $argument in
        --no-install) install=no ;;
        --without-clients) clients=no ;;
        *) echo "usage: scripts/setup.sh [--no-install] [--without-clients]" >&2; exit 2 ;;
    esac
done
if [ "$install" = no ]; then scripts/toolchain.sh --no-install; else scripts/toolchain.sh; fi
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

# Programs that tests start. `missing` are the Debian packages of those that are not here, `explained` a line about each.
missing=""
explained=""
# need PACKAGE WHAT, after a check that failed
need() {
    missing="$missing $1"
    explained="$explained
  $(printf '%-22s %s' "$1" "$2")"
}
ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || need postgresql "PostgreSQL 15 or later, in /usr/lib/postgresql/<version>/bin, and a user postgres when tests run as root"
command -v redis-server > /dev/null && command -v redis-cli > /dev/null || need redis-server "Redis 7.0 or later, or Valkey under Redis' names: redis-server, redis-cli"
command -v setpriv > /dev/null || need util-linux "setpriv, so that what tests start ends with them"
/usr/bin/python3 -c "import yaml" 2> /dev/null || need python3-yaml "PyYAML for /usr/bin/python3: scripts/check-deploy.py"
# For interop/: what runs the clients. Whatever version is there is taken.
/usr/bin/env python3 -c "import venv, ensurepip" 2> /dev/null || need python3-venv "Python 3 with venv: clients in Python"
command -v node > /dev/null && command -v npm > /dev/null || need "nodejs npm" "Node and npm: clients in JavaScript"
command -v go > /dev/null || need golang-go "Go: clients in Go"
command -v javac > /dev/null || need default-jdk-headless "a JDK (javac, java): clients in Java"
command -v chromium > /dev/null || need chromium "Chromium: the page in docs/examples, in a browser"
command -v curl > /dev/null || need curl "curl"
command -v dpkg-deb > /dev/null && command -v readelf > /dev/null || need "dpkg binutils" "dpkg-deb and readelf: the Debian package"
command -v openssl > /dev/null || need openssl "openssl: certificates and keys of tests"
# What is for administrators is not on everybody's path.
PATH="$PATH:/usr/sbin:/sbin"
command -v mariadbd > /dev/null && command -v mariadb-install-db > /dev/null || need mariadb-server "MariaDB 10.6 or later: mariadbd, mariadb-install-db, mariadb"
# The reverse proxies that stand before a server there.
command -v nginx > /dev/null || need nginx-light "nginx"
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || need libnginx-mod-stream "nginx's stream module"
command -v haproxy > /dev/null || need haproxy "HAProxy"
command -v caddy > /dev/null || need caddy "Caddy"
# The brokers that the lab compares with.
command -v mosquitto > /dev/null || need mosquitto "mosquitto, for \`bench brokers\`"
command -v nats-server > /dev/null || need nats-server "nats-server, for \`bench brokers\`"

if [ -n "$missing" ]; then
    if [ "$install" = yes ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        echo "Installing what tests start:$missing"
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
        for service in nginx haproxy caddy mariadb redis-server mosquitto nats-server; do
            case "$missing " in *" $service"[\ -]*)
                systemctl disable --quiet "$service" 2> /dev/null || true ;;
            esac
        done
    else
        {
            echo "The tests start other programs, and these are not here (Debian's package, and what it is):"
            echo "$explained"
            echo
            if command -v apt-get > /dev/null; then
                echo "As root:  apt-get install --no-install-recommends$missing"
            else
                echo "Install them with this system's package manager, under the names that it has for them. Where it puts PostgreSQL"
                echo "elsewhere, as root:  mkdir -p /usr/lib/postgresql/15 && ln -s \"\$(pg_config --bindir)\" /usr/lib/postgresql/15/bin"
                channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
                echo "Or run the tests in a container, which installs them by itself:"
                echo "  docker run --rm -it --privileged --shm-size=2g -v \"\$PWD:/tidings\" -w /tidings rust:$channel-bookworm make test"
            fi
            echo "Without any of them, \`make test-quick\` runs the tests that start no other program."
        } >&2
        exit 1
    fi
fi

[ "$clients" = no ] || interop/setup.sh

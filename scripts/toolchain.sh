#!/bin/sh
# Makes sure that the C compiler and the Rust that the build needs are there. Installs what is missing, after saying so; with
# --no-install it installs nothing, names the one command to run first, and fails.
set -eu
cd "$(dirname "$0")/.."

install=yes
for argument in "$@"; do
    case $argument in
        --no-install) install=no ;;
        *) echo "usage: scripts/toolchain.sh [--no-install]" >&2; exit 2 ;;
    esac
done
channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
# Where rustup puts cargo, also for a shell that has not read its environment yet.
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

# Says what is missing and the command that brings it, then runs the command if that is allowed.
# bring WHAT-IS-MISSING COMMAND
bring() {
    if [ "$install" = no ]; then
        echo "$1. First run:  $2" >&2
        exit 1
    fi
    echo "$1. Running now:  $2"
    echo "(INSTALL=no, as in \`make run INSTALL=no\`, installs nothing.)"
    if [ -t 0 ]; then
        sleep 3 # A moment to press Ctrl-C.
    fi
    sh -c "$2"
}

# The command that installs a C compiler here; some packages of ours are written in C, and cargo links with it.
c_compiler() {
    if command -v apt-get > /dev/null; then
        echo "apt-get update -qq && apt-get install -y --no-install-recommends gcc libc6-dev ca-certificates curl"
    elif command -v dnf > /dev/null; then
        echo "dnf install -y gcc glibc-devel"
    elif command -v apk > /dev/null; then
        echo "apk add build-base curl"
    elif command -v pacman > /dev/null; then
        echo "pacman -S --needed gcc"
    elif command -v zypper > /dev/null; then
        echo "zypper install gcc glibc-devel"
    elif [ "$(uname)" = Darwin ]; then
        echo "xcode-select --install"
    fi
}

if ! command -v cc > /dev/null; then
    command=$(c_compiler)
    if [ -z "$command" ]; then
        echo "There is no C compiler (cc). Install gcc or clang with the C library's headers, then try again." >&2
        exit 1
    elif [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        bring "There is no C compiler (cc)" "$command"
    else
        # Installing system packages asks for another user's rights, or for answers.
        echo "There is no C compiler (cc). First run, as root where that is needed:  $command" >&2
        exit 1
    fi
fi

if ! command -v cargo > /dev/null; then
    if ! command -v curl > /dev/null; then
        echo "Rust is missing, and so is curl, which fetches it. Install curl, or Rust as https://rustup.rs says." >&2
        exit 1
    fi
    bring "Rust is missing: rustup brings Rust $channel into ${RUSTUP_HOME:-~/.rustup} and ${CARGO_HOME:-~/.cargo}, and \`rustup self uninstall\` takes both away" \
        "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --profile minimal --default-toolchain $channel -c clippy -c rustfmt"
    # Of a pipe only the last command's failure counts, and a download that failed leaves that one with nothing to do.
    if ! command -v cargo > /dev/null; then
        echo "Rust could not be installed. https://rustup.rs has other ways." >&2
        exit 1
    fi
    echo "For cargo in a shell of yours:  . \"${CARGO_HOME:-\$HOME/.cargo}/env\""
elif command -v rustup > /dev/null; then
    # RUSTUP_TOOLCHAIN stands above rust-toolchain.toml: whoever sets it has chosen.
    if [ -z "${RUSTUP_TOOLCHAIN:-}" ] && ! rustup toolchain list | grep -q "^$channel\(-\| \|$\)"; then
        bring "Rust $channel, which rust-toolchain.toml names, is missing" \
            "rustup toolchain install $channel --profile minimal --component clippy --component rustfmt"
    fi
else
    # A Rust of the system's own, without rustup, does not read rust-toolchain.toml.
    version=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
    if [ "$(printf '%s\n%s\n' "$oldest" "$version" | sort -t . -k 1,1n -k 2,2n | head -n 1)" != "$oldest" ]; then
        echo "Rust $version is here, and $oldest or later is needed. Install rustup from https://rustup.rs, then try again." >&2
        exit 1
    fi
fi

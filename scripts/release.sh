#!/bin/sh
# Makes all that a release consists of, for x86-64 and aarch64, in target/dist (docs/operations/release.md). Publishes nothing.
#   scripts/release.sh [--no-install] [--programs FOLDER]
# --programs takes what is built already: FOLDER/amd64/tidings and FOLDER/arm64/tidings. TAG, where it is set, must be the version.
set -eu
cd "$(dirname "$0")/.."
install=yes
programs=
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=no ;;
        --programs) programs=$(realpath "$2"); shift ;;
        *) sed -n '2,4s/^# *//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
[ "${TAG:-v$version}" = "v$version" ] || { echo "the tag is $TAG, the version in Cargo.toml $version" >&2; exit 1; }
# Files carry the time of the commit, so that two builds of it can be compared.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# The oldest C library that the programs start with: Debian 10, Ubuntu 18.10, RHEL 8.
glibc=2.28
target=$(realpath "${CARGO_TARGET_DIR:-target}")
tools=$target/tools
dist=$target/dist
PATH=$tools/bin:$PATH

missing=
# The last is for trying them: scripts/try-release.py.
for pair in buildah:buildah mmdebstrap:mmdebstrap dpkg-deb:dpkg readelf:binutils npm:npm qemu-aarch64-static:qemu-user-static; do
    command -v "${pair%%:*}" > /dev/null || missing="$missing ${pair#*:}"
done
python3 -c "import venv, ensurepip" 2> /dev/null || missing="$missing python3-venv"
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
if [ -n "$missing" ]; then
    if [ "$install" = yes ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        # shellcheck disable=SC2086 # a list of words
        apt-get update -qq && apt-get install -y --no-install-recommends $missing
    else
        echo "A release needs these. As root on Debian or Ubuntu:  apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
fi
if [ -z "$programs" ] && [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r scripts/release-requirements.txt
fi
[ -x "$tools/bin/cargo-cyclonedx" ] || cargo install --quiet --locked --root "$tools" cargo-cyclonedx --version 0.5.9

rm -rf "$dist"
mkdir -p "$dist"

# build RUST'S-NAME-OF-THE-PROCESSOR
build() {
    command -v rustup > /dev/null && rustup --quiet target add "$1-unknown-linux-gnu" >&2
    # What a debugger may want of a release is built anew: the program is stripped. Its features are those of deploy/Dockerfile.
    cargo zigbuild --release --locked -p tidings --no-default-features --features otel --target "$1-unknown-linux-gnu.$glibc" >&2
    echo "$target/$1-unknown-linux-gnu/release/tidings"
}

images=
for pair in amd64:x86_64 arm64:aarch64; do
    architecture=${pair%%:*} processor=${pair#*:}
    if [ -n "$programs" ]; then program=$programs/$architecture/tidings; else program=$(build "$processor"); fi
    echo "== $architecture"
    name=tidings-$version-linux-$processor
    mkdir "$dist/$name"
    install -m 755 "$program" "$dist/$name/tidings"
    cp README.md CHANGELOG.md LICENSE tidings.sample.toml deploy/systemd/tidings.service deploy/systemd/tidings.env.example deploy/sysctl.conf "$dist/$name"
    tar -c -z -f "$dist/$name.tar.gz" -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$name"
    rm -r "${dist:?}/$name"
    scripts/package-deb.sh "$dist" "$architecture" "$program" > /dev/null
    images="$images $architecture=$program"
done

echo "== image"
# shellcheck disable=SC2086 # a list of words
scripts/package-image.sh "$dist/tidings-$version-image.tar" $images

echo "== packages of npm"
for folder in sdk/typescript sdk/react; do
    (cd "$folder" && npm ci --no-audit --no-fund --loglevel=error > /dev/null)
    packed=$(cd "$folder" && npm pack --silent --pack-destination "$dist" | tail -n 1)
    # What applications install with it: nothing but what it names as a peer.
    (cd "$folder" && npm sbom --omit=dev --package-lock-only --sbom-format cyclonedx) > "$dist/${packed%.tgz}.cdx.json"
done

echo "== bill of materials"
# It writes one for each crate of the workspace.
trap 'rm -f crates/*/tidings-release.json' EXIT
cargo cyclonedx --quiet --manifest-path crates/tidings/Cargo.toml --format json --spec-version 1.5 --no-default-features --features otel \
    --target x86_64-unknown-linux-gnu --override-filename tidings-release
# Crates of ours are named by where they are in the repository, wherever that is.
sed "s|file://$PWD/|file:///|g" crates/tidings/tidings-release.json > "$dist/tidings-$version.cdx.json"

(cd "$dist" && sha256sum -- * > ../SHA256SUMS && mv ../SHA256SUMS .)
echo "== made in $dist"
(cd "$dist" && du --apparent-size --block-size=KiB -- *)

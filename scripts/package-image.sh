#!/bin/sh
# Makes the image of deploy/Dockerfile from programs that are built already, one for each architecture, without a daemon: its
# last stage by buildah, on what it needs of Debian by mmdebstrap. Nothing of an architecture is run. Writes an OCI archive.
#   scripts/package-image.sh FILE amd64=PROGRAM arm64=PROGRAM
set -eu
file=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
suite=$(sed -n 's/^FROM debian:\([a-z]*\)-slim$/\1/p' deploy/Dockerfile)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() {
    buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

for pair in "$@"; do
    architecture=${pair%%=*} program=${pair#*=}
    context=$work/$architecture
    mkdir -p "$context/data" "$context/deploy" "$context/etc/ssl/certs"
    mkdir -m 700 "$context/data/tidings" "$context/data/tidings-backups"
    cp "$program" "$context/tidings"
    cp deploy/ready.sh "$context/deploy"
    # The C library, and bash for deploy/ready.sh; of ca-certificates the files alone, not the tools that it depends on. What is in the
    # image is written down where scanners of images look for it.
    # shellcheck disable=SC2016 # for the hook's shell
    mmdebstrap --quiet --variant=extract --architectures="$architecture" --include=base-files,base-passwd,bash,libc6 \
        --extract-hook='cd "$1/var/cache/apt/archives"
            APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q -o APT::Sandbox::User=root download ca-certificates
            dpkg-deb -x ca-certificates_*.deb "$1"
            mkdir "$1/var/lib/dpkg/status.d"
            for package in *.deb; do dpkg-deb -f "$package" > "$1/var/lib/dpkg/status.d/$(dpkg-deb -f "$package" Package)"; done' \
        "$suite" "$context/base.tar" >&2
    mkdir "$context/base"
    tar -x -f "$context/base.tar" -C "$context/base" --no-same-owner --exclude='./dev/*' --exclude=./boot --exclude='./etc/apt' \
        --exclude='./etc/hostname' --exclude='./etc/resolv.conf' --exclude='./usr/share/locale/*' --exclude='./usr/share/man/*' \
        --exclude='./usr/share/info/*' --exclude='*/gconv/*' --exclude='*/changelog*.gz' --exclude='./var/cache/*' --exclude='./var/lib/apt/*'
    # Those whom Debian trusts, not those whom this machine has been told to trust besides.
    cat "$context"/base/usr/share/ca-certificates/mozilla/*.crt > "$context/etc/ssl/certs/ca-certificates.crt"
    for name in passwd group; do
        cp "$context/base/usr/share/base-passwd/$name.master" "$context/base/etc/$name"
    done
    {
        printf 'FROM scratch\nCOPY base /\n'
        sed -e '1,/^FROM debian:/d' -e 's/ --from=build//' deploy/Dockerfile
    } > "$context/Dockerfile"
    build bud --quiet --platform "linux/$architecture" --manifest "tidings:$version" --timestamp "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" \
        --label org.opencontainers.image.version="$version" --label org.opencontainers.image.licenses=Apache-2.0 \
        -f "$context/Dockerfile" "$context" >&2
done
rm -f "$file"
build manifest push --quiet --all "tidings:$version" "oci-archive:$file:$version" > /dev/null

#!/bin/sh
# Packs a program that is built already, with its unit and settings (deploy/debian, deploy/systemd), and prints the package's path.
#   scripts/package-deb.sh FOLDER amd64|arm64 PROGRAM [VERSION]
# Needs dpkg-deb and readelf. Compression is dpkg-deb's default; DEB_COMPRESSION=none packs in a moment.
set -eu
folder=$(realpath "$1") architecture=$2 program=$(realpath "$3")
cd "$(dirname "$0")/.."
version=${4:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)}
# A candidate comes before its release: `~` sorts so.
version=$(echo "$version" | tr - '~')
# The newest version of the C library that the program asks for is the oldest that will do.
glibc=$(readelf --version-info "$program" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

doc=$root/usr/share/doc/tidings
install -D -m 755 "$program" "$root/usr/bin/tidings"
# The package's user is there before the server runs and after it, so an administrator reads backups as that user.
mkdir -p "$root/usr/lib/systemd/system"
sed -e '/^# Put at /,/^# .*a pattern lies beside/d' -e 's|^ExecStart=/usr/local/bin/|ExecStart=/usr/bin/|' \
    -e '/^# A user that exists while/d' -e '/^DynamicUser=/d' deploy/systemd/tidings.service > "$root/usr/lib/systemd/system/tidings.service"
install -D -m 600 deploy/systemd/tidings.env.example "$root/etc/tidings/tidings.env"
install -D -m 644 deploy/debian/copyright "$doc/copyright"
gzip -9nc CHANGELOG.md > "$doc/CHANGELOG.md.gz"
printf 'tidings (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' "$version" \
    "$(sed -n 's/^Maintainer: //p' deploy/debian/control)" "$(date -R -u -d "@${SOURCE_DATE_EPOCH:-0}")" | gzip -9n > "$doc/changelog.gz"
install -D -m 644 -t "$doc/examples" tidings.sample.toml deploy/sysctl.conf deploy/nginx.conf
chmod -R u=rwX,go=rX "$root/usr"

mkdir "$root/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@GLIBC@/${glibc#GLIBC_}/" \
    -e "s/@SIZE@/$(du -sk "$root" | cut -f1)/" deploy/debian/control > "$root/DEBIAN/control"
echo /etc/tidings/tidings.env > "$root/DEBIAN/conffiles"
install -m 755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$root/DEBIAN"
install -m 644 deploy/debian/templates "$root/DEBIAN"
(cd "$root" && find usr -type f -exec md5sum {} + > DEBIAN/md5sums)

package=$folder/tidings_${version}_$architecture.deb
dpkg-deb ${DEB_COMPRESSION:+-Z"$DEB_COMPRESSION"} --root-owner-group --build "$root" "$package" > /dev/null
echo "$package"

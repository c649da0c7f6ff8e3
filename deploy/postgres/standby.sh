#!/bin/bash
# Starts a standby: with an empty volume it first copies the primary. Its arguments are the server's command.
#   PRIMARY=postgres-a STANDBY_NAME=postgres_b REPLICATION_PASSWORD=… standby.sh postgres …
# A server that was promoted goes on as the primary that it is: what it does is decided by its folder, not by this script.
set -euo pipefail
: "${PRIMARY:?}" "${STANDBY_NAME:?}" "${REPLICATION_PASSWORD:?}"
data=${PGDATA:-/var/lib/postgresql/data}
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$data"
    chown postgres: "$data"
    exec gosu postgres "$BASH" "$0" "$@"
fi
mkdir -p "$data"
chmod 700 "$data"
if [ ! -s "$data/PG_VERSION" ]; then
    # What an earlier, unfinished copy has left.
    find "$data" -mindepth 1 -delete
    # `--write-recovery-conf` keeps this in the copy: where the primary is, under which name commits wait for us, and the slot.
    until pg_basebackup --pgdata "$data" --wal-method stream --checkpoint fast --write-recovery-conf --slot "$STANDBY_NAME" \
        --dbname "host=$PRIMARY port=${PRIMARY_PORT:-5432} user=replication password=$REPLICATION_PASSWORD application_name=$STANDBY_NAME"; do
        echo "the primary could not be copied; trying again" >&2
        find "$data" -mindepth 1 -delete
        sleep 2
    done
fi
exec "$@"

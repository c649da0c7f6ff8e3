#!/bin/sh
# Makes these processes a Redis Cluster: half of them primaries, each with a replica. Does nothing where there is one.
#   REDISCLI_AUTH=… create.sh HOST:PORT…
set -eu
first=$1
host=${first%:*}
port=${first##*:}

whole() {
    redis-cli -h "$host" -p "$port" cluster info | tr -d '\r' | grep -q '^cluster_slots_assigned:16384$'
}

for address in "$@"; do
    until redis-cli -h "${address%:*}" -p "${address##*:}" ping | grep -q PONG; do
        echo "waiting for $address"
        sleep 1
    done
done
if whole; then
    echo "there is a cluster"
else
    # What an earlier attempt has left half done. Nothing is stored in them that could be lost.
    for address in "$@"; do
        redis-cli -h "${address%:*}" -p "${address##*:}" cluster reset hard
    done
    timeout 60 redis-cli --cluster create "$@" --cluster-replicas 1 --cluster-yes
fi
until redis-cli -h "$host" -p "$port" cluster info | tr -d '\r' | grep -q '^cluster_state:ok$'; do
    echo "waiting for the cluster to agree"
    sleep 1
done
echo "the cluster is whole"

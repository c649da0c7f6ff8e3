#!/bin/bash
# Makes this standby the primary. First make sure that the old primary is stopped and cannot come back by itself:
#   docker compose -f deploy/compose.yml stop postgres-a
#   docker compose -f deploy/compose.yml exec postgres-b bash /usr/local/bin/promote.sh
# The nodes find it by themselves. Until there is a new standby, commits wait for no one else: make one soon, under the name
# that is given as the first argument, and then have commits wait for it: see "A new standby" in docs/operations.md.
set -euo pipefail
next=${1:-postgres_a}
sql() { psql --no-psqlrc --quiet --output /dev/null --set ON_ERROR_STOP=1 --username postgres --dbname postgres --set next="$next"; }

# Copied from the old primary: it would have this server wait for itself.
sql <<< "ALTER SYSTEM SET synchronous_standby_names = '';"
sql <<< "SELECT pg_reload_conf();"
sql <<< "SELECT pg_promote(true, 60);"
# The next standby finds its place kept.
sql << 'SQL'
SELECT pg_create_physical_replication_slot(:'next')
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = :'next');
SQL
echo "this is the primary now"

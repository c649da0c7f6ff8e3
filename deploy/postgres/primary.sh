#!/bin/bash
# Run once, by the image, when the first server's database is made: users, the database, and what the standby needs.
set -euo pipefail
: "${TIDINGS_DB_PASSWORD:?}" "${REPLICATION_PASSWORD:?}"
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username postgres --dbname postgres \
    --set tidings="$TIDINGS_DB_PASSWORD" --set replication="$REPLICATION_PASSWORD" << 'SQL'
CREATE USER tidings PASSWORD :'tidings';
CREATE DATABASE tidings OWNER tidings ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE USER replication REPLICATION PASSWORD :'replication';
SELECT pg_create_physical_replication_slot('postgres_b') \g /dev/null
-- Counts from the next start on: what is made here would wait for a standby that is not there yet.
ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (postgres_b)';
SQL

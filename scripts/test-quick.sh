#!/bin/sh
# Runs the tests that start no PostgreSQL, no Redis and no client of interop/, in under two minutes once they are built, and
# says what it left out. A new file of tests is taken in or left out by what it uses, so no list needs to be kept.
set -eu
cd "$(dirname "$0")/.."

# The types by which tests start PostgreSQL and Redis: defined in the files that run `initdb` and `redis-server`.
launchers=$(grep -lE '"(initdb|redis-server)"' crates/*/tests/*/*.rs | xargs sed -nE 's/^pub(\([a-z]+\))? struct ([A-Za-z]+(Server|Cluster)) .*/\2/p' | sort -u | tr '\n' '|')
case $launchers in
    *Postgres*Redis*) ;;
    *) echo "scripts/test-quick.sh no longer finds how tests start PostgreSQL and Redis: it found '$launchers'" >&2; exit 1 ;;
esac
# `tidings cluster --nodes` starts both, `tidings bench brokers` other servers.
left_out_if="\b(${launchers%|})\b|\"cluster\", \"--nodes\"|\"bench\", \"brokers\""
# Said by the files themselves: much load, long random histories, or time-outs that are waited for.
slow='^// Slow: '

chosen=""
other=""
later=""
for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
    name=$(basename "$file" .rs)
    [ "$name" != main ] || name=$(basename "$(dirname "$file")")
    if grep -qE "$left_out_if" "$file"; then
        other="$other $name"
    elif grep -q "$slow" "$file"; then
        later="$later $name"
    else
        chosen="$chosen --test $name"
    fi
done

# What is built is built as `make test` builds it, so that neither builds anything twice.
# shellcheck disable=SC2086 # lists of words
cargo test --workspace --lib --bins $chosen --no-run
begin=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Of a pipe only the last command's failure counts; the runner's is kept beside it.
# shellcheck disable=SC2086
{ cargo test --workspace --lib --bins $chosen --no-fail-fast 2>&1 || echo "runner-status=$?"; } | tee "$log" | grep -v '^runner-status=' || true
status=$(sed -n 's/^runner-status=//p' "$log")
seconds=$(($(date +%s) - begin))

count() { echo $#; }
list() { for name in "$@"; do echo "  $name"; done; }
echo
# shellcheck disable=SC2086
{
    echo "Left out, and run by \`make test\`:"
    echo "- $(count $other) files of tests that start PostgreSQL, Redis or a cluster:"
    list $other
    [ -z "$later" ] || { echo "- $(count $later) that take long:"; list $later; }
    echo "- examples in the documentation, tests that are marked as ignored, and every client of interop/"
    echo "Ran $(($(count $chosen) / 2)) files of tests and the crates' own in $seconds s."
}
if [ "$seconds" -gt 120 ]; then
    echo "That is more than two minutes. The slowest, which a line \`// Slow: …\` in their file leaves out:"
    awk '/^     Running /{ name = $2 " " $3 } /^test result:/{ time = $NF; sub("s$", "", time); printf "%8.1f s  %s\n", time, name }' "$log" | sort -rn | head -n 5
fi
exit "${status:-0}"

# needs: postgres initdb psql setpriv
# Queries, a bulk copy each way, notifications between sessions.
[ "$(id -u)" = 0 ] || { echo "skip: switches to the user postgres"; exit 77; }
id postgres > /dev/null 2>&1 || { echo "skip: no user postgres"; exit 77; }
chmod 755 .; mkdir -p -m 700 data run shared-pg; chown postgres data run shared-pg
export MADRIGAL_DIR=$PWD/shared-pg
AS="setpriv --reuid=postgres --regid=postgres --clear-groups"
$AS initdb -D data -A trust > init.log 2>&1 || { cat init.log; exit 1; }
$AS postgres -D data -p $P1 -h 127.0.0.1 -k $PWD/run > pg.log 2>&1 & S=$!
await $P1
Q="$AS psql -X -q -t -A -h 127.0.0.1 -p $P1 -U postgres postgres"
until $Q -c 'select 1' > /dev/null 2>&1; do sleep 0.1; done
$Q -c 'create table t(i int, v text)' -c "insert into t select i, repeat('x', i % 100) from generate_series(1, 50000) i" -c 'select count(*), sum(length(v)) from t'
$Q -c 'copy t to stdout' | sha256sum
$Q -c 'copy t to stdout' | $Q -c 'copy t from stdin'; $Q -c 'select count(*) from t'
for i in 1 2 3 4; do (for k in $(seq 50); do echo "select $i * $k;"; done | $Q | sha256sum > q$i) & J="$J $!"; done; wait $J; cat q1 q2 q3 q4
kill -INT $S; wait $S; echo "status $?"

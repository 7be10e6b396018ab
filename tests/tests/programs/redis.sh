# needs: redis-server redis-cli
# Pipelining, publish and subscribe, big values.
redis-server --port $P1 --bind 127.0.0.1 --save '' --appendonly no > redis.log 2>&1 &
await $P1
C="redis-cli -p $P1"
for i in $(seq 5000); do echo "SET k$i value-$i"; done | $C --pipe | tail -1
for i in $(seq 5000); do echo "GET k$i"; done | $C | sha256sum
head -c 64000000 /dev/zero | tr '\0' 'q' | $C -x SET big; $C STRLEN big; $C GET big | sha256sum
(sleep 30 | timeout 20 $C SUBSCRIBE ch > sub.log) & 
until [ "$($C PUBSUB NUMSUB ch | tail -1)" = 1 ]; do sleep 0.05; done
for i in $(seq 200); do echo "PUBLISH ch message-$i"; done | $C | sort | uniq -c
until grep -q 'message-200$' sub.log; do sleep 0.05; done
grep -c '^message-' sub.log
$C SHUTDOWN NOSAVE

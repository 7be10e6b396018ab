# needs: socat nc
# Files by socat and nc, a command behind a listener, half close.
seq 500000 > file
socat -u TCP-LISTEN:$P1,bind=127.0.0.1,reuseaddr OPEN:got1,creat & S=$!
await $P1
socat -u OPEN:file TCP:127.0.0.1:$P1; wait $S; sha256sum < got1
socat TCP-LISTEN:$P2,bind=127.0.0.1,reuseaddr,fork EXEC:cat & 
await $P2
for i in 1 2 3; do socat -t 20 - TCP:127.0.0.1:$P2 < file | sha256sum; done
nc -l 127.0.0.1 $P3 > got3 & N=$!
await $P3
nc -N 127.0.0.1 $P3 < file; wait $N; sha256sum < got3

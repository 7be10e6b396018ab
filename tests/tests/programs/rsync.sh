# needs: rsync
# A daemon, a push and a pull of a tree.
mkdir -p src/a/b store back
for i in 1 2 3 4 5; do seq $((i * 20000)) > src/a/f$i; done; head -c 5000000 /dev/zero > src/a/b/zero
cat > rsyncd.conf <<X
use chroot = no
port = $P1
address = 127.0.0.1
uid = $(id -u)
gid = $(id -g)
[m]
path = $PWD/store
read only = no
X
rsync --daemon --no-detach --config=rsyncd.conf > daemon.log 2>&1 &
await $P1
rsync -a src/ rsync://127.0.0.1:$P1/m/ && rsync -a --checksum rsync://127.0.0.1:$P1/m/ back/
echo "status $?"
(cd back && find . -type f | sort | xargs sha256sum)
rsync -a --itemize-changes src/ rsync://127.0.0.1:$P1/m/ | wc -l

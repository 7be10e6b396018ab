# needs: memcached python3
# The text protocol, many clients, a megabyte.
memcached -u root -l 127.0.0.1 -p $P1 -t 2 & 
await $P1
python3 - $P1 <<'X'
import socket, sys, threading, hashlib
port = int(sys.argv[1])
def session(k, out):
    f = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
    h = hashlib.sha256()
    for i in range(300):
        v = (b"%d:" % i) * (i + 1)
        f.write(b"set k%d-%d 0 0 %d\r\n%s\r\n" % (k, i, len(v), v)); f.flush(); assert f.readline() == b"STORED\r\n"
        f.write(b"get k%d-%d\r\n" % (k, i)); f.flush()
        n = int(f.readline().split()[3]); h.update(f.read(n + 2)); assert f.readline() == b"END\r\n"
    v = b"z" * 1000000
    f.write(b"set big%d 0 0 %d\r\n%s\r\nget big%d\r\n" % (k, len(v), v, k)); f.flush()
    assert f.readline() == b"STORED\r\n"; n = int(f.readline().split()[3]); h.update(f.read(n + 2)); f.readline()
    out[k] = h.hexdigest()
out = {}; ts = [threading.Thread(target=session, args=(k, out)) for k in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
print(len(out), len(set(out.values())), out[0])
X

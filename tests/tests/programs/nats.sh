# needs: nats-server python3
# A server nothing can be preloaded into: wrapped clients must fall back.
nats-server -a 127.0.0.1 -p $P1 > nats.log 2>&1 &
await $P1
python3 - $P1 <<'X'
import socket, sys, threading
def link():
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); f = s.makefile("rwb"); assert f.readline().startswith(b"INFO")
    f.write(b'CONNECT {"verbose":false}\r\nPING\r\n'); f.flush(); assert f.readline() == b"PONG\r\n"; return f
sub, pub = link(), link()
sub.write(b"SUB a 1\r\nPING\r\n"); sub.flush(); assert sub.readline() == b"PONG\r\n"
n = 2000
def publish():
    for i in range(n): m = b"%d" % i * (i % 50); pub.write(b"PUB a %d\r\n%s\r\n" % (len(m), m)); pub.flush()
t = threading.Thread(target=publish); t.start(); total = 0
for i in range(n):
    size = int(sub.readline().split()[3]); assert sub.read(size + 2)[:-2] == b"%d" % i * (i % 50); total += size
t.join(); print(n, total)
X

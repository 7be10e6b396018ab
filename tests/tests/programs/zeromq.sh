# needs: /usr/bin/python3
# Requests and a stream of messages between two processes over tcp.
/usr/bin/python3 -c 'import zmq' 2> /dev/null || { echo "skip: no python3-zmq"; exit 77; }
cat > s.py <<'X'
import zmq, sys
c = zmq.Context(); r = c.socket(zmq.REP); r.bind("tcp://127.0.0.1:" + sys.argv[1]); p = c.socket(zmq.PUSH); p.bind("tcp://127.0.0.1:" + sys.argv[2])
for i in range(1000): r.send(r.recv()[::-1])
for i in range(20000): p.send(b"%d" % i)
p.close(); r.close(); c.term()
X
cat > c.py <<'X'
import zmq, sys, hashlib
c = zmq.Context(); q = c.socket(zmq.REQ); q.connect("tcp://127.0.0.1:" + sys.argv[1]); p = c.socket(zmq.PULL); p.connect("tcp://127.0.0.1:" + sys.argv[2]); h = hashlib.sha256()
for i in range(1000): q.send(b"m%d" % i * (i + 1)); h.update(q.recv())
for i in range(20000): h.update(p.recv())
print(h.hexdigest())
X
/usr/bin/python3 s.py $P1 $P2 & S=$!
/usr/bin/python3 c.py $P1 $P2; wait $S; echo "status $?"

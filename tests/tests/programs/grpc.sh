# needs: /usr/bin/python3
# gRPC over HTTP/2 between two processes: calls, streams in both directions, and an error with its status.
/usr/bin/python3 -c 'import grpc' 2> /dev/null || { echo "skip: no python3-grpcio"; exit 77; }
cat > s.py <<'X'
import sys, threading, grpc
from concurrent import futures
done = threading.Event()
def upper(b, c): return b.upper()
def count(b, c):
    for i in range(int(b)): yield b"%d" % i
def total(it, c): return b"%d" % sum(len(b) for b in it)
def echo(it, c):
    for b in it: yield b
def fail(b, c): c.abort(grpc.StatusCode.FAILED_PRECONDITION, "on purpose")
def end(b, c): done.set(); return b
M = grpc.unary_unary_rpc_method_handler
h = {"Upper": M(upper), "Fail": M(fail), "End": M(end), "Count": grpc.unary_stream_rpc_method_handler(count),
     "Total": grpc.stream_unary_rpc_method_handler(total), "Echo": grpc.stream_stream_rpc_method_handler(echo)}
s = grpc.server(futures.ThreadPoolExecutor(4), handlers=[grpc.method_handlers_generic_handler("t.T", h)])
assert s.add_insecure_port("127.0.0.1:" + sys.argv[1]); s.start(); done.wait(60); s.stop(5).wait()
X
cat > c.py <<'X'
import sys, grpc
with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as ch:
    grpc.channel_ready_future(ch).result(30)
    up = ch.unary_unary("/t.T/Upper")
    print(sum(up(b"abc%d" % i) == b"ABC%d" % i for i in range(500)))
    print(sum(int(b) for b in ch.unary_stream("/t.T/Count")(b"5000")))
    print(ch.stream_unary("/t.T/Total")(b"x" * 40000 for i in range(200)).decode())
    print(sum(len(b) for b in ch.stream_stream("/t.T/Echo")(b"y" * (i * 10) for i in range(1000))))
    try: ch.unary_unary("/t.T/Fail")(b"")
    except grpc.RpcError as e: print(e.code().name, e.details())
    ch.unary_unary("/t.T/End")(b"")
X
/usr/bin/python3 s.py $P1 & s=$!
/usr/bin/python3 c.py $P1 || kill $s
wait $s
echo "server $?"

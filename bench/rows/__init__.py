"""The rows of the table, in its order. To add one: a workload in this folder and a line here."""

from __future__ import annotations

import os

from harness.measure import Figure, Pair, Row
from rows import daemon, mpi
from rows.corba import Corba
from rows.network import Iperf3, SockperfPingPong
from rows.own import Calls, CapiOverRust, Idle, IdlePeers, Multiplexing, PassThrough, Python, VLinkLatency
from rows.redis import Redis, RedisTails
from rows.services import GoEcho, Memcached, MemcachedTails, NginxKeepAlive, NginxNewConnections, NginxTails, Pgbench


def _rates(what: str, tests: tuple[str, ...], target: float, goal: float | None = None, floor: float | None = None) -> list[Figure]:
    return [Figure(what.format(test), "requests/s", target, goal, floor=floor) for test in tests]


def _tails(busy: bool) -> dict[str, Row]:
    """The slowest requests: nowhere slower than plain TCP's."""
    workloads = {"redis1": ("redis GET, 1 client", RedisTails(clients=1)), "redis50": ("redis GET, 50 clients", RedisTails(clients=50)),
                 "nginx": ("nginx, 10 clients", NginxTails()), "memcached": ("memcached, 10 clients", MemcachedTails())}
    head, short = ("busy: ", "busy-") if busy else ("", "")
    return {f"{short}tails-{name}": Pair(workload, [Figure(f"{head}{what}, {share}", "us", 1.0, lower_is_better=True)
                                                   for share in ("p99", "p99.9")], busy=busy)
            for name, (what, workload) in workloads.items()}


def _checks() -> dict[str, Row]:
    """What it costs to keep sums of all that travels in rings, against rings without."""
    small, large = Figure("checked: redis GET, 1 client", "requests/s", 0.7), Figure("checked: iperf3, 1 stream", "Gbit/s", 0.2)
    return {"check-redis1": Pair(Redis(("GET",), 1), [small], setting="MADRIGAL_CHECK=1"),
            "check-iperf3": Pair(Iperf3(), [large], setting="MADRIGAL_CHECK=1")}


def all_rows() -> dict[str, Row]:
    """Every row by its short name."""
    root = os.geteuid() == 0
    both, get = ("SET", "GET"), ("GET",)
    rows: dict[str, Row] = {
        "redis1": Pair(Redis(both, 1), _rates("redis {}, 1 client", both, 12)),
        "redis50": Pair(Redis(both, 50), _rates("redis {}, 50 clients", both, 2.0, 2.5)),
        "redis-pipeline": Pair(Redis(get, 50, 16), _rates("redis {} -P 16, 50 clients", get, 1.6, 2.0)),
        "sockperf": Pair(SockperfPingPong(), [Figure("sockperf ping-pong 64 B", "us", 50, lower_is_better=True)]),
        "iperf3": Pair(Iperf3(), [Figure("iperf3, 1 stream", "Gbit/s", 2.0)]),
        "corba-call": Pair(Corba("call"), [Figure("omniORB, small call", "us", 8, lower_is_better=True)]),
        "corba-inout": Pair(Corba("inout"), [Figure("omniORB, inout of 1 MiB", "MiB/s", 2.0)]),
        "corba-bulk": Pair(Corba("bulk"), [Figure("omniORB, 32 MiB", "MiB/s", 1.5)]),
        "nginx": Pair(NginxKeepAlive(), [Figure("nginx + wrk, keep-alive", "requests/s", 1.4)]),
        "memcached": Pair(Memcached(), [Figure("memcached, 10 clients", "requests/s", 1.4)]),
        "pgbench": Pair(Pgbench("postgres" if root else None), [Figure("pgbench -S, 1 client", "transactions/s", 1.15)]),
        "unwrapped-redis": Pair(Redis(get, 1), _rates("redis {}, 1 client, server not wrapped", get, 4), wrap_server=False),
        "unwrapped-go": Pair(GoEcho(), [Figure("Go echo, static server", "round trips/s", 4)], wrap_server=False),
        "new-nginx": Pair(NginxNewConnections(), [Figure("ab, a connection per request", "requests/s", 0.93)]),
        "new-redis": Pair(Redis(get, 4, keep_alive=False), _rates("redis {} -k 0, a connection per request", get, 0.93)),
        "busy-redis1": Pair(Redis(get, 1), _rates("busy: redis {}, 1 client", get, 0.95, 1.2, 0.8), busy=True),
        "busy-redis50": Pair(Redis(get, 50), _rates("busy: redis {}, 50 clients", get, 0.95, 1.2, 0.8), busy=True),
        "busy-sockperf": Pair(SockperfPingPong(), [Figure("busy: sockperf ping-pong 64 B", "us", 0.95, 1.2, True, floor=0.8)],
                              busy=True),
        "busy-iperf3": Pair(Iperf3(), [Figure("busy: iperf3, 1 stream", "Gbit/s", 0.95, 1.2, floor=0.8)], busy=True),
        "busy-nginx": Pair(NginxKeepAlive(), [Figure("busy: nginx + wrk, keep-alive", "requests/s", 0.95, 1.2, floor=0.8)],
                           busy=True),
        **_tails(busy=False),
        **_tails(busy=True),
        **_checks(),
        "vlink": VLinkLatency(),
        "multiplexing": Multiplexing(),
        "capi": CapiOverRust(),
        "python": Python(),
        "peers": IdlePeers(),
        "calls": Calls(),
        "hook": PassThrough(),
        "idle": Idle(),
        **daemon.rows(),
        **mpi.rows(),
    }
    if root:
        rows["other-user"] = Pair(Redis(get, 1, user="nobody"), _rates("redis {}, 1 client, server of another user", get, 4))
    return rows

"""Services with clients of their kind: nginx, memcached, PostgreSQL, an echo server in Go."""

from __future__ import annotations

import glob
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from harness import builds
from harness.measure import Side
from harness.namespaces import free_port
from harness.processes import Child, Failed

PAGE = b"hello " * 100
NGINX_CONF = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 100000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


class _Nginx:
    needs: Sequence[str] = ("nginx",)

    def start(self, side: Side) -> Child:
        """One worker and a page of 600 bytes."""
        port = free_port()
        (side.folder / "www").mkdir()
        (side.folder / "www" / "page").write_bytes(PAGE)
        conf = side.folder / "nginx.conf"
        conf.write_text(NGINX_CONF.format(folder=side.folder, port=port, user=_nginx_user()))
        server = side.server(["nginx", "-p", str(side.folder), "-c", str(conf), "-e", str(side.folder / "error.log")])
        side.memory["port"] = port
        server.wait_for_listener(port)
        return server

    def url(self, side: Side) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{side.memory['port']:.0f}/page"


@dataclass(frozen=True)
class NginxKeepAlive(_Nginx):
    """wrk with ten connections that stay."""

    needs: Sequence[str] = ("nginx", "wrk")

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Requests per second."""
        text = side.client(["wrk", "-t1", "-c10", f"-d{math.ceil(seconds)}s", self.url(side)], server)
        found = re.search(r"Requests/sec:\s*([0-9.]+)", text)
        if not found or "Socket errors" in text or "Non-2xx" in text:
            raise Failed(f"{side.label}: wrk: {text[-300:]}")
        return [float(found[1])]


@dataclass(frozen=True)
class NginxTails(_Nginx):
    """How long the slowest of a hundred and of a thousand requests take, on ten connections. Not by wrk, which adds requests that a stall
    would have delayed, as many as its own rate makes: the faster side is charged more for the same stall."""

    needs: Sequence[str] = ("nginx", "cc")

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """p99 and p99.9 in us."""
        return _load(side, server, seconds, "http", "tails")


@dataclass(frozen=True)
class NginxNewConnections(_Nginx):
    """ab without keep-alive: a connection for each request."""

    needs: Sequence[str] = ("nginx", "ab")

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Requests per second."""
        requests = int(side.memory.get("rate", 2000) * seconds)
        text = side.client(["ab", "-q", "-n", str(max(requests, 500)), "-c", "4", self.url(side)], server)
        found = re.search(r"Requests per second:\s*([0-9.]+)", text)
        if not found or not re.search(r"Failed requests:\s*0\b", text):
            raise Failed(f"{side.label}: ab: {text[-300:]}")
        side.memory["rate"] = float(found[1])
        return [side.memory["rate"]]


@dataclass(frozen=True)
class Memcached:
    """Nine gets to one set on ten connections."""

    needs: Sequence[str] = ("memcached", "cc")

    def start(self, side: Side) -> Child:
        """With the threads it has by default."""
        port = free_port()
        server = side.server(["memcached", "-u", _me(), "-l", "127.0.0.1", "-p", str(port), "-U", "0"])
        side.memory["port"] = port
        server.wait_for_listener(port)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Requests per second."""
        return _load(side, server, seconds, "memcached")


@dataclass(frozen=True)
class MemcachedTails(Memcached):
    """The same, and how long the slowest of a hundred and of a thousand requests take."""

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """p99 and p99.9 in us."""
        return _load(side, server, seconds, "memcached", "tails")


@dataclass(frozen=True)
class Pgbench:
    """One user that selects, over TCP; server and client run as the same user, as rings want it."""

    user: str | None = None
    needs: Sequence[str] = ("pgbench",)

    def start(self, side: Side) -> Child:
        """A fresh cluster without sockets in the file system."""
        port = free_port()
        side.memory["port"] = port
        if self.user:
            shutil.chown(side.folder, self.user)
        data = str(side.folder / "data")
        side.tool([_postgres("initdb"), "-D", data, "-A", "trust", "--no-sync", "-U", "bench"], self.user)
        server = side.server([_postgres("postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"], self.user)
        server.wait_for_text("ready to accept")
        side.tool([_postgres("pgbench"), *self._where(side), "-i", "-q", "-s", "1", "postgres"], self.user)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Transactions per second."""
        text = side.client([_postgres("pgbench"), *self._where(side), "-n", "-S", "-c", "1", "-T", str(math.ceil(seconds)),
                            "postgres"], server, self.user)
        found = re.search(r"tps = ([0-9.]+)", text)
        if not found:
            raise Failed(f"{side.label}: pgbench: {text[-300:]}")
        return [float(found[1])]

    def _where(self, side: Side) -> list[str]:
        return ["-h", "127.0.0.1", "-p", f"{side.memory['port']:.0f}", "-U", "bench"]


@dataclass(frozen=True)
class GoEcho:
    """64 bytes to and fro with an echo server whose system calls no preloaded library sees."""

    needs: Sequence[str] = ("go", "cc")

    def start(self, side: Side) -> Child:
        """The static server."""
        port = free_port()
        side.memory["port"] = port
        server = side.server([builds.go_program("echo"), str(port)])
        server.wait_for_listener(port)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Round trips per second."""
        return [float(side.client([builds.c_program("pingpong"), f"{side.memory['port']:.0f}", str(seconds)], server))]


def _load(side: Side, server: Child, seconds: float, protocol: str, *what: str) -> list[float]:
    load = [builds.c_program("load"), protocol, f"{side.memory['port']:.0f}", "10", str(seconds), *what]
    return [float(value) for value in side.client(load, server).split()]


def _postgres(program: str) -> str:
    """The program of the newest PostgreSQL here; Debian keeps servers out of PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"), key=lambda p: int(Path(p).parts[4].split(".")[0]))
    path = found[-1] if found else shutil.which(program)
    if not path:
        raise Failed(f"needs {program}")
    return path


def _me() -> str:
    import getpass
    return getpass.getuser()


def _nginx_user() -> str:
    import os
    return f"user {_me()};" if os.geteuid() == 0 else ""

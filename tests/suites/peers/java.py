"""OpenJDK's own tests of java.nio.channels, java.net sockets and its HTTP server and client, by jtreg."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bed.home import HOME, Unable, once, program, source
from bed.results import LOST, OPEN, PASS, Ended, Results, Unit, died

LONG = False
SECONDS = 3600

JDK = Path("/usr/lib/jvm/java-17-openjdk-amd64")
NIO, NET = "java/nio/channels", "java/net"
QUICK = (f"{NIO}/ServerSocketChannel", f"{NIO}/etc", f"{NIO}/Channels", f"{NIO}/AsynchronousSocketChannel", f"{NET}/SocketInputStream", f"{NET}/ServerSocket")
MORE = (f"{NIO}/SocketChannel", f"{NIO}/Selector", f"{NIO}/SelectionKey", f"{NIO}/AsynchronousChannelGroup", f"{NIO}/AsynchronousServerSocketChannel",
        f"{NIO}/Pipe", f"{NIO}/spi", f"{NIO}/unixdomain", f"{NIO}/AsyncCloseAndInterrupt.java", f"{NIO}/FileChannel/Transfer.java",
        f"{NIO}/FileChannel/TransferToChannel.java", f"{NIO}/FileChannel/TransferOverlappedFileChannel.java", f"{NET}/Socket", f"{NET}/SocketImpl",
        f"{NET}/SocketOption", f"{NET}/Socks", f"{NET}/BindException", f"{NET}/ipv6tests", f"{NET}/HttpURLConnection", f"{NET}/URLConnection",
        f"{NET}/Authenticator", f"{NET}/ResponseCache", "com/sun/net/httpserver", "sun/net/www/http")
GIVEN = "LD_PRELOAD,MADRIGAL_CHECK,MADRIGAL_EAGER,MADRIGAL_METHODS"
"""Of the environment jtreg hands on to tests what it is told to, nothing else."""
_LINE = re.compile(r"^(Passed|FAILED|Error): (\S+\.(?:java|sh)\S*)", re.MULTILINE)


def setup() -> None:
    """jtreg and the JDK from Debian, the tests from its source package."""
    program("jtreg", "jtreg7")
    if not (JDK / "bin" / "javac").exists():
        program("javac", "openjdk-17-jdk-headless")
    if not (JDK / "bin" / "javac").exists():
        raise Unable(f"no {JDK}")
    folder = source("openjdk-17", only=("test/jdk/TEST.*", "test/jdk/ProblemList.txt", "test/jtreg-ext/*", "test/jdk/java/n*", "test/lib/*", "test/jdk/lib/*",
                                        "test/jdk/sun/nio/*", "test/jdk/sun/net/*", "test/jdk/com/sun/net/*", "test/jdk/javax/net/*"))
    # Groups name folders that were not unpacked, and jtreg minds.
    (folder / "test" / "jdk" / "TEST.groups").write_text("")
    once(HOME / "java", "classes", lambda: None)


def units(quick: bool) -> list[Unit]:
    """A folder each. What they compile to is kept from run to run, for compiling is most of the work."""
    tests = HOME / "src" / "openjdk-17" / "test" / "jdk"
    found = []
    for part in QUICK if quick else QUICK + MORE:
        work = HOME / "java" / part.replace("/", ".")
        words = ("jtreg", f"-jdk:{JDK}", "-agentvm", f"-e:{GIVEN}", f"-w:{work}", "-r:report", "-nr", "-v:summary", "-a", "-ignore:quiet",
                 "-exclude:ProblemList.txt", "-timeoutFactor:0.5", part)
        found.append(Unit(part, words, tests, seconds=1500))
    return found


def parse(unit: Unit, ended: Ended) -> Results:
    """A line for each test that ended. One that was killed by the machine is an error of its agent, and jtreg goes on."""
    results = {f"{unit.name} {_short(unit, test)}": PASS if how == "Passed" else "fail" for how, test in _LINE.findall(ended.out)}
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code in (0, 1, 2, 3) else "fail"
    return results | {f"{unit.name} (its end)": whole if results or whole != PASS else LOST}


def _short(unit: Unit, test: str) -> str:
    return test.removeprefix(f"{unit.name}/") if test != unit.name else Path(test).name


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """jtreg takes names of tests."""
    names = [case.removeprefix(f"{unit.name} ") for case in cases if not case.endswith("(its end)")]
    if not names:
        return None
    prefix = "" if unit.name.endswith(".java") else f"{unit.name}/"
    return replace(unit, words=(*unit.words[:12], *([unit.name] if not prefix else [prefix + name for name in names])))

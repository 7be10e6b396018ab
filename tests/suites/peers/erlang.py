"""Erlang/OTP's own tests of gen_tcp, inet, sendfile, distribution between nodes and ssl, by common_test."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, once, packages, run, source
from bed.results import OPEN, PASS, Ended, Results, Unit, died

LONG = False
SECONDS = 3600

QUICK = {"kernel": ("gen_tcp_echo_SUITE", "gen_tcp_api_SUITE", "rpc_SUITE")}
MORE = {"kernel": ("erl_distribution_SUITE", "sendfile_SUITE", "gen_tcp_misc_SUITE", "inet_SUITE", "inet_sockopt_SUITE", "gen_udp_SUITE", "erl_distribution_wb_SUITE", "erpc_SUITE",
                   "global_SUITE", "pg_SUITE"),
        "ssl": ("ssl_socket_SUITE", "ssl_upgrade_SUITE", "ssl_payload_SUITE", "ssl_dist_SUITE", "ssl_api_SUITE", "ssl_renegotiate_SUITE")}
PACKAGES = ("erlang-base", "erlang-dev", "erlang-common-test", "erlang-ssl", "erlang-tools", "erlang-inets", "erlang-snmp", "erlang-crypto", "erlang-asn1",
            "erlang-public-key", "erlang-runtime-tools", "erlang-syntax-tools", "erlang-xmerl", "erlang-os-mon", "erlang-mnesia")
HOOK = Path(__file__).resolve().with_name("erlang_told.erl")


def setup() -> None:
    """Erlang from Debian, the suites from its source package, compiled once."""
    packages(*PACKAGES)
    folder = source("erlang", "erlang-base", ("lib/kernel/test/*", "lib/ssl/test/*", "lib/common_test/test_server/*", "lib/kernel/examples/*"))
    for part in ("kernel", "ssl"):
        once(HOME / "erlang", part, lambda part=part: _compile(folder, part))
    run("erlc", "-o", HOME / "erlang", HOOK)


def _compile(folder: Path, part: str) -> None:
    place = HOME / "erlang" / part
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "lib" / part / "test", place)
    server = folder / "lib" / "common_test" / "test_server"
    wanted = [name for table in (QUICK, MORE) for name in table.get(part, ())]
    helpers = [path.stem for path in place.glob("*.erl") if "_SUITE" not in path.stem]
    for name in [*wanted, *helpers]:
        # Not all helpers compile without what only a build of Erlang has; suites that need those fail plain, too.
        _try("erlc", f"{name}.erl", folder=place)
    # Nodes are also to talk by a carrier that is only an example.
    _try("erlc", folder / "lib" / "kernel" / "examples" / "gen_tcp_dist" / "src" / "gen_tcp_dist.erl", folder=place)
    for name in ("ts_install_cth", "ts_install", "ts_lib"):
        _try("erlc", "-I", server, server / f"{name}.erl", folder=place)


def _try(*words: str | Path, folder: Path) -> None:
    try:
        run(*words, folder=folder)
    except Exception as why:  # noqa: BLE001: what does not compile is missed when it runs
        print(f"erlang: {why}")


def units(quick: bool) -> list[Unit]:
    """A suite each, in a copy: they leave files beside themselves."""
    found = []
    for table in (QUICK,) if quick else (QUICK, MORE):
        for part, suites in table.items():
            for suite in suites:
                words = ("ct_run", "-noinput", "-no_auto_compile", "-pa", str(HOME / "erlang"), "-ct_hooks", "erlang_told", "-logdir", "logs",
                         "-dir", part, "-suite", suite)
                found.append(Unit(suite, words, seconds=1200, shell=f"mkdir logs; cp -r {HOME / 'erlang' / part} {part}"))
    return found


def parse(unit: Unit, ended: Ended) -> Results:
    """Our hook tells when a case begins and when it ends."""
    results = {f"{unit.name} {case.partition('/')[2]}": result for case, result in parsers.json_lines(ended.file("results.jsonl")).items()}
    # Status 1 says that a case failed, 2 that one was skipped.
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code in (0, 1, 2) else "fail"
    return results | {f"{unit.name} (its end)": whole}


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """common_test takes names of groups and of cases; it may then run some more than these."""
    names = [case.removeprefix(f"{unit.name} ").split("/") for case in cases if not case.endswith("(its end)")]
    if not names:
        return None
    groups = list(dict.fromkeys(path[-2] for path in names if len(path) > 1))
    chosen = list(dict.fromkeys(path[-1] for path in names))
    return replace(unit, words=(*unit.words[:13], *(["-group", *groups] if groups else []), "-case", *chosen))

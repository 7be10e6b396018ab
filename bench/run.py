#!/usr/bin/env python3
"""Measures programs over Madrigal against the kernel's TCP, in the same run, and writes target/bench.json.

    bench/run.py                        every row
    bench/run.py --quick                every row, roughly
    bench/run.py --only redis1,iperf3   some rows; --list names them
    bench/run.py --against LIB          every row of a server and a client, against another build of the library
    bench/run.py --programs DIR         each script of DIR, plain and with WRAP, in pairs
    bench/run.py --command 'ab ...'     any command, plain and wrapped, in pairs
    bench/run.py --page docs/perf.md    every row, and a page of them with plots

Build first: cargo build --release
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator

from harness import builds, machine, namespaces, noise, output, page, processes, programs
from harness.measure import Pair, Plan, Result
from rows import all_rows
from rows.own import Calls

SCRATCH = "madrigal-bench."


def main() -> int:
    """Parses the command line and runs what it asks for."""
    options = _parse()
    rows = all_rows()
    if options.list:
        for name, row in rows.items():
            print(f"{name:<18} {', '.join(figure.name for figure in row.figures)}")
        return 0
    chosen = options.only.split(",") if options.only else list(rows)
    unknown = [name for name in chosen if name not in rows]
    if unknown:
        print(f"no such row: {', '.join(unknown)}; --list names them", file=sys.stderr)
        return 2
    if options.page and not page.can_draw():
        print("a page needs matplotlib: python3 -m pip install matplotlib, or with Debian's Python python3-matplotlib", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with _plan(options) as plan:
            if options.programs or options.command:
                return _run_pairs(options, plan)
            return _run_rows(options, plan, {name: rows[name] for name in chosen})
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except processes.Failed as failure:
        print(failure, file=sys.stderr)
        return 1


def _run_rows(options: argparse.Namespace, plan: Plan, rows: dict) -> int:
    header = {**machine.describe(), **_how(plan)}
    _print_header(header)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    try:
        for number, (name, row) in enumerate(rows.items(), 1):
            print(f"[{number:2}/{len(rows)}] {name} ", end="", file=sys.stderr, flush=True)
            noise.wait_for_quiet(options.patience)
            meter = noise.Meter()
            if plan.base and not isinstance(row, (Pair, Calls)):
                skipped[name] = "compared with plain TCP only"
                print(f"left out: {skipped[name]}", file=sys.stderr)
                continue
            try:
                measured = row.measure(plan)
            except processes.Failed as failure:
                skipped[name] = str(failure)
                print(f"left out: {failure}", file=sys.stderr)
                continue
            others = meter.others()
            for result in measured:
                result.others = others
            results += measured
            print(file=sys.stderr)
            for result in measured:
                print(output.line(result), flush=True)
    finally:
        header["loadavg_end"] = machine.load()
        output.write(options.json, header, results, skipped)
    print(f"\n{output.table(results)}")
    for name, why in skipped.items():
        print(f"{name:<44} left out: {why}")
    short = sum(not result.passed for result in results)
    print(f"\n{len(results) - short} of {len(results)} figures at their target; load {header['loadavg_start'][0]} at start, "
          f"{header['loadavg_end'][0]} at end; written to {options.json}")
    if options.page:
        page.write(options.page, options.json)
    return 0


def _run_pairs(options: argparse.Namespace, plan: Plan) -> int:
    header = {**machine.describe(), **_how(plan)}
    _print_header(header)
    work = [(path.stem, ["bash", str(path.resolve())], True) for path in programs.scripts(options.programs)] if options.programs \
        else [(options.command, shlex.split(options.command), False)]
    found, skipped = [], {}
    for name, command, by_variable in work:
        try:
            found.append(programs.pairs(name, command, plan, options.pairs, by_variable))
            print(found[-1].line(), flush=True)
        except processes.Failed as failure:
            skipped[name] = str(failure)
            print(f"{name:<28} left out: {failure}", flush=True)
    header["loadavg_end"] = machine.load()
    path = options.json.with_name("bench-programs.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"header": header, "programs": [p.as_dict() for p in found], "skipped": skipped}, indent=1) + "\n")
    return 0


@contextmanager
def _plan(options: argparse.Namespace) -> Iterator[Plan]:
    """What to measure with; takes everything away at the end, however that comes."""
    processes.become_reaper()
    with ExitStack() as stack:
        processes.remove_stale_folders(SCRATCH)
        scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}."))
        scratch.chmod(0o755)
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        spaces = namespaces.make_all(options.congestion)
        for space in spaces:
            stack.callback(space.remove)
        stack.callback(processes.stop_all)
        if spaces[0].name is None:
            print("not root: on the host's loopback, with its congestion control only", file=sys.stderr)
        runs = options.runs or (3 if options.quick else 5)
        seconds = options.seconds or (0.4 if options.quick else 1.0)
        yield Plan(runs, seconds, 1 if options.quick else 2, _wrap(options), spaces, scratch, options.quick,
                   _preload(options.against) if options.against else [])


def _wrap(options: argparse.Namespace) -> list[str]:
    """What goes in front of a program to wrap it: `madrigal exec --` if it is there, else the preload itself."""
    tool = builds.TARGET / "release" / "madrigal"
    library = (options.preload or builds.TARGET / "release" / "libmadrigal_syswrap.so").resolve()
    if options.preload is None and tool.exists():
        try:
            if library.name in processes.run([str(tool), "exec", "--", "sh", "-c", "echo $LD_PRELOAD"]):
                return [str(tool), "exec", "--"]
        except processes.Failed:
            pass
    return _preload(library)


def _preload(library: Path) -> list[str]:
    if not library.exists():
        raise processes.Failed(f"no {library}: run `cargo build --release` first")
    return ["env", f"LD_PRELOAD={library.resolve()}"]


def _how(plan: Plan) -> dict[str, object]:
    return {"runs": plan.runs, "seconds_per_run": plan.seconds, "namespaces": plan.spaces[0].name is not None,
            "congestion_controls": [space.congestion for space in plan.spaces], "wrapped_by": Path(plan.wrap[0]).name,
            "base": plan.base[-1].partition("=")[2] if plan.base else None}


def _print_header(header: dict[str, object]) -> None:
    other = f"plain is {header['base']}" if header["base"] else f"plain TCP is the better of {', '.join(header['congestion_controls'])}"
    print(f"{header['cpus']} CPUs, {header['cpu']}, Linux {header['kernel']}; load {header['loadavg_start'][0]}; wake-up on the "
          f"other CPU {header['wake_up_us']} us (pipe), {header['wake_up_futex_us']} us (futex); a cache line there "
          f"{header['cache_line_ns']} ns; {other}\n", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,NAME", help="only these rows")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--runs", type=int, help="runs of each side (5)")
    parser.add_argument("--seconds", type=float, help="length of a run (1.0)")
    parser.add_argument("--quick", action="store_true", help="3 shorter runs")
    parser.add_argument("--patience", type=float, default=0.0, metavar="S", help="wait so long for a quiet machine before each row (0)")
    parser.add_argument("--json", type=Path, default=builds.TARGET / "bench.json", metavar="PATH", help="where results go")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write a page of the results, too, and plots in a folder beside it")
    parser.add_argument("--congestion", metavar="NAME", help="only this congestion control")
    parser.add_argument("--preload", type=Path, metavar="LIB", help="preload this library instead of `madrigal exec`")
    parser.add_argument("--against", type=Path, metavar="LIB", help="compare with this build of the library instead of plain TCP")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="time the scripts of DIR in pairs")
    parser.add_argument("--command", help="time this command in pairs")
    parser.add_argument("--pairs", type=int, default=10, help="pairs for --programs and --command (10)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""The page of one measurement: its table, and a plot of what each connection carried, second by second."""

from __future__ import annotations

import platform
from datetime import date
from pathlib import Path
from typing import Any

from wide.lines import LINES
from wide.measure import Result
from wide.streams import PAUSE, Stream

HEAD = """# Figures of long, lossy lines

Written by `make bench-wan BENCH='--page docs/perf-wan.md'` (`bench/wan.py`), {day}, Linux {kernel}, {seconds} s a figure behind a
warm-up. Each line is a `madrigal lab` with a fixed seed. *Plain* is one stream of iperf3 from host to host (of UDP for `datagrams`, of a
sender of our own for text and noise, MPICH by its own TCP for `sor`), *Madrigal* the same command under `madrigal exec`, through two daemons, by TLS; Mbit/s as received.
*Short* marks less than is wanted, or less than 0.97 of plain.

![What each connection carried](perf-wan/streams.png)

Grey: plain TCP, one connection. Blue: the connections of Madrigal's link, thin, and all of them together, thick; in the first seconds their
number is found.

| line | what it is | control | plain | Madrigal | ratio | connections | wanted | |
|---|---|---|---|---|---|---|---|---|
"""
OTHERS = """
## Other tools

On the same lines: iperf3 with several streams at once, as GridFTP sends, iperf3 by kernel MPTCP, the perf program of quinn (QUIC), the test
program of MPWide, each against one stream of Madrigal; copies by ssh against the same command under `madrigal exec`. Mbit/s.

| line | control | tool | carries | Madrigal | ratio |
|---|---|---|---|---|---|
"""
PLAIN, LINK = "#999999", "#3070a0"


def write(path: Path, results: list[Result], seconds: int) -> None:
    """Writes the page and its plot."""
    plots = path.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    _plot(plots / "streams.png", [result for result in results if result.streams])
    text = HEAD.format(day=date.today().isoformat(), kernel=platform.release().split("-")[0], seconds=seconds)
    text += "".join(map(_row, results))
    if any(result.others for result in results):
        text += OTHERS + "".join(_others(result) for result in results)
    path.write_text(text)


def _row(result: Result) -> str:
    line = next(line for line in LINES if line.name == result.line)
    late = f"; 99 of 100 within {result.late:.0f} ms, {result.most_late:.0f} wanted" if result.late is not None else ""
    wanted = f"{result.least:.3g}" if result.least else ""
    return (f"| {result.line} | {line.text()}{late} | {result.congestion} | {result.plain:.3g} | {result.madrigal:.3g} "
            f"| {result.madrigal / result.plain:.2f} | {result.connections} | {wanted} | {'short' if result.falls_short() else ''} |\n")


def _others(result: Result) -> str:
    rows = ""
    for other in result.others:
        figures = f"{other.carried:.3g} | {other.madrigal:.3g} | {other.madrigal / max(other.carried, 0.01):.2f}" if other.carried is not None else "not installed | |"
        rows += f"| {result.line} | {result.congestion} | {other.name} | {figures} |\n"
    return rows


def _plot(path: Path, results: list[Result]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = (len(results) + 1) // 2
    figure, axes = pyplot.subplots(rows, 2, figsize=(9, 1.7 * rows), squeeze=False)
    for axis in axes.flat[len(results):]:
        axis.set_visible(False)
    for axis, result in zip(axes.flat, results):
        _draw(axis, result)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _draw(axis: Any, result: Result) -> None:
    for stream in result.streams["madrigal"]:
        axis.plot(stream.times, stream.rates, color=LINK, linewidth=0.5, alpha=0.6)
    for kind, color in (("plain", PLAIN), ("madrigal", LINK)):
        axis.plot(*together(result.streams[kind]), color=color, linewidth=1.3)
    axis.set_title(f"{result.line}, {result.congestion}", fontsize=8)
    axis.set_xlabel("s", fontsize=7)
    axis.set_ylabel("Mbit/s", fontsize=7)
    axis.tick_params(labelsize=6)
    axis.set_ylim(bottom=0)


def together(streams: list[Stream]) -> tuple[list[float], list[float]]:
    """The sum of their rates at each time."""
    sums: dict[int, float] = {}
    for stream in streams:
        for time, rate in zip(stream.times, stream.rates):
            step = round(time / PAUSE)
            sums[step] = sums.get(step, 0.0) + rate
    return [step * PAUSE for step in sorted(sums)], [sums[step] for step in sorted(sums)]

"""The page of one measurement: a Markdown table of every figure, and two plots beside it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from harness import stats
from harness.builds import ROOT

HEAD = """# Figures of one build on one machine

Written by `make bench` (`bench/run.py --page docs/perf.md`). Medians of {runs} interleaved runs of {seconds:g} s, plain TCP being the better
of {controls} for each row. {date}, commit {commit}.

Machine: {cpus} processors ({cpu}), Linux {kernel}. It costs {wake:.3g} us to wake a sleeper on the other processor, and {cache:.3g} ns to move
a cache line there. A ratio above 1 is better for Madrigal, for rates and for latencies. *Spread* is the distance from the least to the
greatest run of Madrigal, as a share of the median. *Ring* means that most bytes went through shared memory, by the programs' own reports.
*Against* names what the row is compared with, where that is not plain TCP. *Short* marks a figure below its target. How the rows are
measured: [bench/README.md](../bench/README.md). What was tried to get there: [the notebook](notebook/perf.md).

![Ratios to plain TCP or the best peer](perf/ratios.png)

![Every run, as a ratio to the median of plain TCP](perf/runs.png)
"""
TABLE = "| figure | unit | plain | Madrigal | ratio | worst run | target | spread | ring | against | |\n|---|---|---|---|---|---|---|---|---|---|---|"
SHORT = "#c05030"
MET = "#3070a0"
PLAIN = "#999999"


def can_draw() -> bool:
    """Whether there is what draws plots."""
    return importlib.util.find_spec("matplotlib") is not None


def write(path: Path, result_file: Path) -> None:
    """Writes the page and its plots."""
    result = json.loads(result_file.read_text())
    plots = path.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    _plot_ratios(plots / "ratios.png", result)
    _plot_runs(plots / "runs.png", result)
    path.write_text(text(result))


def text(result: dict[str, Any]) -> str:
    """The page of a result file."""
    header = result["header"]
    head = HEAD.format(runs=header["runs"], seconds=header["seconds_per_run"], controls=" and ".join(map(str.upper, header["congestion_controls"])),
                       date=header["date"], commit=header["commit"], cpus=header["cpus"], cpu=header["cpu"], kernel=header["kernel"],
                       wake=header["wake_up_us"] or 0, cache=header["cache_line_ns"] or 0)
    parts = [head, "\n".join([TABLE, *map(_line, result["figures"])])]
    if result["skipped"]:
        parts.append("Not measured:\n\n" + "\n".join(f"* {name}: {why.splitlines()[0]}" for name, why in result["skipped"].items()))
    # Where this tree lies is nobody's business.
    return ("\n\n".join(part.strip() for part in parts) + "\n").replace(f"{ROOT}/", "")


def _line(figure: dict[str, Any]) -> str:
    value = f"{figure['added']:+.2f}" if figure["absolute"] else f"{figure['ratio']:.2f}"
    worst = "" if figure["absolute"] else f"{figure['worst']:.2f}"
    target = f"less than +{figure['target']:g}" if figure["absolute"] else f"{figure['target']:g}"
    ring = {True: "yes", False: "no", None: ""}[figure["by_ring"]]
    against = "" if figure["plain_cc"] in ("cubic", "bbr") else figure["plain_cc"]
    cells = (figure["name"], figure["unit"], _short(figure["plain"]), _short(figure["madrigal"]), value, worst, target,
             f"{100 * figure['spread']['madrigal']:.0f} %", ring, against, "" if figure["passed"] else "short")
    return f"| {' | '.join(cells)} |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _plot_ratios(path: Path, result: dict[str, Any]) -> None:
    figures = _with_ratio(result)
    figure, axes = _axes(len(figures))
    axes.barh([f["name"] for f in figures], [f["ratio"] for f in figures], color=[MET if f["passed"] else SHORT for f in figures])
    axes.set_xlabel("ratio of medians (log scale); above 1 is better for Madrigal; dashes: target")
    for at, f in enumerate(figures):
        axes.plot([f["target"]] * 2, [at - 0.4, at + 0.4], color="black", linestyle=":", linewidth=1)
    _save(figure, axes, path)


def _plot_runs(path: Path, result: dict[str, Any]) -> None:
    figures = _with_ratio(result)
    figure, axes = _axes(len(figures))
    axes.set_yticks(range(len(figures)), [f["name"] for f in figures])
    for at, f in enumerate(figures):
        for runs, color, shift in ((f["runs"]["plain"], PLAIN, -0.15), (f["runs"]["madrigal"], MET, 0.15)):
            ratios = [stats.ratio(f["plain"], run, f["lower_is_better"]) for run in runs if run]
            axes.scatter(ratios, [at + shift] * len(ratios), s=8, color=color)
    axes.set_xlabel("each run against the median of plain (log scale); grey: plain, blue: Madrigal")
    _save(figure, axes, path)


def _with_ratio(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in result["figures"] if not f["absolute"] and f["ratio"] > 0 and f["plain"] and f["madrigal"]]


def _axes(rows: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, 1.2 + 0.17 * rows))


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.tick_params(labelsize=6)
    axes.xaxis.label.set_size(7)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})

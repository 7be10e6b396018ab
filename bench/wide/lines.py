"""The lines that are measured, and what Madrigal is to carry of each."""

from __future__ import annotations

from dataclasses import dataclass

from wide.lab import HOSTS, SECOND

CONTROLS = ("cubic", "bbr")


@dataclass(frozen=True)
class Line:
    """A line between two sites, and the Mbit/s that Madrigal is to carry at least."""

    name: str
    rate: str
    delay: str
    loss: str
    least: dict[str, float]
    """Mbit/s by congestion control; of lines of text and noise: how many times what plain TCP carries."""
    data: str = ""
    """`text` or `noise` where that is what is sent."""
    beside: str = ""
    """The delay of a second line of the same rate, by which each host has another address."""
    urgent: bool = False
    """Two bulk transfers, and urgent questions beside them."""
    tolerance: int = 0
    """So many percent of datagrams may be lost, where that is what is sent."""
    job: bool = False
    """A job of MPICH with two ranks at each site: sweeps a second, not Mbit/s; at least so many times those of MPICH alone."""

    def text(self) -> str:
        """What it is, in words; the delay is one way."""
        parts = (
            (self.job, "SOR by 2 x 2 ranks of MPICH (sweeps a second)"),
            (self.tolerance, f"UDP of which {self.tolerance} % may be lost"),
            (self.urgent, "two bulk transfers and urgent questions"),
            (self.data, self.data),
            (self.beside, f"and one of 2 x {self.beside}"),
        )
        more = "".join(f", {words}" for has, words in parts if has)
        return f"{self.rate}bit/s, 2 x {self.delay}, {self.loss} lost{more}"

    def lab(self) -> str:
        """The lab's file."""
        lines = [("ab", self.delay, HOSTS)] + ([("cd", self.beside, SECOND)] if self.beside else [])
        text = ""
        for (left, right), delay, addresses in lines:
            for site, (host, address) in zip((left, right), addresses.items()):
                text += f"[site.{site}]\nnetwork = '{address[:-1]}0/24'\nhosts = ['{host}']\n"
            text += (f"[link.{left}{right}]\nbetween = ['{left}', '{right}']\nrate = '{self.rate}'\ndelay = '{delay}'\n"
                     f"loss = '{self.loss}'\nseed = 1\n")
        return text


LINES = (
    Line("long", "100M", "50ms", "0.1%", {"cubic": 88, "bbr": 92}),
    Line("lossy", "100M", "50ms", "1%", {"cubic": 40, "bbr": 90}),
    Line("thin", "10M", "75ms", "5%", {"bbr": 9.0}),
    Line("fat", "1000M", "25ms", "0.01%", {"bbr": 800}),
    Line("near", "100M", "4.5ms", "0.05%", {"bbr": 95}),
    Line("text10", "10M", "25ms", "0%", {"cubic": 3, "bbr": 3}, "text"),
    Line("noise10", "10M", "25ms", "0%", {"cubic": 0.98, "bbr": 0.98}, "noise"),
    Line("text100", "100M", "10ms", "0%", {"cubic": 2.5, "bbr": 2.5}, "text"),
    Line("datagrams", "8M", "50ms", "7%", {"cubic": 0.95, "bbr": 0.95}, tolerance=10),
    Line("urgent", "100M", "50ms", "0%", {"cubic": 85, "bbr": 85}, urgent=True),
    Line("sor", "100M", "10ms", "0.1%", {"cubic": 1, "bbr": 1}, job=True),
    Line("two", "50M", "10ms", "0%", {"cubic": 90, "bbr": 90}, beside="30ms"),
)

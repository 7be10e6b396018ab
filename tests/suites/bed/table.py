"""What is told at the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from bed.compare import BROKEN, FLAKY, ONCE, Counts, Verdict, count
from bed.results import Results

HEAD = f"{'suite':<11} {'mode':<8} {'passed':>7} {'as plain':>9} {'skipped':>8} {'broken':>7} {'flaky':>6} {'once':>5} {'time':>8}"


@dataclass
class Line:
    """One suite in one mode."""

    suite: str
    mode: str
    plain: Results = field(default_factory=dict)
    results: Results = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    seconds: float = 0
    reason: str = ""
    """Why it did not run."""
    late: int = 0
    """Units that its watchdog kept from running."""

    @property
    def counts(self) -> Counts:
        """Its numbers; of the plain run compared with itself."""
        return count(self.plain, self.results, self.verdicts)

    def of_kind(self, kind: str) -> list[tuple[str, Verdict]]:
        """The cases that were taken for this."""
        return [(case, verdict) for case, verdict in self.verdicts.items() if verdict.kind == kind]

    def text(self) -> str:
        """Its line of the table."""
        if self.reason:
            return f"{self.suite:<11} {self.mode:<8} skipped: {self.reason}"
        told = self.counts
        late = f"  {self.late} units not run: its time was up" if self.late else ""
        return (f"{self.suite:<11} {self.mode:<8} {told.passed:>7} {told.failed_as_plain:>9} {told.skipped:>8} {told.broken:>7} {told.flaky:>6} "
                f"{told.once:>5} {self.seconds:>6.0f} s{late}")

    def details(self) -> str:
        """Each case that is not as it is plain."""
        return "".join(f"    {kind:<7} {case}   {verdict.note}\n" for kind in (BROKEN, ONCE, FLAKY) for case, verdict in self.of_kind(kind))

    def as_json(self) -> dict[str, object]:
        """For other programs."""
        return {"suite": self.suite, "mode": self.mode, "seconds": round(self.seconds, 1), "reason": self.reason, "late": self.late,
                "counts": asdict(self.counts), "results": self.results,
                "verdicts": {case: asdict(verdict) for case, verdict in self.verdicts.items()}}


def failed(lines: list[Line], strict: bool) -> bool:
    """Whether something passes plain only."""
    return any(line.late and line.mode != "plain" or line.of_kind(BROKEN) or strict and line.of_kind(ONCE) for line in lines)

"""What passed, what failed, and the list of failures that are expected, each with its reason."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CHECKS = (
    *("present", "value", "dtype", "gradient", "second gradient", "strides", "gradient strides", "out", "inplace"),
    *("method", "errors", "state"),
)
EXPECTED = Path(__file__).with_name("expected.json")


@dataclass
class Report:
    """Counts of one database, and its failures: (name, check, dtype, difference)."""

    database: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str, str, str]] = field(default_factory=list)

    def passed(self, check: str) -> None:
        self.counts[check] += 1

    def failed(self, name: str, check: str, dtype: str, difference: str) -> None:
        self.counts[check] += 1
        self.failures.append((name, check, dtype, " ".join(difference.split())))

    def add(self, other: "Report") -> None:
        self.counts += other.counts
        self.failures += other.failures

    def table(self) -> str:
        failed = Counter(check for _, check, _, _ in self.failures)
        return "  ".join(
            f"{check} {self.counts[check] - failed[check]}/{self.counts[check]}"
            for check in CHECKS
            if self.counts[check]
        )


class Expected:
    """`expected.json`: for each database {check: {reason: [names]}}; a name may have `:dtype` behind it."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, str, str], str] = {}
        self.met: set[tuple[str, str, str]] = set()
        listed = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
        for database, checks in listed.items():
            for check, reasons in checks.items():
                for reason, names in reasons.items():
                    for name in names:
                        self.reasons[database, check, name] = reason

    def covers(self, database: str, failure: tuple[str, str, str, str]) -> bool:
        name, check, dtype, _ = failure
        for key in ((database, check, name), (database, check, f"{name}:{dtype}")):
            if key in self.reasons:
                self.met.add(key)
                return True
        return False

    def written(self, totals: list["Report"]) -> None:
        """Makes the list what fails now: with the reasons that it has, others without one."""
        listed: dict[str, dict[str, dict[str, list[str]]]] = {}
        for total in totals:
            for name, check, dtype, _ in sorted(total.failures):
                whole = f"{name}:{dtype}" if dtype else name
                reason = self.reasons.get((total.database, check, name))
                reason = reason or self.reasons.get((total.database, check, whole), "not looked at")
                names = listed.setdefault(total.database, {}).setdefault(check, {}).setdefault(reason, [])
                if whole not in names:
                    names.append(whole)
        EXPECTED.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")

    def unmet(self, database: str, names: set[str]) -> list[str]:
        """Entries whose failure did not come though their operator was run."""
        return [
            f"{check}: {name}"
            for listed, check, name in self.reasons
            if listed == database and name.split(":")[0] in names and (listed, check, name) not in self.met
        ]

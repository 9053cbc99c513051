"""Studies made of plain numbers, in place of recorded ones."""

from types import SimpleNamespace
from typing import Any

import pandas as pd

from fedrepro import papers

Values = dict[tuple[str, str], float | None]


class Made:
    """What views ask of a study. values: numbers by experiment, row and column; tries: validation
    accuracies of a tuned setting by row; curves: accuracies in each round by row."""

    rounds = 2
    asked = 0  # rounds of the protocol, if more
    changes: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self, paper: str, dataset: str, scale: str, seed: int, values: dict[str, Values],
        tries: dict[str, dict[str, float]] | None = None,
        curves: dict[str, tuple[float, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.paper, self.dataset, self.scale, self.seed = papers.load(paper), dataset, scale, seed
        self.values, self.tries, self.accuracies = values, tries or {}, curves or {}

    def cells(self, experiment: str, kind: str = "") -> list[dict[str, Any]]:
        facts = {"dataset": self.dataset, "scale": self.scale, "seed": self.seed}
        plain = {"standin": False, "caveats": ["small copies"], "alternative": False}
        return [
            {"table": experiment, "method": m, "column": c, "value": value, **facts, **plain}
            for (m, c), value in self.values[experiment].items()
        ]

    def results(self, experiment: str) -> list[Any]:
        labels = dict.fromkeys(method for method, _ in self.values[experiment])
        return [
            SimpleNamespace(
                label=label, past=False, tries=self.tries.get(label, {}), record=self._record(label)
            )
            for label in labels
        ]

    def _record(self, label: str) -> Any:
        """By default rounds of ten points more each, the last at the row's mean."""
        mean = next((v.get((label, "avg")) for v in self.values.values()), 0.0) or 0.0
        rising = [mean - 10 * (self.rounds - r) for r in range(1, self.rounds + 1)]
        values = self.accuracies.get(label, rising)
        curve = pd.DataFrame({"round": range(1, len(values) + 1), "value": values})
        curve = curve.assign(measure="accuracy", subject="global", domain="amazon", split="test")
        protocol = SimpleNamespace(rounds=max(self.asked, len(values)))
        name = f"{label}-{self.seed}-{self.scale}"
        own = {"config": {"protocol": {"early_stop": None, "rounds": 9}}, "protocol": protocol}
        return SimpleNamespace(run_id=name, curve=curve, **own)

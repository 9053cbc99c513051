"""How often each verdict is given for a known gap: a simulation of the rules of one cell.

The paper prints mean and deviation of three trials; both sides have the same spread. With one seed
the spread is pooled over six other rows of three seeds. With test images both sides draw their own
400, at an accuracy of 60 %. The table's correction over many cells is left out.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from entry import count, run

from fedrepro.base.errors import FedReproError
from fedrepro.quantities.noise import binomial
from fedrepro.report.comparison import compared

PLACE = Path(__file__).parent / "results" / "verdict-words.md"
GAPS, SPREADS, SEEDS, IMAGES = (0, 2, 3, 5), (1, 2, 4), (1, 3, 5), (0, 400)
WORDS = ("agrees", "close", "open", "higher", "lower")


def word(rng: np.random.Generator, gap: float, spread: float, seeds: int, images: int) -> str:
    """The verdict of one drawn cell."""
    drawn = 100**2 * binomial(0.6, images) if images else 0.0
    theirs = rng.normal(60, spread, 3) + rng.normal(0, drawn**0.5)
    ours = rng.normal(60 + gap, spread, seeds) + rng.normal(0, drawn**0.5)
    others = rng.normal(0, spread, (6, 3)).var(axis=1, ddof=1).mean(), 12.0
    facts = {"pooled": others, "images": drawn, "theirs": drawn, "tolerance": 2.0}
    found = compared(float(theirs.mean()), float(theirs.std(ddof=1)), 3, ours.tolist(), **facts)
    assert found is not None
    return found.word(found.p)[0]


def table(draws: int, seed: int = 0) -> pd.DataFrame:
    """Percent of draws with each word: one row per setting."""
    rows = []
    for images, spread, seeds, gap in product(IMAGES, SPREADS, SEEDS, GAPS):
        rng = np.random.default_rng([seed, images, spread, seeds, gap])
        words = pd.Series([word(rng, gap, spread, seeds, images) for _ in range(draws)])
        shares = words.value_counts(normalize=True).reindex(WORDS, fill_value=0) * 100
        place = {"test images": images or "the same", "spread": spread, "seeds": seeds}
        rows.append(place | {"true gap": gap} | shares.round().astype(int).to_dict())
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=count, default=1000)
    parser.add_argument("--out", type=Path, default=PLACE)
    given = parser.parse_args()
    if not given.out.parent.is_dir():
        raise FedReproError(f"no folder {given.out.parent}; make it or mend --out")
    text = table(given.draws).to_markdown(index=False)
    given.out.write_text(
        f"Percent of {given.draws} draws. Spread and gap are in points.\n\n{text}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    run(main)

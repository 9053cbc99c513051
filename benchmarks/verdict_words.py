"""How often each verdict is given for a known gap: a simulation of the rules of one cell.

Both sides have the same spread. The paper prints mean and deviation of three trials; or a mean of
three whose deviation cannot be used, as ADCOL; or one trial, as MPFT. With test images both sides
draw their own 400, at an accuracy of 60 %. The table's correction over many cells is left out.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from entry import count, run

from fedrepro.base.errors import FedReproError
from fedrepro.quantities.accuracy import binomial
from fedrepro.report.comparison import compared
from fedrepro.report.text import markdown

PLACE = Path(__file__).parent / "results" / "verdict-words.md"
GAPS, SPREADS, SEEDS, IMAGES = (0, 2, 3, 5), (1, 2, 4), (1, 2, 3, 5), (0, 400)
WORDS = ("agrees", "close", "open", "higher", "lower")


@dataclass(frozen=True)
class Print:
    """What a paper prints. rows: others of three seeds, whose spread one or two of ours take."""

    said: str
    trials: int
    usable: bool
    rows: int


PRINTS = (
    Print("The mean of three trials and their deviation", 3, True, 6),
    Print("The mean of three trials, its deviation not usable, as in ADCOL's tables", 3, False, 2),
    Print("One trial, as in MPFT's tables and FedPall's ablations", 1, False, 2),
)


def word(
    rng: np.random.Generator, given: Print, gap: float, spread: float, seeds: int, images: int
) -> str:
    """The verdict of one drawn cell."""
    drawn = 100**2 * binomial(0.6, images) if images else 0.0
    theirs = rng.normal(60, spread, given.trials) + rng.normal(0, drawn**0.5)
    ours = rng.normal(60 + gap, spread, seeds) + rng.normal(0, drawn**0.5)
    others, freedom = rng.normal(0, spread, (given.rows, 3)), 2.0 * given.rows + seeds - 1
    squares = others.var(axis=1).sum() * 3 + ours.var() * seeds
    pooled = squares / freedom, freedom  # its own row is one of the pool
    facts = {"pooled": pooled, "images": 2 * drawn, "tolerance": 2.0}
    std = float(theirs.std(ddof=1)) if given.usable else None
    found = compared(float(theirs.mean()), std, given.trials, ours.tolist(), **facts)
    assert found is not None
    return found.word(found.p)[0]


def table(given: Print, draws: int, seed: int = 0) -> pd.DataFrame:
    """Percent of draws with each word: one row per setting."""
    rows = []
    for images, spread, seeds, gap in product(IMAGES, SPREADS, SEEDS, GAPS):
        rng = np.random.default_rng([seed, images, spread, seeds, gap])
        words = pd.Series([word(rng, given, gap, spread, seeds, images) for _ in range(draws)])
        shares = words.value_counts(normalize=True).reindex(WORDS, fill_value=0) * 100
        place = {"test images": images or "the same", "spread": spread, "seeds": seeds}
        rows.append(place | {"true gap": gap} | shares.to_dict())
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=count, default=4000)
    parser.add_argument("--out", type=Path, default=PLACE)
    given = parser.parse_args()
    if not given.out.parent.is_dir():
        raise FedReproError(f"no folder {given.out.parent}; make it or mend --out")
    text = f"Percent of {given.draws} draws. Spread and gap are in points.\n"
    for one in PRINTS:
        found = table(one, given.draws)
        wrong = found[found["true gap"] == 0].groupby("seeds")[["higher", "lower"]]
        most = wrong.apply(lambda shares: shares.sum(axis=1).max()).map("{:.1f} %".format)
        text += f"\n<details><summary>{one.said}</summary>\n\n"
        text += f"Cells with one or two seeds take the spread pooled over {one.rows} rows of three "
        text += "seeds and their own row. Without a true gap, at most this share of a setting's "
        text += "draws is *higher* or *lower*: "
        text += ", ".join(f"{share} at n = {seeds}" for seeds, share in most.items()) + ".\n\n"
        found[[*WORDS]] = found[[*WORDS]].round().astype(int)
        text += f"{markdown(list(found), found.astype(str).values)}\n</details>\n"
    given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run(main)

"""The error that comes from the draw of the test images, against the bootstrap it stands for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrepro.federated.metrics import CURVE_COLUMNS
from fedrepro.quantities.noise import Noise, binomial, hits

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 200)


def run(name: str, predicted: list[np.ndarray[Any, Any]], keep: bool = True) -> Any:
    """A record of one domain whose rounds predicted so."""
    rows = [
        (number, "accuracy", "global", "here", "test", 100 * float((guess == LABELS).mean()))
        for number, guess in enumerate(predicted, 1)
    ]
    kept = {f"predicted/{n}/global/server/here": guess for n, guess in enumerate(predicted, 1)}
    return SimpleNamespace(
        run_id=name,
        curve=pd.DataFrame(rows, columns=list(CURVE_COLUMNS)),
        predictions=kept | {"labels/here": LABELS} if keep else {},
        data={"domains": ["here"], "clients": [{"name": "a", "domain": "here"}],
              "counts": [{"domain": "here", "split": "test", "images": 200}]},
    )  # fmt: skip


def guesses(right: float) -> np.ndarray[Any, Any]:
    wrong = RNG.random(200) > right
    return np.where(wrong, (LABELS + 1) % 3, LABELS)


def test_hits_are_shares_of_the_scored_rounds():
    record = run("a", [guesses(0.2), *(guesses(0.7) for _ in range(5))])
    found = hits(record, "last5")["here"]
    assert set(np.round(found * 5, 9)) <= {0, 1, 2, 3, 4, 5}
    assert 100 * found.mean() == pytest.approx(record.curve.value.tail(5).mean())
    assert hits(run("b", [guesses(0.5)], keep=False), "last") == {}


def test_paired_variance_is_what_a_bootstrap_over_images_gives():
    ours = [guesses(0.7) for _ in range(3)]
    theirs = [np.where(RNG.random(200) < 0.8, one, guesses(0.5)) for one in ours]

    def rows(**how: bool) -> list[list[Any]]:
        sides = (("a", ours), ("b", theirs))
        return [[run(f"{s}{i}", [g], **how) for i, g in enumerate(side)] for s, side in sides]

    found = Noise("last").variance(rows(), "here")
    right = [np.mean([g == LABELS for g in side], axis=0) for side in (ours, theirs)]
    draws = RNG.integers(0, 200, (4000, 200))
    again = (right[0] - right[1])[draws].mean(axis=1)
    assert found == pytest.approx(again.var(), rel=0.1)
    bound = Noise("last").variance(rows(keep=False), "here")
    assert bound == pytest.approx(sum(binomial(float(r.mean()), 200) for r in right))
    assert bound > found

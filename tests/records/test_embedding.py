"""Points for a figure: named, repeatable, far groups apart."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.records.embedding import tsne


def features(m: int, d: int) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    domain = np.arange(m) % 2
    values = generator.normal(size=(m, d)) + 20 * domain[:, None]
    return {"features": values.astype(np.float16), "labels": np.arange(m) % 3, "domain": domain}


@pytest.mark.parametrize(("m", "d"), [(60, 5), (40, 1), (5, 3)])
def test_tsne_names_its_points(m: int, d: int) -> None:
    record = features(m, d)
    frame = tsne(record, ("left", "right"), ("x", "y", "z"), seed=3)
    assert list(frame.columns) == ["x", "y", "domain", "cls"] and len(frame) == m
    assert list(frame.domain[:2]) == ["left", "right"] and list(frame.cls[:4]) == list("xyzx")
    pd.testing.assert_frame_equal(frame, tsne(record, ("left", "right"), tuple("xyz"), seed=3))


def test_tsne_keeps_far_groups_apart() -> None:
    frame = tsne(features(60, 5), ("left", "right"), tuple("xyz"))
    place = frame[["x", "y"]].to_numpy()
    left, right = (frame.domain == name for name in ("left", "right"))
    centres = [place[left].mean(0), place[right].mean(0)]
    near = np.linalg.norm(place[:, None] - np.array(centres), axis=2).argmin(1)
    assert (near == right).all()


def test_tsne_refuses_too_few_points() -> None:
    with pytest.raises(FedReproError, match="at least 5"):
        tsne(features(4, 2), ("a", "b"), tuple("xyz"))

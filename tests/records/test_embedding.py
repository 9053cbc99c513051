"""Points for a figure: named, repeatable, far groups apart."""

import numpy as np
import pandas as pd
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.records.embedding import tsne


def points(m: int, d: int) -> pd.DataFrame:
    domain = np.arange(m) % 2
    values = np.random.default_rng(0).normal(size=(m, d)) + 20 * domain[:, None]
    features = {"features": values.astype(np.float16), "labels": np.arange(m) % 3, "domain": domain}
    return tsne(features, ("left", "right"), ("x", "y", "z"), seed=3)


@pytest.mark.parametrize(("m", "d"), [(60, 5), (40, 1), (5, 3)])
def test_tsne_names_its_points_and_keeps_far_groups_apart(m, d):
    frame = points(m, d)
    assert list(frame.columns) == ["x", "y", "domain", "cls"] and len(frame) == m
    assert list(frame.domain[:2]) == ["left", "right"] and list(frame.cls[:4]) == list("xyzx")
    pd.testing.assert_frame_equal(frame, points(m, d))
    if m == 60:
        place, right = frame[["x", "y"]].to_numpy(), frame.domain == "right"
        centres = np.array([place[~right].mean(0), place[right].mean(0)])
        near = np.linalg.norm(place[:, None] - centres, axis=2).argmin(1)
        assert (near == right).all()


def test_tsne_refuses_too_few_points():
    with pytest.raises(FedReproError, match="at least 5"):
        points(4, 2)

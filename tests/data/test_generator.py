"""The generated domains: the same pictures every time, all classes, and what they are named by."""

from dataclasses import replace

import numpy as np
import pytest
from drawn_digits import generator
from drawn_digits.generator import GENERATED, generate

MINI = tuple(name for name in GENERATED if name.startswith("mini-"))


@pytest.mark.parametrize("name", MINI)
def test_mini_domain_has_both_parts_with_every_class(name):
    images, labels, part = generate(name, 28)
    channels = 1 if name == "mini-scanned" else 3
    assert images.shape == (len(labels), channels, 28, 28) and 1_700 <= len(labels) <= 1_800
    assert list(part) == sorted(part), "train comes first"
    shares = [np.mean(part[labels == label]) for label in range(10)]
    assert min(shares) > 0.19 and max(shares) < 0.21, "a class is not cut 80/20"
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) > 0.99 * len(images)


@pytest.mark.parametrize("name", ["mini-street", "syn-standin"])
def test_larger_counts_extend_smaller_ones(name, monkeypatch):
    monkeypatch.setitem(generator.RECIPES, name, replace(generator.RECIPES[name], counts=(15, 7)))
    few, few_labels, few_part = generate(name, 32)
    monkeypatch.setattr(generator, "CHUNK", 11)  # chunks may not show, nor the global generator
    monkeypatch.setitem(generator.RECIPES, name, replace(generator.RECIPES[name], counts=(40, 20)))
    np.random.seed(1)
    many, many_labels, many_part = generate(name, 32)
    for part, count in ((0, 15), (1, 7)):
        assert np.array_equal(few[few_part == part], many[many_part == part][:count])
        assert np.array_equal(few_labels[few_part == part], many_labels[many_part == part][:count])
    assert not np.array_equal(many[:15], many[40:55]), "test repeats train"

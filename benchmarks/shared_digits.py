"""How many test images of one domain show a digit that a client of another trains on: MNIST-M is
MNIST recoloured.

    python benchmarks/shared_digits.py [--papers adcol fedpall] [--data-root FOLDER] [--json FILE]

prints one row per pair of domains for the five digits of each paper and scale; nothing is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import entry
import numpy as np
import pandas as pd

from fedrepro import papers
from fedrepro.data.federation import divided, originals
from fedrepro.data.partition import Partition, taken
from fedrepro.data.splits import Indices


def overlap(partition: Partition, shared: Mapping[str, Indices]) -> pd.DataFrame:
    """How many test images of one domain have their digit among what clients of another train on,
    with both numbers of images. shared: the digit that each image of a domain shows."""
    clients = [client.train for client in partition.clients]
    train = {a: shown[taken(clients, a)] for a, shown in shared.items()}
    tests = {b: shown[taken(partition.tests.values(), b)] for b, shown in shared.items()}
    rows = [
        {
            "trained on": a,
            "training images": len(train[a]),
            "tested on": b,
            "test images": len(tests[b]),
            "of the same digit": int(np.isin(tests[b], train[a]).sum()),
        }
        for a in shared
        for b in shared
        if a != b
    ]
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="test images whose digit another domain trains on")
    parser.add_argument("--papers", nargs="+", default=["adcol", "fedpall"])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--json", type=Path, help="also write the rows there, for the book")
    args = parser.parse_args()
    frames = []
    for paper in args.papers:
        for scale in ("paper", "reduced"):
            spec = papers.load(paper).protocol("digits5-standin", scale).data
            arrays, _, partition = divided(spec, args.data_root)
            frame = overlap(partition, originals(arrays, args.data_root))
            frames.append(frame.assign(protocol=f"{paper}, {scale}").set_index("protocol"))
    rows = pd.concat(frames).reset_index()
    print(rows.to_string(index=False))
    if args.json is not None:
        args.json.write_text(rows.to_json(orient="records", indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)

"""How many test images show what a client trains on: MNIST-M is MNIST recoloured, and domains of
Office-Caltech-10 have pictures twice.

    python benchmarks/shared_images.py [--dataset digits5-standin] [--papers adcol fedpall]
        [--data-root FOLDER] [--json FILE]

prints one row per pair of domains that share images, for each paper and scale: `trained on too` is
the number of such test images, `left out` the number of training images that
`data.allocation.disjoint` removes. Nothing is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import entry
import numpy as np
import pandas as pd

from fedrepro import papers
from fedrepro.base.protocol import DataSpec
from fedrepro.data.federation import divided, originals
from fedrepro.data.partition import Partition, taken
from fedrepro.data.splits import Indices


def overlap(partition: Partition, shared: Mapping[str, Indices]) -> pd.DataFrame:
    """The pairs of domains of which the clients of one train on what a test image of the other
    shows, with the numbers of images. shared: the original of each image of a domain."""
    clients = [client.train for client in partition.clients]
    train = {a: shown[taken(clients, a)] for a, shown in shared.items()}
    tests = {b: shown[taken(partition.tests.values(), b)] for b, shown in shared.items()}
    rows = [
        {
            "trained on": a,
            "training images": len(train[a]),
            "tested on": b,
            "test images": len(tests[b]),
            "trained on too": int(np.isin(tests[b], train[a]).sum()),
            "left out": int(np.isin(train[a], tests[b]).sum()),
        }
        for a in shared
        for b in shared
    ]
    frame = pd.DataFrame(rows)
    return frame[frame["trained on too"] > 0]


def of(spec: DataSpec, root: Path | None = None) -> pd.DataFrame:
    """The same for the data of a protocol."""
    arrays, _, partition = divided(spec, root)
    return overlap(partition, originals(arrays, root))


def main() -> None:
    parser = argparse.ArgumentParser(description="test images that a client trains on")
    parser.add_argument("--papers", nargs="+", default=["adcol", "fedpall"])
    parser.add_argument("--dataset", default="digits5-standin")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--json", type=Path, help="also write the rows there, for the book")
    args = parser.parse_args()
    frames = []
    for paper in args.papers:
        for scale in ("paper", "reduced"):
            frame = of(papers.load(paper).protocol(args.dataset, scale).data, args.data_root)
            frames.append(frame.assign(protocol=f"{paper}, {scale}").set_index("protocol"))
    rows = pd.concat(frames).reset_index()
    print(rows.to_string(index=False))
    if args.json is not None:
        args.json.write_text(rows.to_json(orient="records", indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)

"""How many test images of one domain show a digit that a client of another trains on: MNIST-M is
MNIST recoloured.

    python benchmarks/shared_digits.py [--papers adcol fedpall] [--data-root FOLDER] [--json FILE]

prints a row a pair of domains for the five digits of each paper and scale; nothing is trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from fedrepro import papers
from fedrepro.data.federation import shared_digits

if __package__:
    from benchmarks import entry
else:
    import entry


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
            frame = shared_digits(spec, args.data_root)
            frames.append(frame.assign(protocol=f"{paper}, {scale}").set_index("protocol"))
    rows = pd.concat(frames).reset_index()
    print(rows.to_string(index=False))
    if args.json is not None:
        args.json.write_text(rows.to_json(orient="records", indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)

"""Where things lie: the checkout, where there is one, the folder of runs, files of methods."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# Of the checkout, whatever the working directory; without a checkout, of the working directory.
RUNS = CHECKOUT / "runs" if (CHECKOUT / "notebooks").is_dir() else Path("runs")
LOAD = "FEDREPRO_LOAD"  # in the environment: Python files with methods, joined as PATH is

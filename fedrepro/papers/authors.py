"""What a paper's authors keep in public files behind their printed numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

APART = 5.5  # units of a printed number's last digit from which the file contradicts it


class Domains(BaseModel):
    """Accuracy in percent by row and domain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]


class Authors(BaseModel):
    """values: by table, row and column, in the printed unit. test_sizes: images, by data set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repository: str
    formula: str
    test_sizes: dict[str, tuple[int, ...]]
    values: dict[str, dict[str, dict[str, float]]]
    domains: dict[str, Domains] = {}

    def value(self, table: str, row: str, column: str) -> float | None:
        """The files' number of a printed cell, None where there is none."""
        return self.values.get(table, {}).get(row, {}).get(column)


def contradicts(value: float | None, printed: str) -> bool:
    """Whether a file's number is no rounding of the printed one."""
    if value is None or printed == "-":
        return False
    decimals = len(printed.partition("±")[0].partition(".")[2])
    return bool(abs(value - float(printed.partition("±")[0])) > APART * 10.0**-decimals)

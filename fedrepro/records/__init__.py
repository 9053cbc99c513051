"""Run records, and the store that reads, resumes or trains them."""

from fedrepro.records.record import Record, RunSpec, run_id
from fedrepro.records.store import Probe, Store, federation_of

__all__ = ["Probe", "Record", "RunSpec", "Store", "federation_of", "run_id"]

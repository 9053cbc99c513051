"""Run records and the store that finds, resumes or trains them."""

from fedrepro.records.store import Probe, Record, RunSpec, Store, data_facts, federation_of, run_id

__all__ = ["Probe", "Record", "RunSpec", "Store", "data_facts", "federation_of", "run_id"]

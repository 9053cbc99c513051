"""Printed quantities, computed from records: one file each, found automatically."""

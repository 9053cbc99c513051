"""Printed quantities, computed from records; files of this folder are found automatically."""

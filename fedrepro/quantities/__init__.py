"""Printed quantities, computed from records."""

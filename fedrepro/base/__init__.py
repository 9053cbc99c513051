"""Shared by all packages: the protocol, random streams, errors, progress, files."""

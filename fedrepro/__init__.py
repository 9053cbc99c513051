"""Federated learning under feature skew: five papers re-run, every printed number beside ours."""

__version__ = "0.1.0"

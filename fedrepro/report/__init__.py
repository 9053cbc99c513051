"""Output for people: figures, tables, text, and functions for notebooks."""

"""Pictures of digits made from a seed: fonts, photo patches, street scenes."""

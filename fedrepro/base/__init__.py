"""What all rooms stand on: the protocol, random streams, errors, progress, files."""

"""The round: clients, server, aggregation, evaluation."""

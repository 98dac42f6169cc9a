"""The protocol between neighbours: messages, records, claims and their signatures."""

"""What neighbours say to each other: messages, records, claims and their signatures."""

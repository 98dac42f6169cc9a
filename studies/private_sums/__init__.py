"""Compare private networks with open ones between real agents, and test whether masked messages are uniform."""

"""Compare the rounds and bytes that methods need for the same accuracy (``make bench-communication``)."""

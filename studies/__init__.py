"""Studies of the library itself: what measures it, and does not ship with it."""

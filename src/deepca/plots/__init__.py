"""Pictures: each function draws one and returns its axes. Needs the ``plot`` extra (matplotlib)."""

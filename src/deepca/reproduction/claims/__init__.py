"""Judge the claims of the paper by measurements."""

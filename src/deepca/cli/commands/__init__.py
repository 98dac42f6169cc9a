"""One module per command: parse, call one function, show the answer."""

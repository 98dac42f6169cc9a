"""Commands, one module each: parse the options, call one function, show the result."""

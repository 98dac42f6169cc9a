"""Studies that measure the library; they are not part of the installed package."""

"""Output of commands: models, compared methods, trial networks, and the screen and log of an agent."""

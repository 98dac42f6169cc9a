"""What commands show: models, methods, the screen and the log of an agent."""

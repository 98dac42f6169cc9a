"""A running agent: links to neighbours, agreement on who takes part, the run, and promises that survive a restart."""

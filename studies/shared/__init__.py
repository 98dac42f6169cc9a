"""What studies share: problems, runs that are kept, pages with assertions and tables, and the command around it."""

"""Fault injection: random schedules of faults on simulated agents, and faults and attacks on real processes."""

"""Fault injection: random faults on simulated agents, and faults and attacks on agents in real processes."""

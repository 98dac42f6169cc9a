"""What happens to a run when things break: simulated schedules of faults, and real processes that are hurt."""

"""Families of cases: each a function that makes a problem from a Trial's random numbers and judges the answer."""

"""Families of cases: each function draws a problem from a Trial's generator and checks the library's answer."""

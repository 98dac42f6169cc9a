"""Decide whether the sums of a network can hide what each site adds to them."""

from __future__ import annotations

from typing import Literal

__all__ = ["Privacy", "privacy_obstacle"]

Privacy = Literal["private", "open"]
"""Mode of a network: sums hide the numbers of single sites, or do not."""
_PRIVATE_ALGORITHMS = ("auto", "krylov", "covariance")  # they send exact sums only


def privacy_obstacle(n_sites: int, algorithm: str, messages: str, on_loss: str) -> str:
    """Return why sums of such a network cannot hide what each site adds; an empty string if they can."""
    if n_sites == 2:
        return "private sums need at least three sites: each of two learns the other's numbers from the sum"
    if algorithm not in _PRIVATE_ALGORITHMS:
        return f"algorithm = {algorithm!r} gossips, which shows neighbours the numbers of a site"
    if messages != "float64":
        return f"messages = {messages!r} are those of gossip, which shows neighbours the numbers of a site"
    if on_loss == "shrink":
        return 'on_loss = "shrink" shows the numbers of a site that is lost, as the difference of two sums'
    return ""

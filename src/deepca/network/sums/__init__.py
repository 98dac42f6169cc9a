"""Exact sums over all agents: numbers as integers, messages of them, and the rounds in which they travel."""

from deepca.network.sums.integers import COUNT, WIDE, Unit, Words
from deepca.network.sums.messages import Addend, SumLayout, Total
from deepca.network.sums.rounds import SumTree

__all__ = ["COUNT", "WIDE", "Addend", "SumLayout", "SumTree", "Total", "Unit", "Words"]

"""What a run will take: a plan of rounds and bytes, and a simulation in time, before anything is sent."""

from deepca.planning.links import Links, Machines
from deepca.planning.links_csv import read_links
from deepca.planning.planner import Plan, plan
from deepca.planning.simulation import Simulation, simulate
from deepca.planning.timed import TimedNetwork

__all__ = ["Links", "Machines", "Plan", "Simulation", "TimedNetwork", "plan", "read_links", "simulate"]

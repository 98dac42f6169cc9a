"""Predict the cost of a run: plan rounds and bytes, or simulate it in time, before anything is sent."""

from deepca._util.renamed import renamed_names
from deepca.planning.inputs import bits_per_second, probed_eigenvalues, read_eigenvalues, seconds
from deepca.planning.links import Links, Machines
from deepca.planning.links_csv import read_links
from deepca.planning.metered import Cost, LinkSpeed
from deepca.planning.planner import PLANNED_ALGORITHMS, Plan, plan
from deepca.planning.rehearsal import Prediction
from deepca.planning.simulation import Simulation, simulate
from deepca.planning.timed import TimedNetwork

__all__ = [
    "PLANNED_ALGORITHMS",
    "Cost",
    "LinkSpeed",
    "Links",
    "Machines",
    "Plan",
    "Prediction",
    "Simulation",
    "TimedNetwork",
    "bits_per_second",
    "plan",
    "probed_eigenvalues",
    "read_eigenvalues",
    "read_links",
    "seconds",
    "simulate",
]

__getattr__ = renamed_names(__name__, Link="LinkSpeed", METHODS="PLANNED_ALGORITHMS")

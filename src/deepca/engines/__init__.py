"""Engines that execute a run: all agents in this process, or on the ranks of an MPI job."""

from deepca._util.renamed import renamed_names
from deepca.engines.local import ENGINES, Engine, create_engine

__all__ = ["ENGINES", "Engine", "create_engine"]

__getattr__ = renamed_names(__name__, engine_of="create_engine")

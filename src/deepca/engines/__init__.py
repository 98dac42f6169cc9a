"""Engines that execute a run: all agents in this process, or on the ranks of an MPI job."""

from deepca.engines.local import ENGINES, Engine, engine_of

__all__ = ["ENGINES", "Engine", "engine_of"]

"""Engines on which a run takes place: all agents in this process, or over the ranks of an MPI job."""

from deepca.engines.local import ENGINES, Engine, engine_of

__all__ = ["ENGINES", "Engine", "engine_of"]

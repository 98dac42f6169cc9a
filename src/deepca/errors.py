"""Everything deepca raises on purpose, in one small tree.

::

    DeepcaError
    ├── InvalidInput (also a ValueError)
    │   ├── DataError            rows or matrices that cannot be used; names the agent
    │   ├── GapError             equal eigenvalues where the answer would end; names k that work
    │   ├── StartError           a W⁰ that cannot be used
    │   ├── TopologyError        a graph or gossip matrix that cannot be used
    │   │   ├── DisconnectedError    names the components
    │   │   ├── AsymmetricError      names the edge
    │   │   └── MassError            parts that do not sum to the whole; names the agent
    │   ├── MixingError          a mixer that this gossip matrix does not allow
    │   └── ModelError           a model file that is damaged, or none
    │       └── NewerModelError      written by a newer version
    ├── NotFiniteError           NaN or Inf appeared during a run
    ├── MissingExtraError (also an ImportError)   an optional package is not installed
    └── NetworkError
        ├── PeerTimeout          a neighbour did not answer in time
        ├── PeerFailed           another agent of the same run raised
        ├── EpochChanged         not a fault: the network asks for a restart of tracking
        ├── Regroup              not a fault: agents have to gather anew, one was restarted or is left out
        ├── Unfinished           the deadline has passed; checkpoints are kept
        ├── Refused              a certificate that is not accepted
        └── FrameError           a neighbour sent what it may not send
            └── WrongNetwork         it belongs to another network

A message says what is wrong, where (agent, column, edge), and the way out.
"""

from __future__ import annotations

__all__ = [
    "AsymmetricError",
    "DataError",
    "DeepcaError",
    "DisconnectedError",
    "EpochChanged",
    "FrameError",
    "GapError",
    "InvalidInput",
    "MassError",
    "MissingExtraError",
    "MixingError",
    "ModelError",
    "NetworkError",
    "NewerModelError",
    "NotFiniteError",
    "PeerFailed",
    "PeerTimeout",
    "Refused",
    "Regroup",
    "StartError",
    "TopologyError",
    "Unfinished",
    "WrongNetwork",
]


class DeepcaError(Exception):
    """Root of all errors raised by deepca."""


class InvalidInput(DeepcaError, ValueError):
    """The caller gave something that cannot be used."""


class DataError(InvalidInput):
    """Rows, matrices or operators that cannot be used."""


class GapError(InvalidInput):
    """There is no gap in the spectrum where the answer would end, so that no subspace is the one asked for."""


class StartError(InvalidInput):
    """A starting point W⁰ that cannot be used."""


class TopologyError(InvalidInput):
    """A graph or gossip matrix that cannot be used."""


class DisconnectedError(TopologyError):
    """The graph falls into several components."""


class AsymmetricError(TopologyError):
    """An edge or a weight goes one way only."""


class MassError(TopologyError):
    """An agent sends more, or less, than it holds: the sum over all agents would not stay."""


class MixingError(InvalidInput):
    """A mixer that the gossip matrix at hand does not allow."""


class ModelError(InvalidInput):
    """A model file that cannot be used."""


class NewerModelError(ModelError):
    """A model file whose format this version does not know yet."""


class NotFiniteError(DeepcaError, ArithmeticError):
    """NaN or Inf appeared during a run."""


class MissingExtraError(DeepcaError, ImportError):
    """An optional package is needed and not installed."""


class NetworkError(DeepcaError):
    """Something between agents went wrong."""


class PeerTimeout(NetworkError, TimeoutError):
    """A neighbour did not answer within the deadline."""


class PeerFailed(NetworkError):
    """Another agent of the same run raised an error."""


class EpochChanged(NetworkError):
    """The network has entered a new epoch: tracking must begin again at the current W."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the network has entered epoch {epoch}; restart tracking at the current W")
        self.epoch = epoch


class Regroup(NetworkError):
    """The agents of a run have to gather anew before it can go on: one of them was restarted, came back, or is lost."""


class Unfinished(NetworkError, TimeoutError):
    """A run could not be brought to its end before the deadline; it can go on from its checkpoints."""


class Refused(NetworkError):
    """A certificate that is not accepted. ``why`` : for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class FrameError(NetworkError):
    """A neighbour sent what it may not send; its stream is closed."""


class WrongNetwork(FrameError):
    """A neighbour belongs to another network, or has another list of its sites."""

"""Define the exceptions that deepca raises on purpose.

::

    DeepcaError
    ├── InvalidInput (also a ValueError)
    │   ├── ParameterError       an argument, option or key has an invalid value
    │   ├── DataError            rows, matrices or operators are unusable
    │   │   └── PooledDataError      the rows of all agents together are unusable
    │   ├── GapError             no spectral gap after the k-th eigenvalue
    │   ├── StartError           the starting point W⁰ is unusable
    │   ├── TopologyError        a graph or gossip matrix is unusable
    │   │   ├── DisconnectedError    the graph is not connected; has the components
    │   │   ├── AsymmetricError      an edge or weight has no counterpart; has the edge
    │   │   └── MassError            an agent's weights do not sum to one; has the agent
    │   ├── MixingError          the mixer does not work on this network
    │   ├── ModelError           a model file is damaged or is not a model
    │   │   └── NewerModelError      the file was written by a newer version
    │   ├── AddressInUse         a site cannot listen on its address
    │   ├── DisclosureError      a site's disclosure rules forbid a run; has the rule
    │   ├── OldResult            a run of the same name finished earlier with different rows
    │   ├── CertificateError     the site's own certificate is unusable
    │   ├── RevocationListError  a certificate revocation list cannot be trusted
    │   └── EnrolmentError       the authority rejects a request or cannot open its key
    ├── NotFiniteError           NaN or infinity appeared during a run
    ├── InternalError            a bug in deepca; has the location
    ├── MissingExtraError (also an ImportError)   an optional dependency is not installed
    └── NetworkError
        ├── PeerTimeout          a neighbour did not answer in time; has the agents awaited
        ├── PeerFailed           another agent of the same run failed
        ├── Contradiction        broadcast numbers are inconsistent with local ones; has the sender
        ├── MaskError            a key for private sums is unusable; has the agent
        ├── SumMismatch          a private sum does not add up; has the plan
        ├── EpochChanged         control flow: tracking must restart in a new epoch
        ├── Regroup              control flow: the agents must assemble again
        ├── Unfinished           the deadline passed; checkpoints remain
        ├── Refused              a peer's certificate is not accepted
        ├── PeerFault            another site misbehaved; has the site and the reporter
        │   ├── BadArray             it sent an array that is not valid in this step
        │   └── DisputedResult       it proposed or signed a different result
        └── FrameError           a neighbour violated the protocol
            └── WrongNetwork         it belongs to another network

A message says what was found, where (agent, column, edge, file), and what to do. Code that handles an error reads its
attributes, never its message.
"""

from deepca.errors.base import DeepcaError, InternalError, MissingExtraError, NotFiniteError
from deepca.errors.disclosure import DisclosureError
from deepca.errors.inputs import (
    AddressInUse,
    AsymmetricError,
    CertificateError,
    DataError,
    DisconnectedError,
    EnrolmentError,
    GapError,
    InvalidInput,
    MassError,
    MixingError,
    ModelError,
    NewerModelError,
    OldResult,
    ParameterError,
    PooledDataError,
    RevocationListError,
    StartError,
    TopologyError,
)
from deepca.errors.networking import (
    BadArray,
    Contradiction,
    DisputedResult,
    EpochChanged,
    FrameError,
    MaskError,
    NetworkError,
    PeerFailed,
    PeerFault,
    PeerTimeout,
    Refused,
    Regroup,
    SumMismatch,
    Unfinished,
    WrongNetwork,
)

__all__ = [
    "AddressInUse",
    "AsymmetricError",
    "BadArray",
    "CertificateError",
    "Contradiction",
    "DataError",
    "DeepcaError",
    "DisclosureError",
    "DisconnectedError",
    "DisputedResult",
    "EnrolmentError",
    "EpochChanged",
    "FrameError",
    "GapError",
    "InternalError",
    "InvalidInput",
    "MaskError",
    "MassError",
    "MissingExtraError",
    "MixingError",
    "ModelError",
    "NetworkError",
    "NewerModelError",
    "NotFiniteError",
    "OldResult",
    "ParameterError",
    "PeerFailed",
    "PeerFault",
    "PeerTimeout",
    "PooledDataError",
    "Refused",
    "Regroup",
    "RevocationListError",
    "StartError",
    "SumMismatch",
    "TopologyError",
    "Unfinished",
    "WrongNetwork",
]

for _name in __all__:  # tracebacks show the name that callers import
    globals()[_name].__module__ = __name__
del _name

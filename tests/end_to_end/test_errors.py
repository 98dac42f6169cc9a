"""Test that exceptions keep their attributes when they are pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from deepca import errors
from deepca.consensus.broadcasts import checked_count
from tests.support.errors import raises

pytestmark = pytest.mark.simulator("no network")

ARGUMENTS: dict[type[errors.DeepcaError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    errors.OldResult: (("run", "run-2", "rows.csv"), {"known": False}),
    errors.CertificateError: (("it has expired",), {"reason": "expired"}),
    errors.RevocationListError: (("none",), {"reason": "missing", "path": "revoked.pem", "seen": 3}),
    errors.DisclosureError: (("min_rows", "too few rows"), {"value": 9}),
    errors.EnrolmentError: (("another",), {"reason": "fingerprint", "site": "north"}),
    errors.InternalError: (("KeyError", "node.py:1"), {}),
    errors.Contradiction: ((2, "probes", "off by 1"), {}),
    errors.EpochChanged: ((4,), {}),
    errors.ParameterError: (("rounds", 0, "a whole number of at least 1"), {}),
    errors.AddressInUse: (("north", "127.0.0.1:1"), {}),
    errors.PeerTimeout: (("agent 0 timed out",), {"agent": 0, "awaited": (1, 3), "iteration": 7, "round_number": 1}),
    errors.PeerFailed: (("agent 3 failed",), {"agent": 3}),
    errors.TopologyError: (("a loop",), {"edge": (1, 1), "suggestions": ("ring:4",)}),
    errors.DisconnectedError: (("two components",), {"components": ((0, 1), (2,)), "file": "links.csv"}),
    errors.NotFiniteError: (("overflow",), {"agent": 2, "index": 3, "phase": "mean"}),
    errors.DataError: (("row 3 is 'x'",), {"redacted": "row 3 is not a number", "row": 3, "value": "x"}),
    errors.Refused: (("it has expired",), {"reason": "expired"}),
    errors.PeerFault: (("south", "is not there"), {"by": "north"}),
    errors.BadArray: (("south", "NaN in its row counts"), {"phase": "counts", "iteration": 0, "agent": 1}),
    errors.MaskError: (("a key of low order",), {"agent": 2}),
    errors.SumMismatch: ((bytes(32), "sums of columns"), {}),
    errors.DisputedResult: (("south", "signs another result"), {"by": "north"}),
}


def kinds(of: type[errors.DeepcaError]) -> Iterator[type[errors.DeepcaError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


KINDS = {kind.__name__: kind for kind in kinds(errors.DeepcaError)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_pickling_an_error_keeps_its_message_and_attributes(kind: type[errors.DeepcaError]) -> None:
    args, named = ARGUMENTS.get(kind, (("the message",), {}))
    error = kind(*args, **named)
    error.report = "report.txt"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("value", [9.0, -1.0, 2.5, float("nan"), float("inf")])
def test_an_impossible_count_raises_contradiction(value: float) -> None:
    with raises(errors.Contradiction, sender=3, what="a number of probes"):
        checked_count(3, "a number of probes", value, 8)
    assert checked_count(3, "a number of probes", 8.0, 8) == 8

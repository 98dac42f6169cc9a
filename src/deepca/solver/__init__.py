"""Iterate until the answer is good enough, and prove that it is right: loop, stopping rules and certificate."""

from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import certify
from deepca.solver.loop import solve
from deepca.solver.observers import Observer, Start, Step, Trace
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import StopRule, Tolerance

__all__ = [
    "Certificate",
    "Observer",
    "Result",
    "Start",
    "Status",
    "StatusCode",
    "Step",
    "StopRule",
    "Tolerance",
    "Trace",
    "certify",
    "solve",
]

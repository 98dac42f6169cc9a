"""Certificates: how far an answer may be from the truth, and the products that show it."""

from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import certify

__all__ = ["Certificate", "certify"]

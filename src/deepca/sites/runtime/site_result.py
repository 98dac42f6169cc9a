"""The result of a run at one site, and the check of a result that other sites have computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepca.decomposition.model import Model
from deepca.decomposition.model.file import from_bytes
from deepca.errors import ModelError, NetworkError
from deepca.sites.protocol.claims import ResultClaim

if TYPE_CHECKING:
    from deepca.sites.runtime.run import SiteRun

__all__ = ["SiteResult", "check_matches", "site_result"]


@dataclass(frozen=True)
class SiteResult:
    """Result of a run at one site; ``content``, the model file, is the same at all sites."""

    content: bytes
    model: Model
    members: tuple[str, ...]  # sites whose rows it covers
    left_out: tuple[str, ...]  # all other sites
    compared: bool  # True if this site compared it with what it computed, False if it relies on a majority's signatures


def site_result(content: bytes, *, compared: bool) -> SiteResult:
    """Return the result with this content, which must be that of a model file."""
    model = from_bytes(content, Path("the agreed result"))
    return SiteResult(content, model, tuple(model.about["sites"]), tuple(model.about["left_out"]), compared)


def check_matches(job: SiteRun, content: bytes, claim: ResultClaim) -> None:
    """Raise NetworkError unless a result that most sites have signed matches this site's run and the claim about it.

    This check replaces the comparison byte by byte at a site that has not computed the result itself.
    """
    try:
        found = site_result(content, compared=False)
        model, settings, about = found.model, job.settings, found.model.about
        k = settings.n_components
        matches = {
            "run": about["run"] == job.run,
            "epoch": about["epoch"] == claim.epoch,
            "plan": about["plan"] == claim.plan.hex(),
            "privacy": about["privacy"] == ("open" if job.private is None else "private"),
            "sites": found.members == tuple(job.sites[site] for site in claim.members),
            "sites left out": found.left_out == tuple(name for name in job.sites if name not in found.members),
            "columns": model.n_features == job.source.d and model.columns == job.source.columns,
            "scaling": (model.scale is not None) == settings.scale,
            "centring": about["center"] == settings.center,
            "tolerance": about["tol"] == settings.tol,
            "algorithm": about["algorithm"] == settings.algorithm,
            "components": not isinstance(k, int) or model.n_components == k,
            "agents": about["agents"] == len(claim.members),
        }
    except (ModelError, KeyError, TypeError) as error:
        raise NetworkError(
            f"the result that most sites have signed cannot be read ({type(error).__name__}: {error}), so it was not "
            "written; check with the operators of the other sites that all sites have the same version of deepca"
        ) from None
    if not all(matches.values()):
        wrong = ", ".join(name for name, equal in matches.items() if not equal)
        raise NetworkError(
            f"the result that most sites have signed does not match this site's run: it differs in {wrong}, so it was "
            "not written; check these settings with the operators of the other sites"
        )

"""What the paper says its method extends to, each claim measured by short runs of its own on one data set.

Remark 3: any averaging that satisfies the condition on ρ will do, so directed graphs, gossip models and so on follow.
Remark 4 and the conclusion: the tracked power method serves eigenvalue decomposition, SVD, low-rank approximation and
spectral analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from deepca.consensus.mixers import Gossip, fastmix_eta
from deepca.consensus.pairwise import Pairwise, meetings_in
from deepca.reproduction.claims.baseline import ACCURACY, ROUNDS, Ground, Run, ground_of, run_over
from deepca.reproduction.claims.setting import Setting
from deepca.reproduction.claims.spectra import SPECTRA
from deepca.reproduction.pages.report import Claim, Verdict
from deepca.topology import directed, time_varying
from deepca.topology.graph import Topology

__all__ = ["EXTENSIONS", "as_good", "by_gossip", "compared", "judge_extensions"]

_MEETING_ROUNDS = (5, 20)
_GROWING = 12  # agents of the directed ring on which FastMix is shown to grow


def judge_extensions(setting: Setting) -> list[Claim]:
    """A claim for each of :data:`EXTENSIONS`; one that says so where the runs are too short to tell."""
    ground = ground_of(setting)
    if ground.static.iterations is None:
        return [
            Claim(
                "Remarks 3 and 4",
                f"{setting.data}: what the method extends to.",
                f"{setting.base.iterations} iterations are too few: not even the paper's own case reaches "
                f"{ACCURACY:.0e}, but {ground.static.end:.0e}.",
                "not judged",
                "Ask for more iterations, or for a k with a larger gap.",
            )
        ]
    return [claim(ground) for claim in EXTENSIONS]


# --------------------------------------------------------------------------------- Remark 3: averaging of other kinds


def directed_graphs(ground: Ground) -> Claim:
    """Messages that go one way."""
    m = ground.A.n_local
    digraphs = [directed.random_digraph(m, 0.5, seed=0), directed.random_digraph(m, 0.1, seed=0)]
    runs = by_gossip(ground, [*digraphs, directed.exponential(m)])
    return Claim(
        "Remark 3, Section 6",
        "Any averaging with a small enough ρ will do, so the results extend to directed graphs.",
        compared(ground, runs),
        as_good(ground, runs),
        "With column-stochastic weights, which out-degrees alone determine, and plain averages. FastMix itself does "
        f"not carry over: on a directed ring of {_GROWING} agents its recurrence grows by {_fastmix_growth():.2f} per "
        "round.",
    )


def changing_networks(ground: Ground) -> Claim:
    """Other links in every round."""
    m = ground.A.n_local
    networks = [time_varying.failing(ground.graph, 0.5, seed=0), time_varying.matchings(ground.graph, seed=0)]
    runs = by_gossip(ground, [*networks, time_varying.one_peer(m)])
    return Claim(
        "Remark 3 (“etc.”)",
        "Likewise to networks whose links change from round to round.",
        compared(ground, runs),
        as_good(ground, runs),
        "With averages that keep the sum in every round and remember nothing of earlier ones.",
    )


def gossip_models(ground: Ground) -> Claim:
    """One pair of neighbours at a time."""
    runs = {
        f"pairs that meet, {K} rounds ({meetings_in(K, ground.A.n_local)} meetings)": run_over(
            ground.setting, ground.A, ground.U, ground.graph, Pairwise(rounds=K)
        )
        for K in _MEETING_ROUNDS
    }
    return Claim(
        "Remark 3",
        "Likewise to gossip models, in which one pair of neighbours wakes at a time.",
        compared(ground, runs),
        as_good(ground, runs),
        "K rounds are K m/2 meetings, so that an agent sends K messages per iteration on average.",
    )


EXTENSIONS: tuple[Callable[[Ground], Claim], ...] = (
    directed_graphs,  # Remark 3, averaging of other kinds
    changing_networks,
    gossip_models,
    *SPECTRA,  # Remark 4, other problems
)
"""One function per claim, in the order of the page."""


# ------------------------------------------------------------------------------------------------------------- runs


def by_gossip(ground: Ground, networks: Sequence[Topology]) -> dict[str, Run]:
    """DeEPCA over each of them, from the same start, with as many rounds of plain averages as FastMix was given."""
    mix = Gossip(rounds=ROUNDS)
    return {place.name: run_over(ground.setting, ground.A, ground.U, place, mix) for place in networks}


def compared(ground: Ground, runs: Mapping[str, Run]) -> str:
    """The paper's case first."""
    parts = [_said("the paper's graph, FastMix", ground.static)]
    parts += [_said(name, run) for name, run in runs.items()]
    return (
        f"{ground.about}, K = {ROUNDS} unless said, iterations (rounds) until the worst agent is at most "
        f"{ACCURACY:.0e} from scipy's eigenvectors, and where it ends: {'; '.join(parts)}."
    )


def _said(name: str, run: Run) -> str:
    if run.iterations is None:
        return f"{name}: not reached ({run.end:.0e})"
    return f"{name}: {run.iterations} ({run.rounds:,}; {run.end:.0e})"


def as_good(ground: Ground, runs: Mapping[str, Run]) -> Verdict:
    """Whether all take as many iterations as the paper's own case: at most 10 % and 2 more, as other claims have it."""
    needed = [run.iterations for run in runs.values()]
    if ground.static.iterations is None or None in needed:
        return "differs" if set(needed) == {None} else "partly"
    most = 1.1 * ground.static.iterations + 2
    return "holds" if all(count is not None and count <= most for count in needed) else "partly"


def _fastmix_growth() -> float:
    """Of ``x ← (1+η) C x − η x_before`` with the η of the second modulus: the largest root of any mode."""
    ring = directed.ring(_GROWING)
    eta = fastmix_eta(ring.lambda2)
    return max(float(np.abs(np.roots([1.0, -(1.0 + eta) * mode, eta])).max()) for mode in ring.modes)

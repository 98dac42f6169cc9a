"""Judge the extensions that the paper claims, each by short runs on one data set.

Remark 3: any averaging that satisfies the condition on ρ is sufficient; directed graphs and gossip models follow.
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
_DIRECTED_RING_SIZE = 12  # agents of the directed ring on which FastMix is shown to diverge


def judge_extensions(setting: Setting) -> list[Claim]:
    """Judge each of :data:`EXTENSIONS`, or return one unjudged claim if the runs are too short."""
    ground = ground_of(setting)
    if ground.static.iterations is None:
        return [
            Claim(
                "Remarks 3 and 4",
                f"{setting.data}: extensions of the method.",
                f"{setting.base.iterations} iterations are too few: not even the paper's own case reaches "
                f"{ACCURACY:.0e}, but {ground.static.end:.0e}.",
                "not judged",
                "Ask for more iterations, or for a k with a larger gap.",
            )
        ]
    return [claim(ground) for claim in EXTENSIONS]


# --------------------------------------------------------------------------------- Remark 3: other kinds of averaging


def directed_graphs(ground: Ground) -> Claim:
    """Judge directed graphs."""
    m = ground.A.n_local
    digraphs = [directed.random_digraph(m, 0.5, seed=0), directed.random_digraph(m, 0.1, seed=0)]
    runs = by_gossip(ground, [*digraphs, directed.exponential(m)])
    return Claim(
        "Remark 3, Section 6",
        "Any averaging with a small enough ρ is sufficient, so the results extend to directed graphs.",
        compared(ground, runs),
        as_good(ground, runs),
        "With column-stochastic weights, which out-degrees alone determine, and plain averages. FastMix itself does "
        f"not carry over: on a directed ring of {_DIRECTED_RING_SIZE} agents its recurrence grows by "
        f"{_fastmix_growth():.2f} per round.",
    )


def changing_networks(ground: Ground) -> Claim:
    """Judge networks whose links change in every round."""
    m = ground.A.n_local
    networks = [time_varying.failing(ground.graph, 0.5, seed=0), time_varying.matchings(ground.graph, seed=0)]
    runs = by_gossip(ground, [*networks, time_varying.one_peer(m)])
    return Claim(
        "Remark 3 (“etc.”)",
        "They extend to networks whose links change from round to round.",
        compared(ground, runs),
        as_good(ground, runs),
        "With averages that keep the sum in every round and remember nothing of earlier ones.",
    )


def gossip_models(ground: Ground) -> Claim:
    """Judge gossip models, in which one pair of neighbours communicates at a time."""
    runs = {
        f"pairwise gossip, {K} rounds ({meetings_in(K, ground.A.n_local)} exchanges)": run_over(
            ground.setting, ground.A, ground.U, ground.graph, Pairwise(rounds=K)
        )
        for K in _MEETING_ROUNDS
    }
    return Claim(
        "Remark 3",
        "They extend to gossip models, in which one pair of neighbours wakes at a time.",
        compared(ground, runs),
        as_good(ground, runs),
        "K rounds are K m/2 exchanges, so an agent sends K messages per iteration on average.",
    )


EXTENSIONS: tuple[Callable[[Ground], Claim], ...] = (
    directed_graphs,  # Remark 3, other kinds of averaging
    changing_networks,
    gossip_models,
    *SPECTRA,  # Remark 4, other problems
)
"""One function per claim, in page order."""


# ------------------------------------------------------------------------------------------------------------- runs


def by_gossip(ground: Ground, networks: Sequence[Topology]) -> dict[str, Run]:
    """Run DeEPCA over each network with as many rounds of plain gossip as FastMix has in the paper's case."""
    mix = Gossip(rounds=ROUNDS)
    return {place.name: run_over(ground.setting, ground.A, ground.U, place, mix) for place in networks}


def compared(ground: Ground, runs: Mapping[str, Run]) -> str:
    """Describe the runs, the paper's case first."""
    parts = [_said("the paper's graph, FastMix", ground.static)]
    parts += [_said(name, run) for name, run in runs.items()]
    return (
        f"{ground.about}, K = {ROUNDS} unless stated, iterations (rounds) until the worst agent is at most "
        f"{ACCURACY:.0e} from scipy's eigenvectors, and where it ends: {'; '.join(parts)}."
    )


def _said(name: str, run: Run) -> str:
    if run.iterations is None:
        return f"{name}: not reached ({run.end:.0e})"
    return f"{name}: {run.iterations} ({run.rounds:,}; {run.end:.0e})"


def as_good(ground: Ground, runs: Mapping[str, Run]) -> Verdict:
    """Judge whether all runs take at most 10 % and 2 more iterations than the paper's own case."""
    needed = [run.iterations for run in runs.values()]
    if ground.static.iterations is None or None in needed:
        return "differs" if set(needed) == {None} else "partly"
    most = 1.1 * ground.static.iterations + 2
    return "holds" if all(count is not None and count <= most for count in needed) else "partly"


def _fastmix_growth() -> float:
    """Return the largest root of any mode of ``x ← (1+η) C x − η x_before``, with η from the second modulus."""
    ring = directed.ring(_DIRECTED_RING_SIZE)
    eta = fastmix_eta(ring.lambda2)
    return max(float(np.abs(np.roots([1.0, -(1.0 + eta) * mode, eta])).max()) for mode in ring.modes)

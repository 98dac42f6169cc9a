"""Judge the extensions that the paper claims, each with short runs on one data set.

Remark 3: any averaging that satisfies the condition on ρ is sufficient; directed graphs and gossip models follow.
Remark 4 and the conclusion: the tracked power method serves eigenvalue decomposition, SVD, low-rank approximation and
spectral analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from deepca.consensus.mixers import Gossip, fastmix_eta
from deepca.consensus.pairwise import Pairwise, pairs_in_rounds
from deepca.reproduction.claims.baseline import ACCURACY, ROUNDS, Baseline, Run, baseline_of, run_deepca
from deepca.reproduction.claims.setting import Setting
from deepca.reproduction.claims.spectra import SPECTRA
from deepca.reproduction.pages.report import Claim, Verdict
from deepca.topology import directed, time_varying
from deepca.topology.graph import Topology

__all__ = ["EXTENSIONS", "describe_runs", "judge_extensions", "run_with_gossip", "verdict_of_runs"]

_PAIRWISE_ROUNDS = (5, 20)
_DIRECTED_RING_SIZE = 12  # agents of the directed ring on which FastMix is shown to diverge


def judge_extensions(setting: Setting) -> list[Claim]:
    """Judge each of :data:`EXTENSIONS`, or return one unjudged claim if the runs are too short."""
    baseline = baseline_of(setting)
    if baseline.paper_run.iterations is None:
        return [
            Claim(
                "extensions",
                "Remarks 3 and 4",
                f"{setting.data}: extensions of the method.",
                f"{setting.base.iterations} iterations are too few: even the paper's own case ends at "
                f"{baseline.paper_run.end:.0e}, above {ACCURACY:.0e}.",
                "not judged",
                "Allow more iterations, or choose a k with a larger gap.",
            )
        ]
    return [judge(baseline) for judge in EXTENSIONS]


# --------------------------------------------------------------------------------- Remark 3: other kinds of averaging


def directed_graphs(baseline: Baseline) -> Claim:
    """Judge whether DeEPCA converges as fast on directed graphs, with push-sum gossip."""
    m = baseline.A.n_local
    digraphs = [directed.random_digraph(m, 0.5, seed=0), directed.random_digraph(m, 0.1, seed=0)]
    runs = run_with_gossip(baseline, [*digraphs, directed.exponential(m)])
    return Claim(
        "directed",
        "Remark 3, Section 6",
        "Any averaging with a small enough ρ is sufficient, so the results extend to directed graphs.",
        describe_runs(baseline, runs),
        verdict_of_runs(baseline, runs),
        "With column-stochastic weights, which out-degrees alone determine, and plain averages. FastMix itself does "
        f"not carry over: on a directed ring of {_DIRECTED_RING_SIZE} agents its recurrence grows by "
        f"{_fastmix_growth():.2f} per round.",
    )


def changing_networks(baseline: Baseline) -> Claim:
    """Judge whether DeEPCA converges as fast on networks whose links change in every round."""
    m = baseline.A.n_local
    networks = [time_varying.failing(baseline.graph, 0.5, seed=0), time_varying.matchings(baseline.graph, seed=0)]
    runs = run_with_gossip(baseline, [*networks, time_varying.one_peer(m)])
    return Claim(
        "time-varying",
        "Remark 3 (“etc.”)",
        "The results extend to networks whose links change from round to round.",
        describe_runs(baseline, runs),
        verdict_of_runs(baseline, runs),
        "With averages that preserve the sum in every round and do not depend on earlier rounds.",
    )


def gossip_models(baseline: Baseline) -> Claim:
    """Judge whether DeEPCA converges as fast if one pair of neighbours communicates at a time."""
    runs = {
        f"pairwise gossip, {K} rounds ({pairs_in_rounds(K, baseline.A.n_local)} exchanges)": run_deepca(
            baseline.setting, baseline.A, baseline.U, baseline.graph, Pairwise(rounds=K)
        )
        for K in _PAIRWISE_ROUNDS
    }
    return Claim(
        "gossip model",
        "Remark 3",
        "The results extend to gossip models, in which one pair of neighbours wakes at a time.",
        describe_runs(baseline, runs),
        verdict_of_runs(baseline, runs),
        "K rounds are K m/2 exchanges, so an agent sends K messages per iteration on average.",
    )


EXTENSIONS: tuple[Callable[[Baseline], Claim], ...] = (
    directed_graphs,  # Remark 3, other kinds of averaging
    changing_networks,
    gossip_models,
    *SPECTRA,  # Remark 4, other problems
)
"""Functions that judge one claim each, in the order of the page."""


# ------------------------------------------------------------------------------------------------------------- runs


def run_with_gossip(baseline: Baseline, networks: Sequence[Topology]) -> dict[str, Run]:
    """Run DeEPCA on each network, with as many rounds of plain gossip as the paper's case has of FastMix."""
    mix = Gossip(rounds=ROUNDS)
    return {place.name: run_deepca(baseline.setting, baseline.A, baseline.U, place, mix) for place in networks}


def describe_runs(baseline: Baseline, runs: Mapping[str, Run]) -> str:
    """Describe the runs, the paper's case first."""
    parts = [_described("the paper's graph, FastMix", baseline.paper_run)]
    parts += [_described(name, run) for name, run in runs.items()]
    return (
        f"{baseline.about}, K = {ROUNDS} unless stated, iterations until the worst agent is at most "
        f"{ACCURACY:.0e} from scipy's eigenvectors (rounds; final error): {'; '.join(parts)}."
    )


def _described(name: str, run: Run) -> str:
    if run.iterations is None:
        return f"{name}: not reached ({run.end:.0e})"
    return f"{name}: {run.iterations} ({run.rounds:,}; {run.end:.0e})"


def verdict_of_runs(baseline: Baseline, runs: Mapping[str, Run]) -> Verdict:
    """Judge whether all runs take at most 10 % plus 2 iterations more than the paper's own case.

    The verdict is "differs" if no run converges, and "partly" if some runs, or the paper's own case, do not converge,
    or if some runs take longer.
    """
    needed = [run.iterations for run in runs.values()]
    if baseline.paper_run.iterations is None or None in needed:
        return "differs" if set(needed) == {None} else "partly"
    most = 1.1 * baseline.paper_run.iterations + 2
    return "holds" if all(count is not None and count <= most for count in needed) else "partly"


def _fastmix_growth() -> float:
    """Return the growth per round of ``x ← (1+η) C x − η x_before`` on a directed ring, with η from |λ₂|."""
    ring = directed.ring(_DIRECTED_RING_SIZE)
    eta = fastmix_eta(ring.lambda2)
    return max(float(np.abs(np.roots([1.0, -(1.0 + eta) * mode, eta])).max()) for mode in ring.modes)

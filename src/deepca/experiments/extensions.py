"""What the paper says its method extends to, each claim measured by short runs of its own on one data set.

Remark 3: any averaging that satisfies the condition on ρ will do, so directed graphs, gossip models and so on follow.
Remark 4 and the conclusion: the tracked power method serves eigenvalue decomposition, SVD, low-rank approximation and
spectral analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from deepca import changing, directed
from deepca._typing import Array
from deepca.algorithms import DeEPCA
from deepca.errors import NotFiniteError
from deepca.experiments.problems import graph_of, operator_of
from deepca.experiments.report import Claim, Verdict
from deepca.experiments.setting import Setting
from deepca.experiments.studies import PAPER
from deepca.linalg import random_orthonormal
from deepca.mixing import FastMix, Gossip, Mixer, fastmix_eta
from deepca.networks import SimulatedNetwork
from deepca.observers import Trace
from deepca.operators import Operator
from deepca.solve import solve
from deepca.topology import Topology

__all__ = ["EXTENSIONS", "Ground", "Run", "as_good", "by_gossip", "compared", "ground_of", "judge_extensions"]

_ROUNDS = 5
_ACCURACY = 1e-8
_GROWING = 12  # agents of the directed ring on which FastMix is shown to grow


@dataclass(frozen=True)
class Run:
    """How a run went, by its worst agent: iterations and rounds to the accuracy (None: not reached), and its end."""

    iterations: int | None
    rounds: int | None
    end: float


@dataclass(frozen=True)
class Ground:
    """What extensions are compared with: the data, scipy's answer for the pooled rows, and the paper's own case.

    A : the ``A_j``.  U : top-k eigenvectors of their mean.  values : all its eigenvalues, descending.
    graph : the paper's.  static : DeEPCA on it, with FastMix.
    """

    setting: Setting
    A: Operator
    U: Array
    values: Array
    graph: Topology
    static: Run

    @property
    def about(self) -> str:
        return f"{self.setting.data}, k = {self.setting.k}"


def judge_extensions(setting: Setting) -> list[Claim]:
    """A claim for each of :data:`EXTENSIONS`; one that says so where the runs are too short to tell."""
    ground = ground_of(setting)
    if ground.static.iterations is None:
        return [
            Claim(
                "Remarks 3 and 4",
                f"{setting.data}: what the method extends to.",
                f"{setting.base.iterations} iterations are too few: not even the paper's own case reaches "
                f"{_ACCURACY:.0e}, but {ground.static.end:.0e}.",
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
    networks = [changing.failing(ground.graph, 0.5, seed=0), changing.matchings(ground.graph, seed=0)]
    runs = by_gossip(ground, [*networks, changing.one_peer(m)])
    return Claim(
        "Remark 3 (“etc.”)",
        "Likewise to networks whose links change from round to round.",
        compared(ground, runs),
        as_good(ground, runs),
        "With averages that keep the sum in every round and remember nothing of earlier ones.",
    )


EXTENSIONS: tuple[Callable[[Ground], Claim], ...] = (
    # Remark 3, averaging of other kinds: by_gossip, compared and as_good serve any Topology
    directed_graphs,
    changing_networks,
    # Remark 4, other problems: compare with scipy's answer for ground.A.mean() or for the pooled rows
)
"""One function per claim, in the order of the page."""


# ------------------------------------------------------------------------------------------------------------- runs


def ground_of(setting: Setting) -> Ground:
    paper = PAPER[setting.data]
    A = operator_of(setting.source, setting.data, paper.agents, paper.rows, "file")
    values, vectors = scipy.linalg.eigh(A.mean())
    U = np.ascontiguousarray(vectors[:, ::-1][:, : setting.k])
    graph = graph_of("paper", paper.agents, 0)
    static = _run(setting, A, U, graph, FastMix(rounds=_ROUNDS))
    return Ground(setting, A, U, values[::-1].copy(), graph, static)


def by_gossip(ground: Ground, networks: Sequence[Topology]) -> dict[Topology, Run]:
    """DeEPCA over each of them, from the same start, with as many rounds of plain averages as FastMix was given."""
    mix = Gossip(rounds=_ROUNDS)
    return {network: _run(ground.setting, ground.A, ground.U, network, mix) for network in networks}


def _run(setting: Setting, A: Operator, U: Array, network: Topology, mix: Mixer) -> Run:
    trace = Trace(U=U)
    W0 = random_orthonormal(A.d, setting.k, seed=0)
    algorithm = DeEPCA(A, W0, SimulatedNetwork(network), mix)
    try:
        solve(algorithm, max_iter=setting.base.iterations, observers=[trace], certify=False)
    except NotFiniteError:
        return Run(None, None, float("inf"))
    worst = trace.tan_theta_max
    above = np.flatnonzero(~(worst <= _ACCURACY))
    first = int(above[-1]) + 1 if above.size else 0
    if first == worst.size:
        return Run(None, None, float(worst[-1]))
    return Run(first + 1, int(trace.rounds[first]), float(worst[-1]))


def compared(ground: Ground, runs: dict[Topology, Run]) -> str:
    """The paper's case first."""
    parts = [_said("the paper's graph, FastMix", ground.static)]
    parts += [_said(network.name, run) for network, run in runs.items()]
    return (
        f"{ground.about}, K = {_ROUNDS}, iterations (rounds) until the worst agent is at most {_ACCURACY:.0e} from "
        f"scipy's eigenvectors, and where it ends: {'; '.join(parts)}."
    )


def _said(name: str, run: Run) -> str:
    if run.iterations is None:
        return f"{name}: not reached ({run.end:.0e})"
    return f"{name}: {run.iterations} ({run.rounds:,}; {run.end:.0e})"


def as_good(ground: Ground, runs: dict[Topology, Run]) -> Verdict:
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

"""Predict rounds, bytes and time of every method on a given network, before a run.

The real algorithms run, certificate included, on surrogate agents. The mean of their matrices has the expected
eigenvalues, and the matrices differ from each other as those of Gaussian samples with half as many rows, which is about
how much sites with real data differ. Runs that take too many iterations are extrapolated at the observed rate. If d is
large, fewer values represent the tail of the spectrum, and bytes are counted for the true d. A round takes one latency,
plus the time that its busiest sender needs to put its messages on the line one after another; rounds, control rounds
included, follow one another. Computing, receiving and protocol overhead take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack, get_args

import numpy.typing as npt

from deepca._util.options import with_options
from deepca._util.renamed import renamed_parameters
from deepca._util.typing import Array
from deepca._util.validation import NONE, Integer, OneOf, check
from deepca.errors import InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.planning.inputs import MAX_DIM, MAX_ROWS_PER_AGENT, ROWS_PER_AGENT, bits_per_second, seconds, spectrum_of
from deepca.planning.metered import Cost, LinkSpeed
from deepca.planning.methods import TREE_ALGORITHMS, ObserverFactory, fastest
from deepca.planning.rehearsal import Prediction, Rehearsal, SharedMatrix, SurrogateAgents
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["PLANNED_ALGORITHMS", "Plan", "plan"]

PLANNED_ALGORITHMS = ("accelerated", "krylov", "deepca", "covariance")
"""Algorithms that a plan compares; DePCA, with a fixed number of rounds, does not reach a tolerance."""
_REVEALS = "reveals every site's covariance"
_REVEALS_POOLED = "reveals the pooled covariance"


@dataclass(frozen=True)
class Plan:
    """Predicted costs of every method, and a recommendation.

    Parameters
    ----------
    topology : str
        Name of the network.
    agents, dim, components : int
        Number of agents, columns and components.
    tol : float
        Tolerance.
    link : LinkSpeed
        Latency and bandwidth.
    unreliable : bool
        Whether messages may be lost.
    messages : str
        Precision of gossip messages.
    rows_per_agent : int
        Number of rows of each agent.
    spectrum : str
        Description of the origin of the eigenvalues.
    tried_dim : int
        Number of columns of the surrogate agents; bytes are counted for ``dim``.
    preparation : Cost
        Cost of agreeing on counts, mean and spread, which every algorithm needs first; not part of the predictions.
    predictions : tuple of Prediction
        One per algorithm.
    recommended : str or None
        The fastest eligible algorithm; None if no algorithm is eligible.
    reason : str
        Reason for the recommendation.
    private : bool
        Whether agents mask what they add to sums.

    Examples
    --------
    >>> import deepca
    >>> plan = deepca.plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", algorithms=["krylov"])
    >>> plan.recommended
    'krylov'
    >>> plan["krylov"].reaches_tol
    True
    """

    topology: str
    agents: int
    dim: int
    components: int
    tol: float
    link: LinkSpeed
    unreliable: bool
    messages: str
    rows_per_agent: int
    spectrum: str
    tried_dim: int
    preparation: Cost
    predictions: tuple[Prediction, ...]
    recommended: str | None
    reason: str
    private: bool = False

    def __getitem__(self, algorithm: str) -> Prediction:
        """Return the prediction for one algorithm; raise ParameterError if the plan has none."""
        for prediction in self.predictions:
            if prediction.algorithm == algorithm:
                return prediction
        raise ParameterError("algorithm", algorithm, f"choose one of {_listed(self.predictions)}")


class PlanOptions(TypedDict, total=False):
    """Keyword parameters of :func:`plan` that have defaults and do not describe the data."""

    rows_per_agent: int | None
    messages: Messages
    algorithms: Sequence[str]
    allow_covariance: bool
    unreliable: bool
    private: bool
    seed: int
    observer_factory: ObserverFactory | None


@dataclass(frozen=True)
class _Options:
    """Values of PlanOptions."""

    rows_per_agent: int | None = None
    messages: Messages = "float64"
    algorithms: Sequence[str] = PLANNED_ALGORITHMS
    allow_covariance: bool = False
    unreliable: bool = False
    private: bool = False
    seed: int = 0
    observer_factory: ObserverFactory | None = None

    @property
    def reveals(self) -> str:
        """Remark about averaging covariances."""
        return _REVEALS_POOLED if self.private else _REVEALS

    def is_eligible(self, algorithm: str) -> bool:
        """Return whether an algorithm is eligible to be recommended."""
        if algorithm == "covariance" and not self.allow_covariance:
            return False
        if self.private and algorithm not in TREE_ALGORITHMS:
            return False
        return not (self.unreliable and algorithm in TREE_ALGORITHMS)


@renamed_parameters(methods="algorithms", watch="observer_factory")
@with_options(PlanOptions, _Options())
def plan(
    topology: Topology | str,
    n_components: int,
    *,
    latency: float | str,
    bandwidth: float | str,
    dim: int | None = None,
    eigenvalues: npt.ArrayLike | None = None,
    spectrum: str | None = None,
    tol: float = 1e-10,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Predict rounds, bytes and time of every method, and recommend the fastest.

    Parameters
    ----------
    topology : Topology or str
        Fixed, undirected network of at least two agents, or its name, such as ``"ring:50"``.
    n_components : int
        Number of components k.
    latency, bandwidth : float or str
        Seconds from 0 to 1e300 and bits per second from 1e-300 to 1e300, or text such as ``"30ms"`` and ``"30Mbit"``.
    dim : int, optional
        Number of columns; by default the number of eigenvalues.
    eigenvalues : array_like, optional
        Eigenvalues of the pooled covariance, at least k + 1, continued geometrically up to ``dim``; 1/i by default.
    spectrum : str, optional
        Description of the origin of the eigenvalues, for the report.
    tol : float, default=1e-10
        Tolerance.
    rows_per_agent : int, optional
        Number of rows of each agent, 1000 by default; with fewer rows, agents differ more.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages, for methods that gossip.
    algorithms : sequence of str
        Names from ``deepca.planning.PLANNED_ALGORITHMS``; all of them by default.
    allow_covariance : bool, default=False
        Whether "covariance", which reveals every site's covariance matrix, may be recommended.
    unreliable : bool, default=False
        Whether messages may be lost (which takes no time here), so that sums along a tree may not be recommended.
    private : bool, default=False
        Whether agents mask what they add to sums, so that methods that gossip may not be recommended.
    seed : int, default=0
        Seed of the surrogate agents, and of random networks.
    observer_factory : callable, optional
        Returns an observer, such as a progress bar, for the algorithm of a given name.

    Returns
    -------
    Plan
        Predictions and recommendation.

    Raises
    ------
    InvalidInput, GapError
        If a parameter, the network or the eigenvalues are unsuitable, or (GapError) leave no gap after λ_k.
    """
    chosen = _Options(**options)
    _check(tol, dim, chosen)
    expected = _Expected(*spectrum_of(eigenvalues, dim, n_components, spectrum), n_components, chosen.rows_per_agent)
    return _rehearse(_fixed_network(topology, chosen.seed), _link(latency, bandwidth), tol, expected, chosen)


@dataclass(frozen=True)
class _Expected:
    """Facts about the data of the run: all eigenvalues and their origin, k, and the number of rows of each agent."""

    values: Array
    source: str
    k: int
    given_rows: int | None

    @property
    def rows(self) -> int:
        """Number of rows of each agent."""
        return self.given_rows or ROWS_PER_AGENT

    def surrogates(self, m: int, seed: int) -> tuple[SurrogateAgents, SurrogateAgents]:
        """Return two sets of surrogate agents: the first for all algorithms but "covariance", the second for that."""
        agents = SurrogateAgents.of(self.values, self.k, m, self.rows, seed, max(4 * (self.k + 8), 64))
        if not isinstance(agents.A, SharedMatrix):
            return agents, agents
        # "covariance" sends whole matrices, so each of its agents needs a matrix of its own
        return agents, SurrogateAgents.of(self.values, self.k, m, self.rows, seed, 2 * self.k + 16)


def _fixed_network(topology: Topology | str, seed: int) -> Topology:
    """Return the network; raise InvalidInput unless it is fixed and undirected, with at least two agents."""
    net = from_name(topology, seed=seed) if isinstance(topology, str) else topology
    if not net.static_undirected:
        raise InvalidInput(
            f"{net.name} is directed or time-varying; give a fixed, undirected network (for others, deepca topology "
            "shows how fast their agents agree)",
            parameter="topology",
            value=net.name,
        )
    if net.n_agents < 2:
        raise InvalidInput(
            f"{net.name} has a single agent, which sends nothing; give at least two agents",
            parameter="topology",
            value=net.name,
        )
    return net


def _link(latency: float | str, bandwidth: float | str) -> LinkSpeed:
    return LinkSpeed(
        seconds(latency) if isinstance(latency, str) else latency,
        bits_per_second(bandwidth) if isinstance(bandwidth, str) else bandwidth,
    )


def _check(tol: float, dim: int | None, options: _Options) -> None:
    """Raise ParameterError unless :func:`plan` accepts these values."""
    Tolerance(tol)
    for algorithm in options.algorithms:
        if algorithm not in PLANNED_ALGORITHMS:
            raise ParameterError("algorithms", algorithm, f"choose from {', '.join(PLANNED_ALGORITHMS)}")
    check("dim", dim, Integer(1, MAX_DIM), NONE)
    check("rows_per_agent", options.rows_per_agent, Integer(1, MAX_ROWS_PER_AGENT), NONE)
    check("messages", options.messages, OneOf(*get_args(Messages)))


def _rehearse(net: Topology, link: LinkSpeed, tol: float, expected: _Expected, options: _Options) -> Plan:
    """Rehearse the algorithms on surrogates of the expected data and recommend one."""
    rehearsal = Rehearsal(
        net, link, not options.unreliable, tol, options.messages, options.observer_factory, options.private
    )
    agents, few = expected.surrogates(net.n_agents, options.seed)
    found = [rehearsal.prediction(name, few if name == "covariance" else agents) for name in options.algorithms]
    predictions = tuple(_with_remarks(one, options) for one in found)
    recommended, reason = _recommended(predictions, options)
    return Plan(
        topology=net.name,
        agents=net.n_agents,
        dim=expected.values.size,
        components=expected.k,
        tol=tol,
        link=link,
        unreliable=options.unreliable,
        private=options.private,
        messages=options.messages,
        rows_per_agent=expected.rows,
        spectrum=expected.source,
        tried_dim=agents.A.d,
        preparation=rehearsal.preparation(agents, expected.rows),
        predictions=predictions,
        recommended=recommended,
        reason=reason,
    )


def _with_remarks(one: Prediction, options: _Options) -> Prediction:
    """Add remarks that matter for the choice of the algorithm."""
    remarks = [one.remark] if one.remark else []
    if one.algorithm == "covariance":
        remarks.append(
            options.reveals if options.allow_covariance else f"{options.reveals}; not recommended unless allowed"
        )
    if one.algorithm not in TREE_ALGORITHMS and options.private:
        remarks.append("not possible in a private network, since it gossips")
    if one.algorithm in TREE_ALGORITHMS and options.unreliable:
        remarks.append("not recommended where messages get lost")
    if one.algorithm in TREE_ALGORITHMS and options.messages != "float64":
        remarks.append("with float64 messages, since sums along a tree need full precision")
    return replace(one, remark="; ".join(remarks))


def _recommended(predictions: Sequence[Prediction], options: _Options) -> tuple[str | None, str]:
    """Return the fastest eligible algorithm, or None if no algorithm is eligible, and the reason."""
    reaching = {p.algorithm: p.total.seconds for p in predictions if p.reaches_tol}
    allowed = {algorithm: time for algorithm, time in reaching.items() if options.is_eligible(algorithm)}
    best, reason = fastest(allowed, withheld=sorted(reaching.keys() - allowed.keys()))
    if best in TREE_ALGORITHMS:
        reason += "; it sums along a tree, so no message may get lost"
    if best == "covariance":
        reason += f", and it {options.reveals}"
    return best, reason


def _listed(predictions: Sequence[Prediction]) -> str:
    return ", ".join(prediction.algorithm for prediction in predictions)

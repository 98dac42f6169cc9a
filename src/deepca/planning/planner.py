"""Predict rounds, bytes and time of every method on a given network, before a run.

The real algorithms run, certificate included, on stand-in agents. The mean of their matrices has the expected
eigenvalues, and the matrices differ from each other as those of Gaussian samples with half as many rows, which is about
how much sites with real data differ. Runs that take too many iterations are extrapolated at the observed rate. If d is
large, fewer values represent the tail of the spectrum, and bytes are counted for the true d. A round takes one latency,
plus the time that its busiest sender needs to put its messages on the line one after another; rounds, control rounds
included, follow one another. Computing, receiving and protocol overhead take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy.typing as npt

from deepca._util.typing import Array
from deepca._util.validation import NONE, Integer, OneOf, check
from deepca.errors import InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.planning.inputs import MAX_DIM, MAX_ROWS_PER_AGENT, ROWS_PER_AGENT, bits_per_second, seconds, spectrum_of
from deepca.planning.metered import Cost, LinkSpeed
from deepca.planning.methods import TREE_METHODS, ObserverFactory, fastest
from deepca.planning.rehearsal import Prediction, Rehearsal, SharedMatrix, SurrogateAgents
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["METHODS", "Plan", "plan"]

METHODS = ("accelerated", "krylov", "deepca", "covariance")
"""Methods to compare; without DePCA, which does not reach a tolerance with a fixed number of rounds."""
_REVEALS = "reveals every site's covariance"


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
        Rows of each agent.
    spectrum : str
        Description of the origin of the eigenvalues.
    tried_dim : int
        Number of columns of the stand-ins; bytes are counted for ``dim``.
    preparation : Cost
        Cost of agreeing on counts, mean and spread, which every method needs first; not part of the predictions.
    predictions : tuple of Prediction
        One per method.
    recommended : str or None
        The fastest method that may be recommended.
    reason : str
        Reason for the recommendation.

    Examples
    --------
    >>> import deepca
    >>> plan = deepca.plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", methods=["krylov"])
    >>> plan.recommended
    'krylov'
    >>> plan["krylov"].reaches
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

    def __getitem__(self, method: str) -> Prediction:
        """Return the prediction for one method."""
        for prediction in self.predictions:
            if prediction.method == method:
                return prediction
        raise ParameterError("method", method, f"the plan has predictions for {_listed(self.predictions)}")


def plan(
    topology: Topology | str,
    n_components: int,
    *,
    latency: float | str,
    bandwidth: float | str,
    dim: int | None = None,
    eigenvalues: npt.ArrayLike | None = None,
    spectrum: str | None = None,
    tol: float = 1e-8,
    rows_per_agent: int | None = None,
    messages: Messages = "float64",
    methods: Sequence[str] = METHODS,
    allow_covariance: bool = False,
    unreliable: bool = False,
    seed: int = 0,
    watch: ObserverFactory | None = None,
) -> Plan:
    """Predict rounds, bytes and time of every method, and recommend the fastest.

    Parameters
    ----------
    topology : Topology or str
        Network, or its name with the number of agents, such as ``"ring:50"``.
    n_components : int
        Number of components k.
    latency, bandwidth : float or str
        Seconds and bits per second, or text such as ``"30ms"`` and ``"30Mbit"``.
    dim : int, optional
        Number of columns; by default the number of eigenvalues.
    eigenvalues : array_like, optional
        Eigenvalues of the pooled covariance, at least k + 1, continued geometrically up to ``dim``; 1/i by default.
    spectrum : str, optional
        Description of the origin of the eigenvalues, for the report.
    tol : float
        Tolerance.
    rows_per_agent : int, optional
        Rows of each agent, 1000 by default; with fewer rows, agents differ more.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages, for methods that gossip.
    methods : sequence of str
        Methods to compare.
    allow_covariance : bool
        Whether to recommend "covariance", which reveals every site's covariance matrix.
    unreliable : bool
        Whether messages may be lost, so that no method may sum along a tree; losses take no time in the plan.
    seed : int
        Seed of the stand-ins, and of random networks.
    watch : callable, optional
        Returns an observer for a method, such as a progress bar.

    Returns
    -------
    Plan
        Predictions and recommendation.
    """
    _check(tol, methods, dim, rows_per_agent, messages)
    expected = _Expected(*spectrum_of(eigenvalues, dim, n_components, spectrum), n_components, rows_per_agent)
    net, link, policy = _fixed_network(topology, seed), _link(latency, bandwidth), _Policy(allow_covariance, unreliable)
    return _rehearse(Rehearsal(net, link, not unreliable, tol, messages, watch), expected, methods, policy, seed)


@dataclass(frozen=True)
class _Expected:
    """Expected data: all eigenvalues and their origin, k, and the number of rows of each agent."""

    values: Array
    source: str
    k: int
    given_rows: int | None

    @property
    def rows(self) -> int:
        """Number of rows of each agent."""
        return self.given_rows or ROWS_PER_AGENT

    def stand_ins(self, m: int, seed: int) -> tuple[SurrogateAgents, SurrogateAgents]:
        """Return two sets of stand-ins: one for "covariance" (the second), and one for all other methods."""
        agents = SurrogateAgents.of(self.values, self.k, m, self.rows, seed, max(4 * (self.k + 8), 64))
        if not isinstance(agents.A, SharedMatrix):
            return agents, agents
        # "covariance" sends whole matrices, so each of its stand-ins needs its own
        return agents, SurrogateAgents.of(self.values, self.k, m, self.rows, seed, 2 * self.k + 16)


@dataclass(frozen=True)
class _Policy:
    """Rules for which methods may be recommended."""

    allow_covariance: bool
    unreliable: bool

    def allows(self, method: str) -> bool:
        """Return whether a method may be recommended."""
        if method == "covariance" and not self.allow_covariance:
            return False
        return not (self.unreliable and method in TREE_METHODS)


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
        seconds(latency) if isinstance(latency, str) else float(latency),
        bits_per_second(bandwidth) if isinstance(bandwidth, str) else float(bandwidth),
    )


def _check(tol: float, methods: Sequence[str], dim: int | None, rows_per_agent: int | None, messages: Messages) -> None:
    """Raise ParameterError unless :func:`plan` accepts these values."""
    Tolerance(tol)
    for method in methods:
        if method not in METHODS:
            raise ParameterError("methods", method, f"choose from {', '.join(METHODS)}")
    check("dim", dim, Integer(1, MAX_DIM), NONE)
    check("rows_per_agent", rows_per_agent, Integer(1, MAX_ROWS_PER_AGENT), NONE)
    check("messages", messages, OneOf(*get_args(Messages)))


def _rehearse(rehearsal: Rehearsal, expected: _Expected, methods: Sequence[str], policy: _Policy, seed: int) -> Plan:
    """Rehearse the methods on stand-ins for the expected data, and recommend one."""
    net = rehearsal.topology
    agents, few = expected.stand_ins(net.n_agents, seed)
    found = [rehearsal.prediction(name, few if name == "covariance" else agents) for name in methods]
    predictions = tuple(_with_remarks(one, rehearsal.messages, policy) for one in found)
    recommended, reason = _recommended(predictions, policy)
    return Plan(
        topology=net.name,
        agents=net.n_agents,
        dim=expected.values.size,
        components=expected.k,
        tol=rehearsal.tol,
        link=rehearsal.link,
        unreliable=policy.unreliable,
        messages=rehearsal.messages,
        rows_per_agent=expected.rows,
        spectrum=expected.source,
        tried_dim=agents.A.d,
        preparation=rehearsal.preparation(agents, expected.rows),
        predictions=predictions,
        recommended=recommended,
        reason=reason,
    )


def _with_remarks(one: Prediction, messages: Messages, policy: _Policy) -> Prediction:
    """Add remarks that matter for the choice of the method."""
    remarks = [one.remark] if one.remark else []
    if one.method == "covariance":
        remarks.append(_REVEALS if policy.allow_covariance else f"{_REVEALS}; not recommended unless allowed")
    if one.method in TREE_METHODS and policy.unreliable:
        remarks.append("not recommended where messages get lost")
    if one.method in TREE_METHODS and messages != "float64":
        remarks.append("with float64 messages, since sums along a tree need full precision")
    return replace(one, remark="; ".join(remarks))


def _recommended(predictions: Sequence[Prediction], policy: _Policy) -> tuple[str | None, str]:
    """Return the fastest method that may be recommended, and why."""
    best, reason = fastest({p.method: p.total.seconds for p in predictions if p.reaches and policy.allows(p.method)})
    if best in TREE_METHODS:
        reason += "; it sums along a tree, so no message may get lost"
    if best == "covariance":
        reason += f", and it {_REVEALS}"
    return best, reason


def _listed(predictions: Sequence[Prediction]) -> str:
    return ", ".join(prediction.method for prediction in predictions)

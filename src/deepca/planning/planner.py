"""What a run would cost, before it is made: rounds, bytes and time of every method on a given network.

The real algorithms run, proof included, on stand-in agents: the eigenvalues of their mean are those expected, and they
differ from each other as sites with so many rows do. A round takes one latency, and as long as its busiest sender needs
to put its messages on the line one after the other; rounds follow one another, control rounds included. Computing,
receiving and what protocols add count as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy.typing as npt

from deepca._util.typing import Array
from deepca._util.validation import OneOf, check
from deepca.errors import InvalidInput
from deepca.network.compression import Messages
from deepca.planning.inputs import ROWS_PER_AGENT, bits_per_second, seconds, spectrum_of
from deepca.planning.metered import Cost, LinkSpeed
from deepca.planning.methods import ON_A_TREE, Watch, fastest
from deepca.planning.rehearsal import Alike, Prediction, Rehearsal, StandIns
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["METHODS", "Plan", "plan"]

METHODS = ("accelerated", "krylov", "deepca", "covariance")
"""What is compared; DePCA is not, since with fixed rounds it reaches no tolerance."""
_REVEALS = "reveals every site's covariance"


@dataclass(frozen=True)
class Plan:
    """Every method's prediction, and which one to take.

    spectrum : where the eigenvalues come from, in words.  tried_dim : d of the stand-ins; bytes are those of ``dim``.
    preparation : counts, mean and spread, agreed before the iterations of any method, and no part of their costs.
    recommended : None where no method may be recommended.
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
        """The prediction for one method."""
        for prediction in self.predictions:
            if prediction.method == method:
                return prediction
        raise InvalidInput(f"there is no prediction for {method!r}; there is one for {_listed(self.predictions)}")


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
    watch: Watch | None = None,
) -> Plan:
    """Rounds, bytes and wall time of every method, and the one to take: that with the least time.

    The real algorithms run on stand-in agents whose mean has the given eigenvalues and which differ as Gaussian samples
    of half as many rows do, and what they send is counted; too many iterations are extrapolated at the rate seen. Where
    d is large, fewer values represent the tail of the spectrum, and bytes are counted for the true d. A round costs one
    latency plus the time its busiest sender needs for its messages, one after the other, through ``bandwidth``;
    computing, receiving and what protocols add cost nothing.

    Parameters
    ----------
    topology : a network, or its name with the number of agents, such as ``"ring:50"``.
    n_components : k, how many are wanted.
    latency, bandwidth : seconds and bits per second, or texts such as ``"30ms"`` and ``"30Mbit"``.
    dim : number of columns; by default, as many as eigenvalues are given.
    eigenvalues : of the pooled covariance, at least k + 1, in any order and unit. If there are fewer than ``dim``, the
        others continue geometrically at the pace of the second half. By default ``1/i``, which is no more than a guess.
    spectrum : where they come from, for the answer.
    rows_per_agent : fewer rows mean agents that differ more; 1000 by default. Sites of real data differ about as
        Gaussian samples of half as many rows do; where they are known to differ more, give a smaller number.
    messages : numbers as "float64", or coded as "float32" where a method can.
    allow_covariance : whether "covariance" may be recommended; it shows every site's covariance matrix to others.
    unreliable : messages may get lost, so no method that sums along a tree is recommended, and proofs do not, either.
        The losses themselves are not part of the plan.
    watch : gives an observer for each method, such as a progress bar.
    """
    net = _fixed_network(topology, seed)
    link = _link(latency, bandwidth)
    _check(tol, methods, rows_per_agent, messages)
    values, source = spectrum_of(eigenvalues, dim, n_components, spectrum)
    expected = _Expected(values, source, n_components, rows_per_agent or ROWS_PER_AGENT)
    rehearsal = Rehearsal(net, link, not unreliable, tol, messages, watch)
    return _rehearsed(rehearsal, expected, methods, _Policy(allow_covariance, unreliable), seed)


@dataclass(frozen=True)
class _Expected:
    """The data that a plan is made for: all eigenvalues and where they come from, k, and the rows of an agent."""

    values: Array
    source: str
    k: int
    rows: int

    def stand_ins(self, m: int, seed: int) -> tuple[StandIns, StandIns]:
        """Agents to rehearse with, and those for "covariance"."""
        agents = StandIns.of(self.values, self.k, m, self.rows, seed, max(4 * (self.k + 8), 64))
        if not isinstance(agents.A, Alike):
            return agents, agents
        # whole matrices are sent by stand-ins that all have their own
        return agents, StandIns.of(self.values, self.k, m, self.rows, seed, 2 * self.k + 16)


@dataclass(frozen=True)
class _Policy:
    """Which methods may be recommended."""

    allow_covariance: bool
    unreliable: bool

    def allows(self, method: str) -> bool:
        if method == "covariance" and not self.allow_covariance:
            return False
        return not (self.unreliable and method in ON_A_TREE)


def _fixed_network(topology: Topology | str, seed: int) -> Topology:
    """Return the network, which has at least two agents and the same links in every round."""
    net = from_name(topology, seed=seed) if isinstance(topology, str) else topology
    if not net.stays:
        raise InvalidInput(
            f"{net.name}: plans are made for networks whose links stay and go both ways; deepca topology shows how "
            "fast the agents of others agree"
        )
    if net.n_agents < 2:
        raise InvalidInput("one agent alone sends nothing; there is nothing to plan")
    return net


def _link(latency: float | str, bandwidth: float | str) -> LinkSpeed:
    return LinkSpeed(
        seconds(latency) if isinstance(latency, str) else float(latency),
        bits_per_second(bandwidth) if isinstance(bandwidth, str) else float(bandwidth),
    )


def _check(tol: float, methods: Sequence[str], rows_per_agent: int | None, messages: Messages) -> None:
    """Raise InvalidInput unless these are what :func:`plan` takes."""
    Tolerance(tol)
    for method in methods:
        if method not in METHODS:
            raise InvalidInput(f"method = {method!r}: choose from {', '.join(METHODS)}")
    if rows_per_agent is not None and rows_per_agent < 1:
        raise InvalidInput(f"rows_per_agent = {rows_per_agent}: every agent needs at least one row")
    check("messages", messages, OneOf(*get_args(Messages)))


def _rehearsed(rehearsal: Rehearsal, expected: _Expected, methods: Sequence[str], policy: _Policy, seed: int) -> Plan:
    """Rehearse the methods on stand-ins for the expected data, and choose one."""
    net = rehearsal.topology
    agents, few = expected.stand_ins(net.n_agents, seed)
    found = [rehearsal.prediction(name, few if name == "covariance" else agents) for name in methods]
    predictions = tuple(_remarked(one, rehearsal.messages, policy) for one in found)
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


def _remarked(one: Prediction, messages: Messages, policy: _Policy) -> Prediction:
    """The same with what to know before taking that method."""
    remarks = [one.remark] if one.remark else []
    if one.method == "covariance":
        remarks.append(_REVEALS if policy.allow_covariance else f"{_REVEALS}; not recommended unless allowed")
    if one.method in ON_A_TREE and policy.unreliable:
        remarks.append("not recommended where messages get lost")
    if one.method in ON_A_TREE and messages != "float64":
        remarks.append("with float64 messages, since sums along a tree need all digits")
    return replace(one, remark="; ".join(remarks))


def _recommended(predictions: Sequence[Prediction], policy: _Policy) -> tuple[str | None, str]:
    """The fastest of those that may be taken, and why."""
    best, reason = fastest({p.method: p.total.seconds for p in predictions if p.reaches and policy.allows(p.method)})
    if best in ON_A_TREE:
        reason += "; it sums along a tree, so no message may get lost"
    if best == "covariance":
        reason += f", and it {_REVEALS}"
    return best, reason


def _listed(predictions: Sequence[Prediction]) -> str:
    return ", ".join(prediction.method for prediction in predictions)

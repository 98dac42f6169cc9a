"""Test tracking of changing ``A_j``: it preserves the mean of the newest, and converges once they stay the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import deepca
from deepca import AcceleratedDeEPCA, Chebyshev, DeEPCA, FastMix, Gossip, follow, topology
from deepca.consensus.mixers import Mixer
from deepca.decomposition.streaming import discounted_covariances
from deepca.errors import DataError, ParameterError
from deepca.network import Network
from deepca.operators import from_matrices
from deepca.operators.linalg import random_orthonormal, tan_theta
from deepca.topology import Topology, directed, time_varying
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of, over_mpi
from tests.support.errors import raises
from tests.support.problems import close, orthogonal, spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
M, D, K = 8, 12, 3
NETWORKS: dict[str, tuple[Topology, Mixer]] = {
    "FastMix": (topology.ring(M), FastMix(rounds=4)),
    "Chebyshev": (topology.erdos_renyi(M, 0.5, seed=1), Chebyshev(rounds=4)),
    "few rounds": (topology.path(M), Gossip(rounds=1)),
    "chosen while running": (topology.ring(M), FastMix()),
    "directed": (directed.exponential(M), Gossip(rounds=4)),
    "changing": (time_varying.matchings(topology.complete(M), seed=3), Gossip(rounds=6)),
    "float32": (topology.ring(M), FastMix(rounds=4, messages="float32")),
}


def unrelated_operators(count: int, seed: int = 0) -> Iterator[Array]:
    """Yield ``A_j`` of all agents, unrelated to the previous ones, and indefinite every third time."""
    for t in range(count):
        yield spectrum_problem(M, D, spectrum(D, K), seed + 10 * t, heterogeneity=0.9, indefinite=t % 3 == 0)


def turning(angle: float, seed: int = 5) -> Iterator[Array]:
    """Yield ``A_j`` whose K leading directions rotate by an angle with every batch."""
    stack, Q = spectrum_problem(M, D, spectrum(D, K, gap=0.3), seed), orthogonal(D, seed)
    skew = np.zeros((D, D))
    skew[np.arange(K), K + np.arange(K)] = angle
    turn = Q @ scipy.linalg.expm(skew - skew.T) @ Q.T
    while True:
        yield stack
        stack = turn @ stack @ turn.T
        stack = (stack + np.swapaxes(stack, -1, -2)) / 2.0


def top(stack: Array) -> Array:
    return np.ascontiguousarray(scipy.linalg.eigh(stack.mean(axis=0))[1][:, ::-1][:, :K])


def local_parts(stacks: Iterator[Array], network: Network) -> Iterator[Array]:
    return (stack[network.local] for stack in stacks)


def tracker(network: Network, mixer: Mixer | None = None, A: Array | None = None) -> DeEPCA:
    first = next(unrelated_operators(1)) if A is None else A
    return DeEPCA(first[network.local], random_orthonormal(D, K, seed=1), network, mixer)


# -------------------------------------------------------------------------------------------------------- the invariant


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_of_S_is_that_of_the_newest_products(name: str) -> None:
    """The law holds over 200 unrelated batches, up to rounding that grows with the iterations."""
    place, mixer = NETWORKS[name]
    network, batches = network_of(place), list(unrelated_operators(40 if over_mpi() else 200))
    largest = max(float(np.linalg.norm(stack, 2, axis=(-2, -1)).max()) for stack in batches)
    followed = follow(tracker(network, mixer), local_parts(iter(batches), network), steps=2)
    W = None
    for stack, result in zip(batches, followed, strict=True):
        state, W_before = result.state, W
        W = everyone(state.W, M)
        AW, S = everyone(state.AW, M), everyone(state.S, M)
        drift = np.abs(S.mean(axis=0) - AW.mean(axis=0)).max()
        assert drift <= 20.0 * EPS * largest * state.t
        # AW is a product with the newest matrices, and not one with an earlier basis
        assert W_before is None or np.abs(stack @ W_before - AW).max() > 1e-6
        undone = np.linalg.solve(stack + 1e-13 * np.eye(D), AW)
        close(np.linalg.norm(undone, axis=-2), np.ones((M, K)), rtol=1e-6)
    assert state.t == 2 * len(batches)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, ENGINES[0]) for name in NETWORKS if name != "few rounds"
    ]  # they preserve the mean, but are too few to converge
    + [(name, kind) for name in ("FastMix", "directed") for kind in ENGINES[1:]],
)
def test_the_answer_becomes_exact_once_operators_stop_changing(name: str, kind: str) -> None:
    place, mixer = NETWORKS[name]
    last = next(islice(turning(0.05), 20, None))

    def work(network: Network) -> Array:
        moving = islice(turning(0.05), 20)
        algorithm = tracker(network, mixer)
        *_, moved = follow(algorithm, local_parts(moving, network), steps=3)
        stays = (last[network.local] for _ in range(40))
        *_, found = follow(algorithm, stays, steps=3, start=moved.state)
        assert found.agreed is not None
        assert found.agreed.disagreement < 1e-11
        assert found.state.t == 180
        return np.concatenate([moved.W, found.W, found.components * found.eigenvalues[..., None, :]], axis=-1)

    values = at_every_agent(kind, place, work).values
    U, worst = top(last), 1e-12 if name != "float32" else 1e-10
    assert tan_theta(U, values[..., :K]).max() > 1e-3  # the subspace did move
    assert tan_theta(U, values[..., K : 2 * K]).max() < worst
    want = scipy.linalg.eigvalsh(last.mean(axis=0))[::-1][:K]
    close(np.linalg.norm(values[..., 2 * K :], axis=-2), np.broadcast_to(want, (M, K)), rtol=100 * worst)


def test_more_steps_reduce_the_lag_and_take_the_expected_rounds() -> None:
    lags, place = [], topology.ring(M)
    for steps in (1, 3, 10):
        network, errors = network_of(place), []
        followed = follow(tracker(network, FastMix(rounds=4)), local_parts(turning(0.02), network), steps=steps)
        for stack, result in zip(islice(turning(0.02), 50), followed, strict=False):
            errors.append(float(tan_theta(top(stack), everyone(result.W, M)).max()))
            assert result.traffic.rounds == 4 * steps
            assert result.iterations == steps
        assert max(errors[30:]) < 0.1  # the lag stays bounded
        lags.append(float(np.mean(errors[30:])))
    assert lags[0] > 2.0 * lags[1] > 4.0 * lags[2]


def test_resuming_from_a_state_gives_bitwise_identical_results() -> None:
    network = network_of(topology.ring(M))
    algorithm = tracker(network, FastMix(rounds=3))
    whole = list(follow(algorithm, local_parts(unrelated_operators(6), network), steps=2))
    first = list(follow(algorithm, local_parts(islice(unrelated_operators(6), 3), network), steps=2))
    rest = list(
        follow(algorithm, local_parts(islice(unrelated_operators(6), 3, 6), network), steps=2, start=first[-1].state)
    )
    np.testing.assert_array_equal(rest[-1].state.S, whole[-1].state.S)
    assert rest[-1].state.t == whole[-1].state.t == 12


def test_operators_are_consumed_lazily() -> None:
    network, taken = network_of(topology.ring(M)), []

    def arriving() -> Iterator[Array]:
        for i, stack in enumerate(local_parts(unrelated_operators(5), network)):
            taken.append(i)
            yield stack

    followed = follow(tracker(network, FastMix(rounds=3)), arriving())
    assert not taken
    next(followed)
    next(followed)
    assert taken == [0, 1]


# --------------------------------------------------------------------------------------------------------- from rows


def test_forgetting_reduces_the_weight_of_earlier_rows() -> None:
    rng = np.random.default_rng(0)
    batches = [[rng.standard_normal((n, D)) for n in rng.integers(1, 9, M)] for _ in range(5)]
    for t, A in enumerate(discounted_covariances(batches, 0.7)):
        want = [sum(0.7 ** (t - s) * batches[s][j].T @ batches[s][j] for s in range(t + 1)) for j in range(M)]
        close(A.dense(), np.stack(want), atol=1e-12)
    *_, one = discounted_covariances([rows[2] for rows in batches], 0.7)
    close(one.dense(), want[2], atol=1e-12)
    assert one.batch == ()
    *_, all_of_them = discounted_covariances(batches)
    close(all_of_them.mean() * M, sum(X.T @ X for rows in batches for X in rows), atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- errors


def test_invalid_input_is_rejected() -> None:
    network = network_of(topology.ring(M))
    stack, W0 = next(unrelated_operators(1))[mine(M)], random_orthonormal(D, K, seed=1)
    for steps in (0, 1.5, True, None):
        with raises(ParameterError, parameter="steps", value=steps):
            follow(tracker(network), [stack], steps=steps)  # type: ignore[arg-type]
    accelerated = AcceleratedDeEPCA(stack, W0, network)
    with raises(ParameterError, parameter="algorithm", value=accelerated):
        follow(accelerated, [stack])  # type: ignore[arg-type]
    with raises(ParameterError, parameter="forgetting", value=2):
        discounted_covariances([], 2)
    with raises(DataError, parameter="batches", value=(1, 4, 4)):
        list(discounted_covariances([[np.ones((2, 3))], [np.ones((2, 4))]]))
    changed: list[tuple[Any, str]] = [(stack[:, 1:, 1:], "11")]  # another d
    if not over_mpi():
        changed.append((from_matrices(stack[:5]), "5"))  # fewer agents
    for A, number in changed:
        with pytest.raises(DataError, match=rf"\b{number}\b"):
            list(follow(tracker(network), [A]))


def test_the_old_name_of_discounted_covariances_works() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # only the first use of the module warns
        assert getattr(deepca.streaming, "faded") is discounted_covariances  # noqa: B009


def test_follow_is_public() -> None:
    assert deepca.follow is follow
    assert deepca.decomposition.streaming.follow is follow

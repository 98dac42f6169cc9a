"""Test DecentralizedPCA on the ranks of an MPI job: all ranks have scikit-learn's answer, or the same error.

``python -m tests.estimators.test_pca_mpi FOLDER``, started by mpiexec, is one rank: it makes all fits below, and writes
their results into the folder.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import deepca
from deepca import DecentralizedPCA
from deepca._util.typing import Array
from deepca.errors import DataError, InvalidInput
from tests.support.errors import raises
from tests.support.mpi_jobs import Job, mpi_job, names_in
from tests.support.paths import ROOT
from tests.support.problems import random_rows

RANKS = 3
D = 8
DATA = random_rows(6, [14, 30, 1, 22, 40, 9], D, seed=8)
EVERY = np.concatenate(DATA)
WHO = np.repeat(np.arange(6), [len(rows) for rows in DATA])
TIMES = np.random.default_rng(3).integers(0, 4, size=len(EVERY)).astype(np.float64)  # weights, some of them 0
NAMES = list("abcdefgh")
HELD = ((0,), (1, 2, 3), (4, 5))  # agents of each rank, where ranks hold several


def own(rank: int, rows: Sequence[Array] = DATA) -> list[Array]:
    return [rows[j] for j in HELD[rank]]


def own_weights(rank: int) -> list[Array]:
    return [TIMES[j == WHO] for j in HELD[rank]]


def ones(rank: int, more: int = 0) -> Any:
    """Return a weight for each row of a rank that is one agent."""
    return np.ones(len(DATA[rank]) + more)


def in_blocks(rows: Array) -> Callable[[], Iterator[Array]]:
    return lambda: (rows[i : i + 4] for i in range(0, len(rows), 4))


def pca(k: int | float = 3, **more: Any) -> DecentralizedPCA:
    return DecentralizedPCA(k, engine="mpi", **more)


# ----------------------------------------------------------------------------------------------------- work of one rank


def fit_kinds(rank: int, folder: Path) -> DecentralizedPCA:
    """Fit agents of all supported types at once."""
    np.save(folder / f"{rank}.npy", DATA[HELD[rank][-1]])
    path = folder / f"{rank}.npy"
    given: list[list[Any]] = [
        [sparse.csr_array(DATA[0])],
        [in_blocks(DATA[1]), DATA[2].tolist(), path],
        [iter(in_blocks(DATA[4])()), np.load(path, mmap_mode="r") if rank == 2 else None],
    ]
    return pca().fit_agents(given[rank])


def frame(rank: int) -> pd.DataFrame:
    """Return the rows of a rank, with columns in a different order on each rank."""
    order = np.random.default_rng(rank).permutation(D) if rank else np.arange(D)
    return pd.DataFrame(DATA[rank][:, order], columns=[NAMES[i] for i in order])


def fit_again(rank: int, folder: Path) -> DecentralizedPCA:
    model = pca(warm_start=True).fit_agents(own(rank))
    first = model.n_iter_
    model.fit_agents(own(rank))
    assert model.n_iter_ < first
    return model


def fit_in_parts(rank: int, folder: Path) -> DecentralizedPCA:
    """Fit in parts; rank 0 has no rows in the first part, and rank 2 has none in the last one."""
    model, halves = pca(), [np.array_split(rows, 2) for rows in own(rank)]
    model.partial_fit_agents([None if rank == 0 else first for first, _ in halves])
    model.partial_fit_agents([first if rank == 0 else None for first, _ in halves])
    return model.partial_fit_agents([rest[:0] if rank == 2 else rest for _, rest in halves]).partial_fit_agents(
        [rest if rank == 2 else None for _, rest in halves]
    )


FITS: dict[str, Callable[[int, Path], DecentralizedPCA]] = {
    "one array": lambda rank, _: pca().fit_agents(DATA[rank + 2]),
    "arrays": lambda rank, _: pca().fit_agents(own(rank)),
    "tuple": lambda rank, _: pca(topology=deepca.topology.ring(6)).fit_agents(tuple(own(rank))),
    "kinds": fit_kinds,
    "frames": lambda rank, _: pca().fit_agents([frame(rank)]),
    "one frame": lambda rank, _: pca().fit_agents(frame(rank)),
    "weights": lambda rank, _: pca().fit_agents(own(rank), sample_weight=own_weights(rank)),
    "weights of one array": lambda rank, _: pca().fit_agents(DATA[rank], sample_weight=2.0 * ones(rank)),
    "float32": lambda rank, _: pca().fit_agents([rows.astype(np.float32) for rows in own(rank)]),
    "float32 at some": lambda rank, _: pca().fit_agents(
        [rows.astype(np.float32) if rank else rows for rows in own(rank)]
    ),
    "all rows": lambda rank, _: pca().fit(EVERY),
    "all rows, five agents": lambda rank, _: pca(n_agents=5, topology="ring").fit(EVERY),
    "all rows, labels": lambda rank, _: pca().fit(EVERY, agents=WHO),
    "all rows, weights": lambda rank, _: pca().fit(EVERY, sample_weight=TIMES),
    "all rows, sparse": lambda rank, _: pca().fit(sparse.csr_array(EVERY)),
    "scaled": lambda rank, _: pca(scale=True, whiten=True).fit_agents(own(rank)),
    "share": lambda rank, _: pca(0.8).fit_agents(own(rank)),
    "allreduce": lambda rank, _: pca(allreduce=True).fit_agents(own(rank)),
    "tracking": lambda rank, _: pca(algorithm="deepca", topology="path").fit_agents(own(rank)),
    "tracking, allreduce": lambda rank, _: pca(algorithm="accelerated", allreduce=True).fit_agents(own(rank)),
    "again": fit_again,
    "checkpoints": lambda rank, folder: pca(checkpoints=folder / "kept").fit_agents(own(rank)),
    "in parts": fit_in_parts,
    "all rows, in parts": lambda rank, _: pca(n_agents=5).partial_fit(EVERY[:40]).partial_fit(EVERY[40:]),
    "fit, and more": lambda rank, _: (
        pca().fit_agents([rows[:6] for rows in own(rank)]).partial_fit_agents([rows[6:] for rows in own(rank)])
    ),
    "any seed": lambda rank, _: pca(random_state=None, n_agents=12, algorithm="deepca").fit(EVERY),
    "any seed, agents": lambda rank, _: pca(random_state=np.random.RandomState(rank)).fit_agents(own(rank)),
}


def unproven(rank: int) -> DecentralizedPCA:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return pca(max_iter=2, algorithm="deepca", rounds=2).fit_agents(own(rank))


def failing(rank: int) -> Iterator[Array]:
    yield DATA[rank]
    if rank == 1:
        raise OSError("the tape is torn")


def with_nan(rank: int) -> Array:
    X = EVERY.copy()
    X[7, 2] = np.nan if rank == 1 else 0.0
    return X


ERRORS: dict[str, tuple[Callable[[int], object], str, int | None, dict[str, Any]]] = {
    "nothing": (
        lambda rank: pca().fit_agents([] if rank == 1 else own(rank)),
        "DataError",
        1,
        {"parameter": "Xs", "value": "()"},
    ),
    "agents": (
        lambda rank: pca(n_agents=7).fit_agents(own(rank)),
        "ParameterError",
        None,
        {"parameter": "n_agents", "value": 7},
    ),
    "columns": (
        lambda rank: pca().fit_agents(DATA[rank][:, : D - rank // 2]),
        "DataError",
        2,
        {"agent": 2, "value": 7},
    ),
    "names": (
        lambda rank: pca().fit_agents([frame(rank) if rank else DATA[0]]),
        "DataError",
        1,
        {"agent": 1, "column": None},
    ),
    "weights": (
        lambda rank: pca().fit_agents(DATA[rank], sample_weight=ones(rank, int(rank == 2))),
        "DataError",
        2,
        {"parameter": "sample_weight", "agent": 2, "value": "(2,)"},
    ),
    "reading": (lambda rank: pca().fit_agents([lambda: failing(rank)]), "OSError", 1, {}),
    "one value": (lambda rank: pca().fit(with_nan(rank)), "DataError", 1, {"agent": None, "row": 7, "column": 2}),
    "rows of its own": (
        lambda rank: pca().fit(np.concatenate(own(rank))),
        "DataError",
        None,
        {"parameter": "X", "value": 1},
    ),
    "weights of its own": (
        lambda rank: pca().fit(EVERY, sample_weight=TIMES + (rank == 2)),
        "DataError",
        None,
        {"parameter": "X", "value": 2},
    ),
    "later columns": (
        lambda rank: pca().partial_fit_agents(own(rank)).partial_fit_agents([X[:, : D - rank // 2] for X in own(rank)]),
        "DataError",
        2,
        {"agent": 4, "value": 7},
    ),
    "later agents": (
        lambda rank: pca().partial_fit_agents(own(rank)).partial_fit_agents(own(rank)[:1]),
        "DataError",
        None,
        {"parameter": "Xs", "value": 3},
    ),
    "no rows": (lambda rank: pca().partial_fit_agents([None]), "DataError", None, {"parameter": None, "agent": None}),
    "few agents": (lambda rank: pca(n_agents=2).fit(EVERY), "TopologyError", None, {}),
    "topology": (
        lambda rank: pca(topology=deepca.topology.ring(5)).fit_agents(own(rank)),
        "InvalidInput",
        None,
        {"parameter": "topology", "value": 5},
    ),
    "components": (lambda rank: pca(9).fit_agents(own(rank)), "PooledDataError", None, {"agent": None}),
    "unproven": (unproven, "ConvergenceWarning", None, {}),
}
ARRAYS = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "mean_",
    "noise_variance_",
    "scale_",
)


def found_in(model: DecentralizedPCA) -> dict[str, Any]:
    """Return everything that must be the same on all ranks."""
    assert model.result_.certificate is not None
    numbers = {
        name: np.asarray(getattr(model, name), dtype=object if getattr(model, name) is None else None)
        for name in ARRAYS
    }
    texts = {
        "n_components": model.n_components_,
        "n_samples": model.n_samples_,
        "n_features": model.n_features_in_,
        "n_iter": model.n_iter_,
        "names": list(getattr(model, "feature_names_in_", ())),
        "columns": model.model_.columns,
        "agents": model.topology_.n_agents,
        "traffic": repr(model.traffic_),
        "digest": model.result_.certificate.digest,
        "status": model.result_.status.code,
    }
    kept = {name: value for name, value in numbers.items() if value.dtype != object}
    return {**kept, "gossip": model.topology_.gossip_sparse.toarray(), "texts": json.dumps(texts)}


def be_a_rank(folder: Path) -> None:
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    for name, fit in FITS.items():
        model = fit(rank, folder)
        more: dict[str, Any] = {}
        if "frame" in name:
            more["scores"] = model.transform(frame(rank)[list(model.feature_names_in_)])
        more |= found_in(model)
        np.savez(folder / f"{name}.{rank}.npz", **more)
    for name, (act, _, _, facts) in ERRORS.items():
        try:
            act(rank)
        except Exception as error:
            found = {fact: getattr(error, fact, "missing") for fact in facts}
            said = [type(error).__name__, str(error), isinstance(error, (InvalidInput, OSError, Warning)), found]
            (folder / f"{name}.{rank}.json").write_text(json.dumps(said, default=repr), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job]:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, mpi_job(RANKS, sys.executable, "-m", "tests.estimators.test_pca_mpi", folder, cwd=ROOT)


def of_ranks(job: tuple[Path, Job], name: str) -> list[dict[str, Any]]:
    files = [job[0] / f"{name}.{rank}.npz" for rank in range(RANKS)]
    if not all(file.exists() for file in files):
        pytest.fail(f"the job did not finish {name}\n{job[1].said}")
    return [dict(np.load(file)) for file in files]


@cache
def pooled(name: str) -> tuple[Array, int | float]:
    """Return the pooled rows for scikit-learn, and the number of components."""
    rows = {
        "one array": np.concatenate(DATA[2:5]),
        "frames": np.concatenate(DATA[:3]),
        "one frame": np.concatenate(DATA[:3]),
        "weights": np.repeat(EVERY, TIMES.astype(int), axis=0),
        "all rows, weights": np.repeat(EVERY, TIMES.astype(int), axis=0),
        "weights of one array": np.repeat(np.concatenate(DATA[:3]), 2, axis=0),
        "float32": EVERY.astype(np.float32).astype(np.float64),
        "float32 at some": np.concatenate([DATA[0], np.concatenate(DATA[1:]).astype(np.float32)]),
        "scaled": StandardScaler().fit_transform(EVERY),
    }
    return rows.get(name, EVERY), 0.8 if name == "share" else 3


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", list(FITS))
def test_every_rank_has_the_result_of_scikit_learn(job: tuple[Path, Job], name: str) -> None:
    found = of_ranks(job, name)
    rows, k = pooled(name)
    want = PCA(k, svd_solver="full").fit(rows)
    atol = 1e-5 if name == "float32" else 1e-8
    for here in found:
        np.testing.assert_allclose(here["components_"], want.components_, atol=atol)
        np.testing.assert_allclose(here["explained_variance_"], want.explained_variance_, rtol=atol)
        np.testing.assert_allclose(here["explained_variance_ratio_"], want.explained_variance_ratio_, rtol=atol)
        np.testing.assert_allclose(here["singular_values_"], want.singular_values_, rtol=atol)
        np.testing.assert_allclose(here["noise_variance_"], want.noise_variance_, rtol=atol, atol=atol)
        np.testing.assert_allclose(here["mean_"], EVERY.mean(axis=0) if name == "scaled" else want.mean_, atol=atol)
        texts = json.loads(str(here["texts"]))
        assert (texts["n_features"], texts["n_samples"], texts["status"]) == (D, len(rows), "converged")
    for here in found[1:]:  # the same bits everywhere
        assert here.keys() == found[0].keys()
        for attribute in (*(name for name in ARRAYS if name in here), "gossip", "texts"):
            assert here[attribute].dtype == found[0][attribute].dtype
            assert here[attribute].tobytes() == found[0][attribute].tobytes(), attribute
    assert found[0]["components_"].dtype == (np.float32 if name == "float32" else np.float64)
    assert ("scale_" in found[0]) == (name == "scaled")


@pytest.mark.xdist_group("mpi")
def test_every_rank_may_have_several_agents(job: tuple[Path, Job]) -> None:
    said = {name: json.loads(str(of_ranks(job, name)[0]["texts"]))["agents"] for name in FITS}
    assert said["one array"] == said["frames"] == said["one frame"] == 3
    assert said["arrays"] == said["kinds"] == said["all rows, labels"] == 6
    assert (said["all rows, five agents"], said["any seed"]) == (5, 12)


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", ["frames", "one frame"])
def test_columns_have_one_order_at_all_ranks(job: tuple[Path, Job], name: str) -> None:
    """The order is that of rank 0's first agent; scores of the rows of other ranks are right nevertheless."""
    want = PCA(3, svd_solver="full").fit(np.concatenate(DATA[:3]))
    for rank, here in enumerate(of_ranks(job, name)):
        texts = json.loads(str(here["texts"]))
        assert texts["names"] == texts["columns"] == NAMES
        np.testing.assert_allclose(here["scores"], want.transform(DATA[rank]), atol=1e-8)


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", list(ERRORS))
def test_all_ranks_raise(job: tuple[Path, Job], name: str) -> None:
    """All ranks raise the same error, so that a script can handle it."""
    folder, done = job
    files = [folder / f"{name}.{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), done.said
    said = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert said[0] == said[1] == said[2]
    kind, text, known, facts = said[0]
    _, expected, rank, expected_facts = ERRORS[name]
    assert (kind, facts) == (expected, expected_facts)
    assert text.startswith(f"rank {rank}: ") == (rank is not None), text
    assert known


@pytest.mark.xdist_group("mpi")
def test_the_job_succeeds_and_removes_its_checkpoints(job: tuple[Path, Job]) -> None:
    folder, done = job
    assert (done.code, done.left) == (0, ()), done.said
    assert (done.stdout, done.stderr) == ("", "")
    kept = [names_in(path) for path in sorted((folder / "kept").iterdir())]
    assert kept == [[], [], []]  # checkpoints are deleted after the fit


# ------------------------------------------------------------------------------------------ one rank, without mpiexec


@pytest.mark.parametrize("allreduce", [False, True])
def test_a_single_rank_gives_the_pooled_pca(allreduce: bool) -> None:
    """A script for several ranks can be tested without mpiexec."""
    want = PCA(3, svd_solver="full").fit(EVERY)
    for model in (
        pca(allreduce=allreduce).fit_agents(DATA),
        pca(allreduce=allreduce).fit_agents(EVERY),  # one agent
        pca(allreduce=allreduce).fit(EVERY),
        pca(allreduce=allreduce).fit(EVERY, agents=WHO),
    ):
        np.testing.assert_allclose(model.components_, want.components_, atol=1e-8)
        np.testing.assert_allclose(model.explained_variance_, want.explained_variance_, rtol=1e-8)


def test_a_single_rank_raises_the_error_itself() -> None:
    with raises(DataError, agent=None, row=7, column=2):
        pca().fit(with_nan(1))
    with pytest.raises(ZeroDivisionError):
        pca().fit_agents([lambda: (DATA[0] / 1 if i else [[1 // 0]] for i in range(2))])
    with pytest.warns(ConvergenceWarning):
        pca(max_iter=2, algorithm="deepca", rounds=2).fit_agents(DATA)


def test_invalid_engines_are_rejected() -> None:
    with raises(InvalidInput, parameter="engine", value="slurm"):
        DecentralizedPCA(2, engine="slurm").fit(EVERY)
    with raises(InvalidInput, parameter="allreduce", value=True):
        DecentralizedPCA(2, allreduce=True).fit(EVERY)


def test_checkpoints_require_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(InvalidInput, parameter="folder", file=str(tmp_path / "file")):
        pca(checkpoints=tmp_path / "file").fit_agents(DATA)
    DecentralizedPCA(2, checkpoints=str(tmp_path / "kept")).fit(EVERY)  # the simulator writes checkpoints, too
    assert [names_in(path) for path in (tmp_path / "kept").iterdir()] == [[]]


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))

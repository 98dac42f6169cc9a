"""Data that cannot be used: what is wrong, at which agent, in which row and column, and the way out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

import deepca
from deepca import DecentralizedPCA
from deepca._util.typing import csr
from deepca.data.sources import as_source
from deepca.decomposition.fit import fit as fit_rows
from deepca.decomposition.settings import ALGORITHMS, Settings
from deepca.errors import DataError, InvalidInput, ParameterError, TopologyError
from deepca.network import SimulatedNetwork
from deepca.operators import Form
from tests.support.problems import close, random_rows

Array = npt.NDArray[np.float64]
D = 5


def parts(seed: int = 0) -> list[Array]:
    """Rows of three agents."""
    return random_rows(3, [20, 30, 25], D, seed, decay=0.6)


def frame(X: Array, names: str = "abcde") -> Any:
    return pytest.importorskip("pandas").DataFrame(X, columns=list(names))


def in_blocks(X: Any, size: int = 6) -> Iterator[Any]:
    return (X[first : first + size] for first in range(0, X.shape[0], size))


def fit_agents(Xs: list[Any], **settings: Any) -> DecentralizedPCA:
    return DecentralizedPCA(**{"n_components": 2, "topology": "complete", **settings}).fit_agents(Xs)


def fit(X: Any, **settings: Any) -> DecentralizedPCA:
    return DecentralizedPCA(**{"n_components": 2, "topology": "complete", "n_agents": 3, **settings}).fit(X)


# ---------------------------------------------------------------------------------------------------- not a number

KINDS: dict[str, Callable[[Array, Path], Any]] = {
    "dense": lambda X, folder: X,
    "float32": lambda X, folder: X.astype(np.float32),
    "fortran": lambda X, folder: np.asfortranarray(X),
    "csr": lambda X, folder: sparse.csr_array(X),
    "csc": lambda X, folder: sparse.csc_matrix(X),
    "memmap": lambda X, folder: _mapped(X, folder),
    "generator": lambda X, folder: in_blocks(X),
    "function": lambda X, folder: lambda: in_blocks(X),
    "generator of csr": lambda X, folder: in_blocks(sparse.csr_array(X)),
    "lists": lambda X, folder: X.tolist(),
}


def _mapped(X: Array, folder: Path) -> Any:
    np.save(folder / "rows.npy", X)
    return np.load(folder / "rows.npy", mmap_mode="r")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_a_value_that_is_no_number_is_named(value: float, word: str, kind: str, tmp_path: Path) -> None:
    """Agent, row and column, however the rows are given; row numbers go on over blocks."""
    Xs: list[Any] = list(parts())
    Xs[1][19, 3] = value  # the fourth block of a generator
    Xs[1] = KINDS[kind](Xs[1], tmp_path)
    with pytest.raises(DataError, match=rf"agent 1: row 19, column 3 is {word}"):
        fit_agents(Xs)


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("kind", ["dense", "csr", "function"])
def test_a_value_that_is_no_number_is_named_in_both_forms(kind: str, form: Form, tmp_path: Path) -> None:
    """Before any product is formed."""
    Xs: list[Any] = list(parts())
    Xs[2][0, 4] = np.nan
    Xs[2] = KINDS[kind](Xs[2], tmp_path)
    sources = [as_source(X, f"agent {j}") for j, X in enumerate(Xs)]
    with pytest.raises(DataError, match="agent 2: row 0, column 4 is NaN"):
        fit_rows(sources, SimulatedNetwork(deepca.topology.ring(3)), Settings(2, form=form))


def test_columns_with_names_are_named() -> None:
    """By their name, not their number; also after they were put into order."""
    Xs = [frame(X) for X in parts()]
    Xs[2].loc[7, "d"] = np.nan
    with pytest.raises(DataError, match="agent 2: row 7, column 'd' is NaN"):
        fit_agents(Xs)
    Xs[2] = Xs[2][list("edcba")]
    with pytest.raises(DataError, match="agent 2: row 7, column 'd' is NaN"):
        fit_agents(Xs)


def test_several_such_values_are_counted() -> None:
    """The first is named."""
    Xs = parts()
    Xs[0][3, 1] = Xs[0][3, 2] = Xs[0][9, 0] = np.nan
    with pytest.raises(DataError, match=r"agent 0: row 3, column 1 .*3 such values"):
        fit_agents(list(Xs))


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_fit_refuses_what_scikit_learn_refuses(value: float, kind: Callable[[Array], Any]) -> None:
    """As one row and column of X."""
    X = np.vstack(parts())
    X[19, 3] = value
    with pytest.raises(ValueError, match=f"X: row 19, column 3 is {'NaN' if np.isnan(value) else 'infinite'}"):
        fit(kind(X))


def test_missing_values_of_pandas() -> None:
    """Its own kind of missing is missing, too."""
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame({"a": [1, 2, 3, 4], "b": [1.0, 2.0, 5.0, 3.0]})
    gap = X.copy()
    gap["a"] = pd.array([1, None, 3, 4], dtype="Int64")
    with pytest.raises(DataError, match="agent 1: row 1, column"):
        fit_agents([X, gap], n_components=1)


# ------------------------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize(
    "X",
    [
        np.array([["a", "b"], ["c", "d"]]),
        np.array([["1.5", "2"], ["3", "4"]]),
        np.array([[1.0, "x"], [2.0, 3.0]], dtype=object),
        np.array([[1.0, None], [2.0, 3.0]], dtype=object),
        np.array([[1.0, 2.0 + 1j], [2.0, 3.0]]),
        np.array([["2020-01-01", "2020-01-02"]], dtype="datetime64[D]"),
    ],
    ids=["text", "numbers as text", "one text", "None", "complex", "dates"],
)
def test_rows_that_are_not_numbers(X: Any) -> None:
    """The agent is named."""
    with pytest.raises(DataError, match="agent 1"):
        fit_agents([np.array([[1.0, 2.0], [2.0, 5.0]]), X], n_components=1)


def test_a_text_among_numbers_is_named() -> None:
    """With its place and what it says."""
    mixed = np.array([[1.0, 2.0], [2.0, "n/a"]], dtype=object)
    with pytest.raises(DataError, match="agent 1: row 1, column 1 is 'n/a'"):
        fit_agents([np.array([[1.0, 2.0], [2.0, 5.0]]), mixed], n_components=1)


def test_a_text_in_a_column_with_a_name() -> None:
    """The name of the column, as for values that are missing."""
    Xs = [frame(X) for X in parts()]
    Xs[1] = Xs[1].astype(object)
    Xs[1].iloc[4, 2] = "n/a"
    with pytest.raises(DataError, match="agent 1: row 4, column 'c' is 'n/a'"):
        fit_agents(Xs)


def test_masked_arrays() -> None:
    """What is masked would silently be used."""
    Xs: list[Any] = list(parts())
    Xs[1] = np.ma.masked_less(Xs[1], -1.0)
    with pytest.raises(DataError, match=r"agent 1.*masked"):
        fit_agents(Xs)


# ----------------------------------------------------------------------------------------------- constant columns


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e6, 1e-30])
@pytest.mark.parametrize("kind", ["dense", "csr", "memmap"])
def test_a_constant_column_cannot_be_scaled(kind: str, value: float, tmp_path: Path) -> None:
    """Named; without scaling it is no problem."""
    Xs = parts()
    for X in Xs:
        X[:, 2] = value
    given = [KINDS[kind](X, tmp_path) if j == 1 else X for j, X in enumerate(Xs)]
    with pytest.raises(DataError, match=r"column 2: the same value in all 75 rows.*scale=False"):
        fit_agents(given, scale=True)
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    close(fit_agents(given).components_, theirs.components_, atol=1e-9)


def test_constant_columns_are_named_by_their_names() -> None:
    """All of them, up to six."""
    Xs = [frame(X) for X in parts()]
    for X in Xs:
        X["b"] = 3.0
    with pytest.raises(DataError, match="column 'b': the same value"):
        fit_agents(Xs, scale=True)
    for X in Xs:
        X["e"] = 0.0
    with pytest.raises(DataError, match="columns 'b', 'e': the same value"):
        fit_agents(Xs, scale=True)
    wide = np.hstack([np.ones((10, 9)), np.arange(10.0)[:, None]])
    with pytest.raises(DataError, match="columns 0, 1, 2, 3, 4, 5 and 3 more"):
        fit_agents([wide[:5], wide[5:]], scale=True, n_components=1)


def test_a_column_constant_at_each_agent_is_not_constant() -> None:
    """Every agent has its own value there."""
    Xs = parts()
    for j, X in enumerate(Xs):
        X[:, 2] = j
    pooled = np.vstack(Xs)
    found = fit_agents(list(Xs), scale=True)
    assert found.scale_ is not None
    close(found.scale_, pooled.std(axis=0), rtol=1e-12)


def test_a_column_that_varies_little_far_away_from_zero() -> None:
    """A millionth of a millionth of its size is little, and still more than rounding."""
    Xs = parts()
    for X in Xs:
        X[:, 2] = 2.0**20 + np.round(X[:, 2] * 1024.0) * 2.0**-31
    found = fit_agents(list(Xs), scale=True)
    pooled = np.vstack(Xs)
    assert found.scale_ is not None
    close(found.scale_[2], (pooled[:, 2] - 2.0**20).std(), rtol=1e-3)


# ---------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    "empty",
    [np.empty((0, D)), sparse.csr_array((0, D)), iter([]), lambda: iter(()), []],
    ids=["dense", "csr", "generator", "function", "list"],
)
def test_an_agent_without_rows(empty: Any) -> None:
    """Named, with the way out."""
    Xs: list[Any] = list(parts())
    Xs[2] = empty
    with pytest.raises(DataError, match="agent 2"):
        fit_agents(Xs)


def test_an_empty_block_is_no_empty_agent() -> None:
    """A filter that finds nothing in one of its files yields a block without rows."""
    Xs: list[Any] = list(parts())
    pooled = np.vstack(Xs)
    theirs = PCA(2, svd_solver="full").fit(pooled)
    whole = Xs[1]
    Xs[1] = iter([whole[:10], whole[:0], whole[10:]])
    close(fit_agents(Xs).components_, theirs.components_, atol=1e-9)
    Xs[1] = iter([whole[:0], whole])
    close(fit_agents(Xs).components_, theirs.components_, atol=1e-9)


def test_no_columns_and_other_shapes() -> None:
    """The agent is named."""
    for wrong in (np.empty((3, 0)), np.zeros(5), np.zeros((2, 2, 2)), np.float64(3.0)):
        with pytest.raises(DataError, match="agent 1"):
            fit_agents([parts()[0], wrong])


def test_one_row_at_an_agent() -> None:
    """It has no variance of its own, and still counts."""
    X = np.vstack(parts())
    theirs = PCA(2, svd_solver="full").fit(X)
    found = fit_agents([X[:1], X[1:2], X[2:]])
    close(found.components_, theirs.components_, atol=1e-9)
    close(found.explained_variance_, theirs.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_one_row_at_every_agent(form: Form) -> None:
    """All variance lies between agents."""
    X = np.vstack(parts())[:9]
    theirs = PCA(2, svd_solver="full").fit(X)
    sources = [as_source(row[None], f"agent {j}") for j, row in enumerate(X)]
    found = fit_rows(sources, SimulatedNetwork(deepca.topology.ring(9)), Settings(2, form=form)).found
    close(found.components, theirs.components_, atol=1e-9)
    close(found.variances, theirs.explained_variance_, rtol=1e-10)


def test_one_row_in_all() -> None:
    """No variance without a second one."""
    with pytest.raises(DataError, match="one row"):
        fit_agents([np.arange(5.0)[None]], n_components=1)
    with pytest.raises(ValueError, match="1 sample"):
        fit(np.arange(5.0)[None], n_components=1, n_agents=1)


def test_no_agents_at_all() -> None:
    """Said so."""
    with pytest.raises(DataError, match="no agents"):
        DecentralizedPCA(2).fit_agents([])


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6 + 0.1, 1.0 / 3.0])
@pytest.mark.parametrize("counts", [(3, 7, 11), (20, 20, 20), (1, 100, 33)])
def test_all_rows_equal(counts: tuple[int, ...], value: float) -> None:
    """Nothing varies, but for the rounding of a mean."""
    row = value * np.array([1.0, 2.0, -3.0])
    with pytest.raises(DataError, match=f"all {sum(counts)} rows are equal"):
        fit_agents([np.tile(row, (n, 1)) for n in counts], n_components=1)


def test_all_rows_equal_or_zero_in_one_array() -> None:
    """The same through fit; without centring only zeros explain nothing."""
    for n in (7, 20, 101):
        with pytest.raises(DataError, match=f"all {n} rows are equal"):
            fit(np.tile([0.1, 0.2, 0.3], (n, 1)), n_components=1)
    with pytest.raises(DataError, match="all 20 rows are zero"):
        fit(np.zeros((20, 3)), n_components=1, center=False)
    found = fit(np.tile([3.0, 0.0, 4.0], (20, 1)), n_components=1, center=False)
    close(found.components_, [[0.6, 0.0, 0.8]], atol=1e-12)


# ------------------------------------------------------------------------------------------------------- columns


def test_agents_with_different_numbers_of_columns() -> None:
    """Both are named."""
    Xs = parts()
    with pytest.raises(DataError, match="agent 2 has 4 columns, agent 0 has 5"):
        fit_agents([Xs[0], Xs[1], Xs[2][:, :4]])
    with pytest.raises(DataError, match="agent 1 has 6 columns, agent 0 has 5"):
        fit_agents([Xs[0], sparse.csr_array(np.hstack([Xs[1], Xs[1][:, :1]])), Xs[2]])


def test_blocks_with_different_numbers_of_columns() -> None:
    """The agent and the block."""
    Xs = parts()
    with pytest.raises(DataError, match="agent 1: block 2 has 4 columns"):
        fit_agents([Xs[0], iter([Xs[1][:9], Xs[1][9:20], Xs[1][20:, :4]])])


def test_agents_with_other_column_names() -> None:
    """What is missing and what is too much."""
    Xs = [frame(X) for X in parts()]
    with pytest.raises(DataError, match="agent 1 has no column 'e' and has column 'x', which agent 0 has not"):
        fit_agents([Xs[0], frame(parts()[1], "abcdx"), Xs[2]])
    with pytest.raises(DataError, match="agent 2 has no columns 'b', 'e'"):
        fit_agents([Xs[0], Xs[1], Xs[2][["a", "c", "d"]]])
    with pytest.raises(DataError, match="agent 2 has column 'z', which agent 0 has not"):
        fit_agents([Xs[0], Xs[1], Xs[2].assign(z=1.0)])


@pytest.mark.parametrize("names", ["abcda", "aabcd", "abcddd"])
def test_a_column_name_given_twice(names: str) -> None:
    """Nobody can tell which of the two is meant; certainly not the last one for both."""
    Xs = parts()
    first = frame(Xs[0][:, :4], "abcd")
    extra = np.hstack([Xs[1], Xs[1]])[:, : len(names)]
    with pytest.raises(DataError, match="agent 1"):
        fit_agents([first, frame(extra, names)])


def test_the_same_names_with_other_repetitions() -> None:
    """As many columns, and the same set of names, but not the same columns."""
    Xs = parts()
    with pytest.raises(DataError, match="agent 0 has more than one column 'b'"):
        fit_agents([frame(Xs[0][:, :3], "abb"), frame(Xs[1][:, :3], "aab")], n_components=1)


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_columns_in_another_order_are_put_right(form: Form) -> None:
    """The order of the first agent is that of the answer."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    order = list("debca")
    given = [frame(Xs[0]), frame(Xs[1])[order], in_blocks(frame(Xs[2])[order[::-1]])]
    if form == "rows":
        given[2] = frame(Xs[2])[order[::-1]]
    sources = [as_source(X, f"agent {j}") for j, X in enumerate(given)]
    found = fit_rows(sources, SimulatedNetwork(deepca.topology.ring(3)), Settings(2, form=form)).found
    assert found.columns == tuple("abcde")
    close(found.components, theirs.components_, atol=1e-9)
    close(found.mean, theirs.mean_, atol=1e-12)


def test_the_estimator_puts_columns_right() -> None:
    """feature_names_in_ are the first agent's."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs)[:, [4, 3, 2, 1, 0]])
    found = fit_agents([frame(Xs[0])[list("edcba")], frame(Xs[1]), frame(Xs[2])[list("bcaed")]])
    assert found.feature_names_in_.tolist() == list("edcba")
    close(found.components_, theirs.components_, atol=1e-9)


def test_blocks_in_another_order_are_put_right() -> None:
    """Blocks of one agent have names, too."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    second = frame(Xs[1])
    found = fit_agents([frame(Xs[0]), iter([second[:10], second[10:][list("edcba")]]), frame(Xs[2])])
    close(found.components_, theirs.components_, atol=1e-9)


def test_blocks_with_other_names_are_refused() -> None:
    """A block that misses a column and has another instead."""
    Xs = parts()
    second = frame(Xs[1])
    other = second[10:].rename(columns={"b": "x"})
    with pytest.raises(DataError, match="agent 1"):
        fit_agents([frame(Xs[0]), iter([second[:10], other]), frame(Xs[2])])


def test_agents_apart_notice_that_columns_differ() -> None:
    """One agent per thread: nobody sees the names of another, and still no wrong answer may come out."""
    Xs = parts()
    given = [frame(Xs[0]), frame(Xs[1])[list("edcba")], frame(Xs[2])]

    def work(network: deepca.AgentNetwork) -> Array:
        source = as_source(given[network.agent], f"agent {network.agent}")
        return fit_rows([source], network, Settings(2)).found.components

    with pytest.raises(DataError, match="agents 1 and agent 0 differ in the number, names or order"):
        deepca.run_agents(deepca.topology.ring(3), work, timeout=20.0)


def test_named_and_unnamed_columns_together() -> None:
    """Whether they are the same nobody can tell."""
    Xs = parts()
    with pytest.raises(DataError, match="agent 0 names its columns and agent 1 does not"):
        fit_agents([frame(Xs[0]), Xs[1], Xs[2]])
    with pytest.raises(DataError, match="agent 2 names its columns and agent 0 does not"):
        fit_agents([Xs[0], Xs[1], frame(Xs[2])])


def test_columns_with_numbers_for_names() -> None:
    """``DataFrame(X)`` names nothing: scikit-learn sees no names there, and what was fit can be transformed."""
    pd = pytest.importorskip("pandas")
    Xs = [pd.DataFrame(X) for X in parts()]
    found = fit_agents(Xs)
    assert found.transform(Xs[0]).shape == (20, 2)
    assert not hasattr(found, "feature_names_in_")


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (-1.0, r"agent 1: the weight of row 3 is -1\.0"),
        (np.nan, "agent 1: the weight of row 3 is nan"),
        (np.inf, "agent 1: the weight of row 3 is inf"),
    ],
)
def test_weights_that_are_none(weights: float, says: str) -> None:
    """Agent and row."""
    Xs = parts()
    w = [np.ones(len(X)) for X in Xs]
    w[1][3] = weights
    with pytest.raises(DataError, match=says):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=w)
    with pytest.raises(ValueError, match=r"(?i)weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.concatenate(w))


@pytest.mark.parametrize("size", [29, 31, 0])
@pytest.mark.parametrize("kind", ["dense", "csr", "generator"])
def test_weights_of_another_length(kind: str, size: int, tmp_path: Path) -> None:
    """Also where only reading tells how many rows there are."""
    Xs: list[Any] = list(parts())
    Xs[1] = KINDS[kind](Xs[1], tmp_path)
    with pytest.raises(DataError, match=r"agent 1: .*weights"):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones(20), np.ones(size), np.ones(25)])


def test_weights_of_other_shapes() -> None:
    """One array per agent, one number per row."""
    Xs = parts()
    with pytest.raises(DataError, match="weights of 2 agents for 3 agents"):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones(20), np.ones(30)])
    with pytest.raises(DataError, match=r"agent 0: weights of shape \(20, 1\)"):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones((20, 1)), np.ones(30), np.ones(25)])
    with pytest.raises(ValueError, match="sample_weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.ones(74))


def test_weights_that_sum_to_nothing() -> None:
    """No weight at all, or so little that no variance can be estimated."""
    Xs = parts()
    with pytest.raises(ValueError, match=r"(?i)weight"):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.zeros(len(X)) for X in Xs])
    with pytest.raises(ValueError, match=r"(?i)weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.zeros(75))
    with pytest.raises(DataError, match=r"weights sum to 0\.75"):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.full(len(X), 0.01) for X in Xs])


def test_one_row_with_weight() -> None:
    """All others are as if they were not there."""
    X = np.vstack(parts())
    w = np.zeros(75)
    w[4] = 3.0
    with pytest.raises(DataError, match=r"one row|rows are equal"):
        DecentralizedPCA(1).fit(X, sample_weight=w)
    with pytest.raises(DataError, match=r"one row|rows are equal"):
        DecentralizedPCA(1).fit_agents([X], sample_weight=[w])


# ------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "k",
    ["mle", "2", 0, -1, 1.5, 1.0, 0.0, -0.5, True, False, float("nan"), float("inf"), np.bool_(True), np.float64(2.0)],
)
def test_numbers_of_components_that_are_none(k: Any) -> None:
    """Named, with what was given."""
    with pytest.raises(InvalidInput, match="n_components"):
        fit_agents(list(parts()), n_components=k)


@pytest.mark.parametrize(
    "k", [[2], (1, 2), {}, 2 + 0j, object(), np.array([1, 2]), b"2"], ids=lambda k: type(k).__name__
)
def test_other_things_as_number_of_components(k: Any) -> None:
    """The same error for whatever else may be given."""
    with pytest.raises(InvalidInput, match="n_components"):
        fit_agents(list(parts()), n_components=k)


def test_more_components_than_rows_or_columns() -> None:
    """How many there can be at most."""
    Xs = parts()
    with pytest.raises(InvalidInput, match=r"n_components = 6.*at most 5"):
        fit_agents(list(Xs), n_components=6)
    few = np.vstack(Xs)[:3]
    with pytest.raises(InvalidInput, match=r"n_components = 4.*3 rows.*at most 3"):
        fit_agents([few[:1], few[1:]], n_components=4)
    assert fit_agents([few[:1], few[1:]], n_components=None).n_components_ == 3
    assert fit_agents([few[:1], few[1:]], n_components=3).n_components_ == 3


@pytest.mark.parametrize("topology", ["circle", "rin", "ring:x", "torus:2x", "erdos-renyi:1.5", "star:4"])
def test_networks_that_are_not_known(topology: str) -> None:
    """Named; three agents are not four either."""
    with pytest.raises(TopologyError, match=re.escape(topology.split(":")[0])):
        fit_agents(list(parts()), topology=topology)


@pytest.mark.parametrize("topology", [None, 3, ["ring"], object])
def test_networks_of_the_wrong_type(topology: Any) -> None:
    """What may be given."""
    with pytest.raises(InvalidInput, match="topology"):
        fit_agents(list(parts()), topology=topology)


def test_a_near_miss_is_guessed() -> None:
    """As a hint."""
    with pytest.raises(TopologyError, match="did you mean ring"):
        fit_agents(list(parts()), topology="rnig")


def test_a_network_for_other_numbers_of_agents() -> None:
    """Both numbers are named."""
    with pytest.raises(InvalidInput, match="topology has 4 agents, the data has 3"):
        fit_agents(list(parts()), topology=deepca.topology.ring(4))
    with pytest.raises(InvalidInput, match="n_agents = 5, but rows of 3 agents"):
        fit_agents(list(parts()), n_agents=5)


@pytest.mark.parametrize("algorithm", ["DeEPCA", "power", "", None, 3])
def test_algorithms_that_are_not_known(algorithm: Any) -> None:
    """The choices are named."""
    with pytest.raises(ParameterError) as error:
        fit_agents(list(parts()), algorithm=algorithm)
    assert (error.value.parameter, error.value.value) == ("algorithm", algorithm)
    assert all(name in error.value.expected for name in ALGORITHMS)


@pytest.mark.parametrize("n_agents", [0, -1, 2.0, "3", [3]])
def test_numbers_of_agents_that_are_none(n_agents: Any) -> None:
    """A whole number of at least one is needed; none is not the default."""
    with pytest.raises(InvalidInput, match="n_agents"):
        fit(np.vstack(parts()), n_agents=n_agents)


def test_more_agents_than_rows() -> None:
    """Every agent needs a row."""
    X = np.vstack(parts())[:4]
    with pytest.raises(DataError, match="4 rows cannot be spread over 5 agents"):
        fit(X, n_agents=5)
    with pytest.raises(DataError, match="4 rows cannot be spread over 5 agents"):
        fit(X, n_agents=None, topology=deepca.topology.ring(5))
    assert fit(X, n_agents=4).topology_.n_agents == 4


@pytest.mark.parametrize("rounds", ["many", 0, -3, 2.5])
@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_rounds_that_are_none(algorithm: str, rounds: Any) -> None:
    """Also where the algorithm makes no use of them: a slip is a slip."""
    with pytest.raises(InvalidInput, match="rounds"):
        fit_agents(list(parts()), rounds=rounds, algorithm=algorithm)


@pytest.mark.parametrize("tol", [0.0, -1e-3, 1.0, 2, float("nan"), "small", None])
def test_tolerances_that_are_none(tol: Any) -> None:
    """Named."""
    with pytest.raises(InvalidInput, match="tol"):
        fit_agents(list(parts()), tol=tol)


@pytest.mark.parametrize("max_iter", [0, -1, 1.5, "10", None])
def test_iterations_that_are_none(max_iter: Any) -> None:
    """Named."""
    with pytest.raises(InvalidInput, match="max_iter"):
        fit_agents(list(parts()), max_iter=max_iter)


# -------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("labels", [np.zeros(74), np.zeros(76), np.zeros((75, 1)), 3, "abc"])
def test_labels_of_another_length(labels: Any) -> None:
    """One per row."""
    with pytest.raises(DataError, match="one label for each of the 75 rows"):
        DecentralizedPCA(2).fit(np.vstack(parts()), agents=labels)


def test_missing_labels() -> None:
    """The row is named, whatever stands for missing."""
    X = np.vstack(parts())
    numbers = np.repeat([0.0, 1.0, 2.0], 25)
    numbers[30] = np.nan
    with pytest.raises(DataError, match="row 30 has no label"):
        DecentralizedPCA(2).fit(X, agents=numbers)
    for missing in (None, np.nan):
        names = np.repeat(np.array(["x", "y", "z"], dtype=object), 25)
        names[30] = missing
        with pytest.raises(DataError, match="row 30 has no label"):
            DecentralizedPCA(2).fit(X, agents=names)


def test_labels_that_mix_text_and_numbers() -> None:
    """They are told apart by how they are written."""
    labels = np.array([0, "a", 1] * 25, dtype=object)
    assert DecentralizedPCA(2).fit(np.vstack(parts()), agents=labels).topology_.n_agents == 3


def test_labels_and_a_number_of_agents_that_differ() -> None:
    """Both are named."""
    with pytest.raises(InvalidInput, match="n_agents = 4, but agents has 3 different labels"):
        DecentralizedPCA(2, n_agents=4).fit(np.vstack(parts()), agents=np.repeat([0, 1, 2], 25))


# ------------------------------------------------------------------------------------------------------ overflow

HUGE: dict[str, list[Array]] = {
    "squares": [X * 1e200 for X in parts()],
    "sums": [np.full((2, 2), 1.7e308), np.array([[1.0, 2.0], [2.0, 0.0]])],
    "differences": [np.array([[1.7e308, 1.0], [-1.7e308, 2.0], [-1.7e308, 0.0]]), np.array([[1.0, 1.0], [0.0, 3.0]])],
    "between agents": [np.array([[1e160, 1.0], [1e160, 2.0]]), np.array([[-1e160, 0.0], [-1e160, 1.0]])],
    "one entry": [np.array([[1e160, 1.0], [0.0, 2.0]]), np.array([[0.0, 0.0], [3.0, 1.0]])],
}


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("name", HUGE)
def test_values_whose_squares_do_not_fit(name: str, form: Form, kind: Callable[[Array], Any]) -> None:
    """An error that says so; no infinity, and no warning of numpy's."""
    sources = [as_source(kind(X), f"agent {j}") for j, X in enumerate(HUGE[name])]
    network = SimulatedNetwork(deepca.topology.complete(len(sources)))
    with pytest.raises(DataError, match="overflow"):
        fit_rows(sources, network, Settings(1, form=form))


@pytest.mark.parametrize("size", [1e-146, 1e-156, 1e-161, 1e-166, 1e-200])
def test_a_column_too_small_to_square_is_not_scaled(size: float) -> None:
    """Its standard deviation would have few digits, or none; it is named, and not called constant."""
    X = np.vstack(parts())
    X = X * np.r_[np.ones(X.shape[1] - 1), size]
    with pytest.raises(DataError, match=f"column {X.shape[1] - 1}: too small to square"):
        DecentralizedPCA(2, n_agents=3, scale=True).fit(X)
    assert DecentralizedPCA(2, n_agents=3).fit(X).result_.status.ok


def test_weights_that_overflow_are_named() -> None:
    X = np.vstack(parts())
    with pytest.raises(DataError, match="weights, overflow"):
        DecentralizedPCA(2, n_agents=3).fit(X, sample_weight=np.full(len(X), 1e308))


def test_values_whose_squares_fit_only_when_centred() -> None:
    """The column is named, and numpy does not warn."""
    sources = [as_source(np.array([[1.0, 1e160], [j, 1e160 * (1.0 + 1e-10)]]), f"agent {j}") for j in range(3)]
    network = SimulatedNetwork(deepca.topology.complete(3))
    assert fit_rows(sources, network, Settings(1)).found.result.status.ok
    with pytest.raises(DataError, match="column 1 overflow"):
        fit_rows(sources, network, Settings(1, center=False))


@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e100, 1e140, 1e150])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_large_and_small_values_that_do_fit(kind: Callable[[Array], Any], scale: float) -> None:
    """The same components, without a warning."""
    X = np.vstack(parts()) + 1.0
    theirs = PCA(2, svd_solver="full").fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit(kind(X * scale))
    close(found.components_, theirs.components_, atol=1e-9)
    close(found.explained_variance_ / scale**2, theirs.explained_variance_, rtol=1e-9)


# ------------------------------------------------------------------------------------------- rows that come once


def test_rows_that_come_once_and_are_too_wide() -> None:
    """A d × d matrix does not fit, so the rows are needed again: an error before anything is read."""
    wide = csr(sparse.random_array((6, 300_000), density=1e-4, rng=np.random.default_rng(0)))

    def blocks() -> Iterator[Any]:
        yield wide[:2]
        raise AssertionError("nothing needs to be read beyond the first block")

    with pytest.raises(DataError, match=r"agent 1: its iterator can be read once.*300,000.*function"):
        fit_agents([wide[:3], blocks()], n_components=1)


def test_rows_that_come_once_in_the_form_of_rows() -> None:
    """The same where that form is asked for; a function is read again."""
    Xs = parts()
    network = SimulatedNetwork(deepca.topology.complete(3))
    once = [as_source(X, f"agent {j}") for j, X in enumerate([Xs[0], in_blocks(Xs[1]), Xs[2]])]
    with pytest.raises(DataError, match="agent 1: its iterator can be read once"):
        fit_rows(once, network, Settings(2, form="rows"))
    again = [as_source(X, f"agent {j}") for j, X in enumerate([Xs[0], lambda: in_blocks(Xs[1]), Xs[2]])]
    found = fit_rows(again, network, Settings(2, form="rows")).found
    close(found.components, PCA(2, svd_solver="full").fit(np.vstack(Xs)).components_, atol=1e-9)


def test_an_iterator_that_was_read() -> None:
    """A second fit with the same iterator finds nothing in it."""
    Xs = parts()
    source = as_source(in_blocks(Xs[1]), "agent 1")
    fit_agents([Xs[0], source, Xs[2]])
    with pytest.raises(DataError, match="agent 1: its iterator has been read"):
        fit_agents([Xs[0], source, Xs[2]])


def test_an_error_inside_an_iterator_comes_through() -> None:
    """As it is: it is not ours."""

    def blocks() -> Iterator[Array]:
        yield parts()[1][:5]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        fit_agents([parts()[0], blocks()])


def test_a_failed_fit_leaves_the_former_one() -> None:
    """What was fitted can still be used."""
    Xs = parts()
    pca = fit_agents(list(Xs))
    before = pca.transform(Xs[0])
    bad = [Xs[0], Xs[1], np.where(Xs[2] > 1.0, np.nan, Xs[2])]
    with pytest.raises(DataError):
        pca.fit_agents(bad)
    close(pca.transform(Xs[0]), before)


def test_a_missing_value_in_rows_that_are_all_here() -> None:
    """Row and column are those of X, whoever holds the row."""
    X = np.vstack(parts())
    X[40, 2] = np.nan
    with pytest.raises(DataError, match=r"X: row 40, column 2 is NaN"):
        DecentralizedPCA(2).fit(X)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match=r"row 40, column 'c' is NaN"):
        DecentralizedPCA(2).fit(pandas.DataFrame(X, columns=list("abcdefghij")[: X.shape[1]]))

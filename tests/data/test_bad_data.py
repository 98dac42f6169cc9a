"""Test that estimators reject unusable data and parameters, with agent, row, column and value as attributes."""

from __future__ import annotations

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
from deepca.errors import DataError, InvalidInput, ParameterError, PooledDataError, TopologyError
from deepca.network import SimulatedNetwork
from deepca.operators import Form
from tests.support.errors import raises
from tests.support.problems import close, random_rows

Array = npt.NDArray[np.float64]
D = 5


def parts(seed: int = 0) -> list[Array]:
    """Return the rows of three agents."""
    return random_rows(3, [20, 30, 25], D, seed, decay=0.6)


def frame(X: Array, names: str = "abcde") -> Any:
    return pytest.importorskip("pandas").DataFrame(X, columns=list(names))


def in_blocks(X: Any, size: int = 6) -> Iterator[Any]:
    return (X[first : first + size] for first in range(0, X.shape[0], size))


def fit_agents(Xs: list[Any], **settings: Any) -> DecentralizedPCA:
    return DecentralizedPCA(**{"n_components": 2, "topology": "complete", **settings}).fit_agents(Xs)


def fit(X: Any, **settings: Any) -> DecentralizedPCA:
    return DecentralizedPCA(**{"n_components": 2, "topology": "complete", "n_agents": 3, **settings}).fit(X)


# ---------------------------------------------------------------------------------------------------- not finite

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
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_located(value: float, kind: str, tmp_path: Path) -> None:
    """The error has agent, row and column, whatever the type of the input; rows are counted over all blocks."""
    Xs: list[Any] = list(parts())
    Xs[1][19, 3] = value  # the fourth block of a generator
    Xs[1] = KINDS[kind](Xs[1], tmp_path)
    with raises(DataError, agent=1, row=19, column=3) as caught:
        fit_agents(Xs)
    np.testing.assert_equal(caught.value.value, value)
    assert "inf" not in caught.value.redacted.replace("finite", "")


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("kind", ["dense", "csr", "function"])
def test_a_value_that_is_not_finite_is_located_in_both_forms(kind: str, form: Form, tmp_path: Path) -> None:
    """The value is found before any product is computed."""
    Xs: list[Any] = list(parts())
    Xs[2][0, 4] = np.nan
    Xs[2] = KINDS[kind](Xs[2], tmp_path)
    sources = [as_source(X, f"agent {j}", agent=j) for j, X in enumerate(Xs)]
    with raises(DataError, agent=2, row=0, column=4):
        fit_rows(sources, SimulatedNetwork(deepca.topology.ring(3)), Settings(2, form=form))


def test_named_columns_are_reported_by_name() -> None:
    """So are columns that were reordered."""
    Xs = [frame(X) for X in parts()]
    Xs[2].loc[7, "d"] = np.nan
    with raises(DataError, agent=2, row=7, column="d"):
        fit_agents(Xs)
    Xs[2] = Xs[2][list("edcba")]
    with raises(DataError, agent=2, row=7, column="d"):
        fit_agents(Xs)


def test_several_values_that_are_not_finite_are_counted() -> None:
    """The error locates the first one, and its message has their number."""
    Xs = parts()
    Xs[0][3, 1] = Xs[0][3, 2] = Xs[0][9, 0] = np.nan
    with raises(DataError, agent=0, row=3, column=1) as caught:
        fit_agents(list(Xs))
    assert "3 such values" in str(caught.value)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_fit_rejects_values_that_scikit_learn_rejects(value: float, kind: Callable[[Array], Any]) -> None:
    """The error has the row and the column of X."""
    X = np.vstack(parts())
    X[19, 3] = value
    with raises(DataError, agent=None, row=19, column=3) as caught:
        fit(kind(X))
    np.testing.assert_equal(caught.value.value, value)


def test_a_missing_value_of_pandas_is_located() -> None:
    """Nullable columns of pandas may have missing values."""
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame({"a": [1, 2, 3, 4], "b": [1.0, 2.0, 5.0, 3.0]})
    gap = X.copy()
    gap["a"] = pd.array([1, None, 3, 4], dtype="Int64")
    with raises(DataError, agent=1, row=1, column="a"):
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
def test_rows_that_are_not_numbers_are_rejected(X: Any) -> None:
    with raises(DataError, agent=1):
        fit_agents([np.array([[1.0, 2.0], [2.0, 5.0]]), X], n_components=1)


def test_text_among_numbers_is_located() -> None:
    """The error has place and text, and its redacted message has no text."""
    mixed = np.array([[1.0, 2.0], [2.0, "n/a"]], dtype=object)
    with raises(DataError, agent=1, row=1, column=1, value="n/a") as caught:
        fit_agents([np.array([[1.0, 2.0], [2.0, 5.0]]), mixed], n_components=1)
    assert "n/a" not in caught.value.redacted


def test_text_in_a_named_column_is_located() -> None:
    """The column is reported by name, as for missing values."""
    Xs = [frame(X) for X in parts()]
    Xs[1] = Xs[1].astype(object)
    Xs[1].iloc[4, 2] = "n/a"
    with raises(DataError, agent=1, row=4, column="c", value="n/a"):
        fit_agents(Xs)


def test_masked_arrays_are_rejected() -> None:
    """Otherwise masked values would be used silently."""
    Xs: list[Any] = list(parts())
    Xs[1] = np.ma.masked_less(Xs[1], -1.0)
    with raises(DataError, agent=1) as caught:
        fit_agents(Xs)
    row, column = np.argwhere(np.ma.getmaskarray(Xs[1]))[0]
    assert f"({row}, {column})" in str(caught.value)


# ----------------------------------------------------------------------------------------------- constant columns


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e6, 1e-30])
@pytest.mark.parametrize("kind", ["dense", "csr", "memmap"])
def test_a_constant_column_cannot_be_scaled(kind: str, value: float, tmp_path: Path) -> None:
    """The error names the column; without scaling the fit succeeds."""
    Xs = parts()
    for X in Xs:
        X[:, 2] = value
    given = [KINDS[kind](X, tmp_path) if j == 1 else X for j, X in enumerate(Xs)]
    with raises(PooledDataError, parameter="scale", column=2):
        fit_agents(given, scale=True)
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    close(fit_agents(given).components_, theirs.components_, atol=1e-9)


def test_constant_columns_are_reported_by_name() -> None:
    """The error has the first of them, and its message lists up to six."""
    Xs = [frame(X) for X in parts()]
    for X in Xs:
        X["b"] = 3.0
    with raises(PooledDataError, parameter="scale", column="b"):
        fit_agents(Xs, scale=True)
    for X in Xs:
        X["e"] = 0.0
    with raises(PooledDataError, parameter="scale", column="b") as caught:
        fit_agents(Xs, scale=True)
    assert "'b', 'e'" in str(caught.value)
    wide = np.hstack([np.ones((10, 9)), np.arange(10.0)[:, None]])
    with raises(PooledDataError, parameter="scale", column=0) as caught:
        fit_agents([wide[:5], wide[5:]], scale=True, n_components=1)
    assert "0, 1, 2, 3, 4, 5 and 3 more" in str(caught.value)


def test_a_column_constant_at_each_agent_is_not_constant() -> None:
    """The column has a different value at every agent."""
    Xs = parts()
    for j, X in enumerate(Xs):
        X[:, 2] = j
    pooled = np.vstack(Xs)
    found = fit_agents(list(Xs), scale=True)
    assert found.scale_ is not None
    close(found.scale_, pooled.std(axis=0), rtol=1e-12)


def test_a_column_that_varies_little_far_from_zero_can_be_scaled() -> None:
    """The column varies by 1e-12 of its size, which is more than rounding."""
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
def test_an_agent_without_rows_is_rejected(empty: Any) -> None:
    Xs: list[Any] = list(parts())
    Xs[2] = empty
    with raises(DataError, agent=2, row=None):
        fit_agents(Xs)


def test_an_empty_block_does_not_make_an_agent_empty() -> None:
    """A filter that finds nothing in a file yields a block without rows."""
    Xs: list[Any] = list(parts())
    pooled = np.vstack(Xs)
    theirs = PCA(2, svd_solver="full").fit(pooled)
    whole = Xs[1]
    Xs[1] = iter([whole[:10], whole[:0], whole[10:]])
    close(fit_agents(Xs).components_, theirs.components_, atol=1e-9)
    Xs[1] = iter([whole[:0], whole])
    close(fit_agents(Xs).components_, theirs.components_, atol=1e-9)


def test_arrays_without_columns_or_with_other_dimensions_are_rejected() -> None:
    for wrong in (np.empty((3, 0)), np.zeros(5), np.zeros((2, 2, 2)), np.float64(3.0)):
        with raises(DataError, agent=1, value=wrong.shape):
            fit_agents([parts()[0], wrong])


def test_an_agent_may_have_a_single_row() -> None:
    """Such an agent has no variance of its own, but its row counts."""
    X = np.vstack(parts())
    theirs = PCA(2, svd_solver="full").fit(X)
    found = fit_agents([X[:1], X[1:2], X[2:]])
    close(found.components_, theirs.components_, atol=1e-9)
    close(found.explained_variance_, theirs.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_every_agent_may_have_a_single_row(form: Form) -> None:
    """Then all variance is between agents."""
    X = np.vstack(parts())[:9]
    theirs = PCA(2, svd_solver="full").fit(X)
    sources = [as_source(row[None], f"agent {j}") for j, row in enumerate(X)]
    found = fit_rows(sources, SimulatedNetwork(deepca.topology.ring(9)), Settings(2, form=form)).decomposition
    close(found.components, theirs.components_, atol=1e-9)
    close(found.variances, theirs.explained_variance_, rtol=1e-10)


def test_a_single_row_in_total_is_rejected() -> None:
    """A variance needs two rows."""
    with raises(PooledDataError, value=1):
        fit_agents([np.arange(5.0)[None]], n_components=1)
    with pytest.raises(ValueError, match="1 sample"):
        fit(np.arange(5.0)[None], n_components=1, n_agents=1)


def test_an_empty_list_of_agents_is_rejected() -> None:
    with raises(DataError, parameter="Xs", value=()):
        DecentralizedPCA(2).fit_agents([])


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6 + 0.1, 1.0 / 3.0])
@pytest.mark.parametrize("counts", [(3, 7, 11), (20, 20, 20), (1, 100, 33)])
def test_equal_rows_are_rejected(counts: tuple[int, ...], value: float) -> None:
    """Nothing varies except by the rounding of the mean."""
    row = value * np.array([1.0, 2.0, -3.0])
    with raises(PooledDataError, parameter=None, column=None) as caught:
        fit_agents([np.tile(row, (n, 1)) for n in counts], n_components=1)
    assert f"all {sum(counts)} rows" in str(caught.value)


def test_one_array_of_equal_rows_is_rejected() -> None:
    """Without centring, only rows of zeros have no variance."""
    for n in (7, 20, 101):
        with raises(PooledDataError, parameter=None, column=None) as caught:
            fit(np.tile([0.1, 0.2, 0.3], (n, 1)), n_components=1)
        assert f"all {n} rows are equal" in str(caught.value)
    with raises(PooledDataError, parameter=None, column=None) as caught:
        fit(np.zeros((20, 3)), n_components=1, center=False)
    assert "all 20 rows are zero" in str(caught.value)
    found = fit(np.tile([3.0, 0.0, 4.0], (20, 1)), n_components=1, center=False)
    close(found.components_, [[0.6, 0.0, 0.8]], atol=1e-12)


# ------------------------------------------------------------------------------------------------------- columns


def test_agents_with_different_numbers_of_columns_are_rejected() -> None:
    Xs = parts()
    with raises(DataError, agent=2, value=4):
        fit_agents([Xs[0], Xs[1], Xs[2][:, :4]])
    with raises(DataError, agent=1, value=6):
        fit_agents([Xs[0], sparse.csr_array(np.hstack([Xs[1], Xs[1][:, :1]])), Xs[2]])


def test_blocks_with_different_numbers_of_columns_are_rejected() -> None:
    """The message names the block."""
    Xs = parts()
    with raises(DataError, agent=1, value=4) as caught:
        fit_agents([Xs[0], iter([Xs[1][:9], Xs[1][9:20], Xs[1][20:, :4]])])
    assert "block 2" in str(caught.value)


def test_agents_with_different_column_names_are_rejected() -> None:
    """The error has the first missing or extra column; only its full message names all of them."""
    Xs = [frame(X) for X in parts()]
    with raises(DataError, agent=1, column="e") as caught:
        fit_agents([Xs[0], frame(parts()[1], "abcdx"), Xs[2]])
    assert "'x'" in str(caught.value)
    assert "'" not in caught.value.redacted
    with raises(DataError, agent=2, column="b") as caught:
        fit_agents([Xs[0], Xs[1], Xs[2][["a", "c", "d"]]])
    assert "'b', 'e'" in str(caught.value)
    with raises(DataError, agent=2, column="z"):
        fit_agents([Xs[0], Xs[1], Xs[2].assign(z=1.0)])


@pytest.mark.parametrize("names", ["abcda", "aabcd", "abcddd"])
def test_a_duplicate_column_name_is_rejected(names: str) -> None:
    """Duplicate names are ambiguous."""
    Xs = parts()
    first = frame(Xs[0][:, :4], "abcd")
    extra = np.hstack([Xs[1], Xs[1]])[:, : len(names)]
    with raises(DataError, agent=1, column="d" if names == "abcddd" else "a"):
        fit_agents([first, frame(extra, names)])


def test_the_same_names_with_different_repetitions_are_rejected() -> None:
    """Number and set of names are equal, but the columns differ."""
    Xs = parts()
    with raises(DataError, agent=0, column="b"):
        fit_agents([frame(Xs[0][:, :3], "abb"), frame(Xs[1][:, :3], "aab")], n_components=1)


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_columns_in_another_order_are_reordered(form: Form) -> None:
    """The result has the order of the first agent."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    order = list("debca")
    given = [frame(Xs[0]), frame(Xs[1])[order], in_blocks(frame(Xs[2])[order[::-1]])]
    if form == "rows":
        given[2] = frame(Xs[2])[order[::-1]]
    sources = [as_source(X, f"agent {j}") for j, X in enumerate(given)]
    found = fit_rows(sources, SimulatedNetwork(deepca.topology.ring(3)), Settings(2, form=form)).decomposition
    assert found.columns == tuple("abcde")
    close(found.components, theirs.components_, atol=1e-9)
    close(found.mean, theirs.mean_, atol=1e-12)


def test_columns_get_the_order_of_the_first_agent() -> None:
    """``feature_names_in_`` are the names of the first agent."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs)[:, [4, 3, 2, 1, 0]])
    found = fit_agents([frame(Xs[0])[list("edcba")], frame(Xs[1]), frame(Xs[2])[list("bcaed")]])
    assert found.feature_names_in_.tolist() == list("edcba")
    close(found.components_, theirs.components_, atol=1e-9)


def test_blocks_in_another_order_are_reordered() -> None:
    """Blocks of the same agent may have columns in different orders."""
    Xs = parts()
    theirs = PCA(2, svd_solver="full").fit(np.vstack(Xs))
    second = frame(Xs[1])
    found = fit_agents([frame(Xs[0]), iter([second[:10], second[10:][list("edcba")]]), frame(Xs[2])])
    close(found.components_, theirs.components_, atol=1e-9)


def test_blocks_with_other_names_are_rejected() -> None:
    """One block has a column with another name than expected."""
    Xs = parts()
    second = frame(Xs[1])
    other = second[10:].rename(columns={"b": "x"})
    with raises(DataError, agent=1, column="b"):
        fit_agents([frame(Xs[0]), iter([second[:10], other]), frame(Xs[2])])


def test_distributed_agents_notice_that_columns_differ() -> None:
    """With one agent per thread no agent sees the names of another one, but none may get a wrong result."""
    Xs = parts()
    given = [frame(Xs[0]), frame(Xs[1])[list("edcba")], frame(Xs[2])]

    def work(network: deepca.AgentNetwork) -> Array:
        source = as_source(given[network.agent], f"agent {network.agent}")
        return fit_rows([source], network, Settings(2)).decomposition.components

    with raises(DataError, agent=1, column=None):
        deepca.run_agents(deepca.topology.ring(3), work, timeout=20.0)


def test_named_and_unnamed_columns_together_are_rejected() -> None:
    """Their order cannot be compared."""
    Xs = parts()
    with raises(DataError, agent=1, column=None, value=None):
        fit_agents([frame(Xs[0]), Xs[1], Xs[2]])
    with raises(DataError, agent=2, column=None, value=None):
        fit_agents([Xs[0], Xs[1], frame(Xs[2])])


def test_numeric_column_names_are_ignored() -> None:
    """As in scikit-learn, the columns of ``DataFrame(X)`` have no names."""
    pd = pytest.importorskip("pandas")
    Xs = [pd.DataFrame(X) for X in parts()]
    found = fit_agents(Xs)
    assert found.transform(Xs[0]).shape == (20, 2)
    assert not hasattr(found, "feature_names_in_")


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    "weight",
    [-1.25, np.nan, np.inf],
)
def test_invalid_weights_are_located(weight: float) -> None:
    """The error has the agent and the row; its redacted message omits the value."""
    Xs = parts()
    w = [np.ones(len(X)) for X in Xs]
    w[1][3] = weight
    with raises(DataError, parameter="sample_weight", agent=1, row=3) as caught:
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=w)
    np.testing.assert_equal(caught.value.value, weight)
    assert str(weight) not in caught.value.redacted.replace("finite", "")
    with pytest.raises(ValueError, match=r"(?i)weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.concatenate(w))


@pytest.mark.parametrize("size", [29, 31, 0])
@pytest.mark.parametrize("kind", ["dense", "csr", "generator"])
def test_weights_of_another_length_are_rejected(kind: str, size: int, tmp_path: Path) -> None:
    """The number of rows of an iterator is known only after reading it."""
    Xs: list[Any] = list(parts())
    Xs[1] = KINDS[kind](Xs[1], tmp_path)
    value = size if kind == "generator" else (size,)
    with raises(DataError, parameter="sample_weight", agent=1, value=value):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones(20), np.ones(size), np.ones(25)])


def test_weights_of_other_shapes_are_rejected() -> None:
    """There must be one array per agent, and one number per row."""
    Xs = parts()
    with raises(DataError, parameter="sample_weight", agent=None, value=2):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones(20), np.ones(30)])
    with raises(DataError, parameter="sample_weight", agent=0, value=(20, 1)):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.ones((20, 1)), np.ones(30), np.ones(25)])
    with pytest.raises(ValueError, match="sample_weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.ones(74))


def test_weights_with_a_sum_of_at_most_one_are_rejected() -> None:
    """A variance cannot be estimated from weights that sum to 1 or less."""
    Xs = parts()
    with raises(PooledDataError, value=0):
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.zeros(len(X)) for X in Xs])
    with pytest.raises(ValueError, match=r"(?i)weight"):
        DecentralizedPCA(2).fit(np.vstack(Xs), sample_weight=np.zeros(75))
    with raises(PooledDataError, parameter="weights") as caught:
        DecentralizedPCA(2).fit_agents(Xs, sample_weight=[np.full(len(X), 0.01) for X in Xs])
    assert "0.75" in str(caught.value)


def test_a_single_row_with_weight_is_rejected() -> None:
    """All other rows have weight zero and are ignored."""
    X = np.vstack(parts())
    w = np.zeros(75)
    w[4] = 3.0
    with pytest.raises(DataError):
        DecentralizedPCA(1).fit(X, sample_weight=w)
    with raises(PooledDataError, value=1):
        DecentralizedPCA(1).fit_agents([X], sample_weight=[w])


# ---------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "k",
    ["mle", "2", 0, -1, 1.5, 1.0, 0.0, -0.5, True, False, float("nan"), float("inf"), np.bool_(True), np.float64(2.0)],
)
def test_invalid_numbers_of_components_are_rejected(k: Any) -> None:
    with raises(ParameterError, parameter="n_components") as caught:
        fit_agents(list(parts()), n_components=k)
    np.testing.assert_equal(caught.value.value, k)


@pytest.mark.parametrize(
    "k", [[2], (1, 2), {}, 2 + 0j, object(), np.array([1, 2]), b"2"], ids=lambda k: type(k).__name__
)
def test_numbers_of_components_of_other_types_are_rejected(k: Any) -> None:
    with raises(ParameterError, parameter="n_components"):
        fit_agents(list(parts()), n_components=k)


def test_more_components_than_rows_or_columns_are_rejected() -> None:
    """The message has the largest possible number."""
    Xs = parts()
    with raises(InvalidInput, parameter="n_components", value=6) as caught:
        fit_agents(list(Xs), n_components=6)
    assert "at most 5" in str(caught.value)
    few = np.vstack(Xs)[:3]
    with raises(InvalidInput, parameter="n_components", value=4) as caught:
        fit_agents([few[:1], few[1:]], n_components=4)
    assert "at most 3" in str(caught.value)
    assert fit_agents([few[:1], few[1:]], n_components=None).n_components_ == 3
    assert fit_agents([few[:1], few[1:]], n_components=3).n_components_ == 3


@pytest.mark.parametrize("topology", ["circle", "rin", "ring:x", "torus:2x", "erdos-renyi:1.5", "star:4"])
def test_unknown_networks_are_rejected(topology: str) -> None:
    """A network of four agents does not fit three agents either."""
    with raises(TopologyError) as caught:
        fit_agents(list(parts()), topology=topology)
    assert topology.split(":")[0] in str(caught.value)


@pytest.mark.parametrize("topology", [None, 3, ["ring"], object])
def test_networks_of_the_wrong_type_are_rejected(topology: Any) -> None:
    with raises(ParameterError, parameter="topology", value=topology):
        fit_agents(list(parts()), topology=topology)


def test_a_misspelled_network_leads_to_a_suggestion() -> None:
    with raises(TopologyError) as caught:
        fit_agents(list(parts()), topology="rnig")
    assert "ring?" in str(caught.value)


def test_a_network_for_another_number_of_agents_is_rejected() -> None:
    """The error has one of the two numbers, and its message the other."""
    with raises(InvalidInput, parameter="topology", value=4) as caught:
        fit_agents(list(parts()), topology=deepca.topology.ring(4))
    assert "3" in str(caught.value)
    with raises(ParameterError, parameter="n_agents", value=5) as invalid:
        fit_agents(list(parts()), n_agents=5)
    assert "3" in invalid.value.expected


@pytest.mark.parametrize("algorithm", ["DeEPCA", "power", "", None, 3])
def test_unknown_algorithms_are_rejected(algorithm: Any) -> None:
    """The message lists the known algorithms."""
    with raises(ParameterError, parameter="algorithm", value=algorithm) as caught:
        fit_agents(list(parts()), algorithm=algorithm)
    assert all(name in caught.value.expected for name in ALGORITHMS)


@pytest.mark.parametrize("n_agents", [0, -1, 2.0, "3", [3]])
def test_invalid_numbers_of_agents_are_rejected(n_agents: Any) -> None:
    """An integer of at least 1 is required; 0 does not mean the default."""
    with raises(ParameterError, parameter="n_agents", value=n_agents):
        fit(np.vstack(parts()), n_agents=n_agents)


def test_more_agents_than_rows_are_rejected() -> None:
    """Every agent needs at least one row."""
    X = np.vstack(parts())[:4]
    with raises(DataError, parameter="n_agents", value=5):
        fit(X, n_agents=5)
    with raises(DataError, parameter="n_agents", value=5):
        fit(X, n_agents=None, topology=deepca.topology.ring(5))
    assert fit(X, n_agents=4).topology_.n_agents == 4


@pytest.mark.parametrize("rounds", ["many", 0, -3, 2.5])
@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_invalid_rounds_are_rejected(algorithm: str, rounds: Any) -> None:
    """Invalid rounds are rejected even if the algorithm does not use any."""
    with raises(ParameterError, parameter="rounds", value=rounds):
        fit_agents(list(parts()), rounds=rounds, algorithm=algorithm)


@pytest.mark.parametrize("tol", [0.0, -1e-3, 1.0, 2, float("nan"), "small", None])
def test_invalid_tolerances_are_rejected(tol: Any) -> None:
    with raises(ParameterError, parameter="tol"):
        fit_agents(list(parts()), tol=tol)


@pytest.mark.parametrize("max_iter", [0, -1, 1.5, "10", None])
def test_invalid_numbers_of_iterations_are_rejected(max_iter: Any) -> None:
    with raises(ParameterError, parameter="max_iter", value=max_iter):
        fit_agents(list(parts()), max_iter=max_iter)


# -------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("labels", [np.zeros(74), np.zeros(76), np.zeros((75, 1)), 3, "abc"])
def test_labels_of_another_length_are_rejected(labels: Any) -> None:
    with raises(DataError, parameter="agents", value=np.shape(labels)):
        DecentralizedPCA(2).fit(np.vstack(parts()), agents=labels)


def test_missing_labels_are_located() -> None:
    """The error has the row, whatever stands for a missing label."""
    X = np.vstack(parts())
    numbers = np.repeat([0.0, 1.0, 2.0], 25)
    numbers[30] = np.nan
    with raises(DataError, parameter="agents", row=30):
        DecentralizedPCA(2).fit(X, agents=numbers)
    for missing in (None, np.nan):
        names = np.repeat(np.array(["x", "y", "z"], dtype=object), 25)
        names[30] = missing
        with raises(DataError, parameter="agents", row=30):
            DecentralizedPCA(2).fit(X, agents=names)


def test_labels_may_mix_text_and_numbers() -> None:
    """Mixed labels are compared as text."""
    labels = np.array([0, "a", 1] * 25, dtype=object)
    assert DecentralizedPCA(2).fit(np.vstack(parts()), agents=labels).topology_.n_agents == 3


def test_a_number_of_agents_that_contradicts_the_labels_is_rejected() -> None:
    with raises(ParameterError, parameter="n_agents", value=4):
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
def test_values_whose_squares_overflow_are_rejected(name: str, form: Form, kind: Callable[[Array], Any]) -> None:
    """The error names at most a column, and numpy does not warn."""
    sources = [as_source(kind(X), f"agent {j}", agent=j) for j, X in enumerate(HUGE[name])]
    network = SimulatedNetwork(deepca.topology.complete(len(sources)))
    with raises(DataError, parameter=None, row=None, value=None) as caught:
        fit_rows(sources, network, Settings(1, form=form))
    assert caught.value.column in (None, 0)
    assert isinstance(caught.value, PooledDataError) == (name == "between agents")


@pytest.mark.parametrize("size", [1e-146, 1e-156, 1e-161, 1e-166, 1e-200])
def test_a_column_too_small_to_square_is_not_scaled(size: float) -> None:
    """Its standard deviation would have few correct digits or none."""
    X = np.vstack(parts())
    X = X * np.r_[np.ones(X.shape[1] - 1), size]
    with raises(PooledDataError, parameter="scale", column=X.shape[1] - 1):
        DecentralizedPCA(2, n_agents=3, scale=True).fit(X)
    assert DecentralizedPCA(2, n_agents=3).fit(X).result_.status.ok


def test_weights_that_overflow_are_rejected() -> None:
    X = np.vstack(parts())
    with raises(DataError, agent=0, row=None, column=None):
        DecentralizedPCA(2, n_agents=3).fit(X, sample_weight=np.full(len(X), 1e308))


def test_values_whose_squares_overflow_are_accepted_if_centring_prevents_it() -> None:
    """Without centring, the error has the column, and numpy does not warn."""
    sources = [as_source(np.array([[1.0, 1e160], [j, 1e160 * (1.0 + 1e-10)]]), f"agent {j}") for j in range(3)]
    network = SimulatedNetwork(deepca.topology.complete(3))
    assert fit_rows(sources, network, Settings(1)).decomposition.result.status.ok
    with raises(PooledDataError, column=1):
        fit_rows(sources, network, Settings(1, center=False))


@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e100, 1e140, 1e150])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_very_large_and_very_small_values_give_the_same_components(kind: Callable[[Array], Any], scale: float) -> None:
    """There is no warning."""
    X = np.vstack(parts()) + 1.0
    theirs = PCA(2, svd_solver="full").fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit(kind(X * scale))
    close(found.components_, theirs.components_, atol=1e-9)
    close(found.explained_variance_ / scale**2, theirs.explained_variance_, rtol=1e-9)


# ----------------------------------------------------------------------------------- iterators that are read once


def test_an_iterator_of_wide_rows_is_rejected() -> None:
    """A d × d matrix does not fit into memory, so the rows would be needed again; the error precedes reading."""
    wide = csr(sparse.random_array((6, 300_000), density=1e-4, rng=np.random.default_rng(0)))

    def blocks() -> Iterator[Any]:
        yield wide[:2]
        raise AssertionError("nothing needs to be read beyond the first block")

    with raises(DataError, agent=1, value=300_000):
        fit_agents([wide[:3], blocks()], n_components=1)


def test_an_iterator_is_rejected_where_rows_are_read_again() -> None:
    """A function that returns a new iterator is accepted."""
    Xs = parts()
    network = SimulatedNetwork(deepca.topology.complete(3))
    once = [as_source(X, f"agent {j}", agent=j) for j, X in enumerate([Xs[0], in_blocks(Xs[1]), Xs[2]])]
    with raises(DataError, agent=1, value=D):
        fit_rows(once, network, Settings(2, form="rows"))
    again = [as_source(X, f"agent {j}") for j, X in enumerate([Xs[0], lambda: in_blocks(Xs[1]), Xs[2]])]
    found = fit_rows(again, network, Settings(2, form="rows")).decomposition
    close(found.components, PCA(2, svd_solver="full").fit(np.vstack(Xs)).components_, atol=1e-9)


def test_an_exhausted_iterator_is_rejected() -> None:
    """A second fit with the same iterator fails."""
    Xs = parts()
    source = as_source(in_blocks(Xs[1]), "agent 1")
    fit_agents([Xs[0], source, Xs[2]])
    with raises(DataError, agent=1, value=None):
        fit_agents([Xs[0], source, Xs[2]])


def test_an_error_raised_by_an_iterator_is_not_replaced() -> None:
    def blocks() -> Iterator[Array]:
        yield parts()[1][:5]
        raise ConnectionError("gone")

    with raises(ConnectionError, args=("gone",)):
        fit_agents([parts()[0], blocks()])


def test_a_failed_fit_keeps_the_previous_one() -> None:
    """The estimator can still be used."""
    Xs = parts()
    pca = fit_agents(list(Xs))
    before = pca.transform(Xs[0])
    bad = [Xs[0], Xs[1], np.where(Xs[2] > 1.0, np.nan, Xs[2])]
    with pytest.raises(DataError):
        pca.fit_agents(bad)
    close(pca.transform(Xs[0]), before)


def test_a_missing_value_in_a_single_array_is_located() -> None:
    """The error has the row and the column of X, and no agent."""
    X = np.vstack(parts())
    X[40, 2] = np.nan
    with raises(DataError, agent=None, row=40, column=2):
        DecentralizedPCA(2).fit(X)
    pandas = pytest.importorskip("pandas")
    with raises(DataError, agent=None, row=40, column="c"):
        DecentralizedPCA(2).fit(pandas.DataFrame(X, columns=list("abcdefghij")[: X.shape[1]]))

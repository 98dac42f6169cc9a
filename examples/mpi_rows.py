"""PCA of rows distributed over the ranks of an MPI job, compared with scikit-learn on the pooled rows.

Run it on four ranks; with ``-m mpi4py``, an exception on one rank ends all of them::

    mpiexec -n 4 python -m mpi4py examples/mpi_rows.py
"""

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from sklearn.decomposition import PCA

from deepca import DecentralizedPCA

world = MPI.COMM_WORLD
d, k = 40, 3


def rows_of(rank: int) -> npt.NDArray[np.float64]:
    """Generate the rows of a rank; their number and mean differ between ranks."""
    rng = np.random.default_rng(rank)
    return rng.standard_normal((500 + 100 * rank, d)) * np.linspace(3.0, 0.5, d) + rank


pca = DecentralizedPCA(n_components=k, topology="ring", engine="mpi").fit_agents([rows_of(world.rank)])
if world.rank == 0:
    print(pca.result_.status)
    print(f"{world.size} ranks, {pca.n_samples_} rows, {pca.traffic_.bytes_per_agent:,.0f} bytes sent per agent")

# only to compare: deepca does not need the pooled rows
pooled = PCA(n_components=k).fit(np.concatenate([rows_of(rank) for rank in range(world.size)]))
np.testing.assert_allclose(pca.components_, pooled.components_, rtol=0, atol=1e-9)  # including signs
np.testing.assert_allclose(pca.explained_variance_, pooled.explained_variance_, rtol=1e-9)
proof = pca.result_.certificate
assert proof is not None
print(f"rank {world.rank}: components {proof.digest[:12]}, equal to scikit-learn's")

"""What the page says of use; its snippets are run by the tests of the documentation."""

from __future__ import annotations

__all__ = ["FOLLOWING", "KEEPING", "USE"]

USE = """
`partial_fit` adds rows to those of earlier calls. After every call the estimator is what `fit` on all rows so far would
have made of it, as exact and with a certificate of its own; iterations begin at the components of the call before.

```python
import numpy as np
from deepca import DecentralizedPCA

rng = np.random.default_rng(0)
pca = DecentralizedPCA(n_components=2, topology="ring", n_agents=5)
for day in range(4):
    rows = rng.standard_normal((200, 8)) * [4, 3, 2, 1, 1, 1, 1, 1]
    pca.partial_fit(rows)
print(pca.n_samples_seen_, pca.explained_variance_.round(2), pca.result_.status.code)
```

Rows that are apart already come as one entry per agent, the same agents in every call. Who has nothing this time gives
None, or a block without rows; that may be so in the first call, too. With `agents=` labels say who holds a row of X.

```python
import numpy as np
from deepca import DecentralizedPCA

rng = np.random.default_rng(0)
north, south, west = (rng.standard_normal((60, 5)) * [3, 2, 1, 1, 1] for _ in range(3))
pca = DecentralizedPCA(n_components=2, topology="path", forgetting=0.9)
pca.partial_fit_agents([north, None, west])
pca.partial_fit_agents([None, south, None])
print(pca.n_samples_seen_, pca.model_.weight)  # 180 rows, which weigh 60 + 0.9 · 120 = 168
```

**Forgetting.** With `forgetting = f` below 1 every call first multiplies the weights of all earlier rows, at all
agents, by f, also those of agents that have nothing new. New rows have weight 1, or their `sample_weight`. After
the last of T calls a row of call t weighs `f^(T−t)`, and everything is that of `fit(…, sample_weight=…)` with these
weights: with `w = Σ w_i` the mean is `Σ w_i x_i / w` and the covariance `Σ w_i (x_i − μ)(x_i − μ)ᵀ / (w − 1)`, so w
takes the place of the number of rows, in `singular_values_` as well, and one is taken off it as usual. w has to be
more than 1. It is `model_.weight`; `n_samples_seen_` and `n_samples_` count rows, forgotten or not. With n rows per
call w tends to `n/(1 − f)`, rows are `f/(1 − f)` calls old on average, and the sampling error is that of
`n(1 + f)/(1 − f)` rows of equal weight. With `scale=True` columns are divided by the standard deviation with the
same weights.

As with scikit-learn's IncrementalPCA, `fit` begins anew and `partial_fit` goes on from it. A call that raises
changes nothing: rows that could not be used have not been added. On the ranks of an MPI job (`engine="mpi"`) every
rank makes the same calls, with the rows of its own agents.
"""

KEEPING = """
An agent keeps the number, weight, mean and scatter of its own rows (d × d numbers), joined without cancellation,
and no row. What it sends in a call is what `fit` sends ([privacy.md](privacy.md)); but whoever compares the messages
of two calls learns of the rows between them what one call tells of all rows. **A batch of one row is not hidden**:
the sums of two calls differ by that row. Let rows gather before a call. The scatter stays where it is; but since the
estimator has to be able to go on, it is part of a stored (pickled) estimator, and of a fitted one as well.
`model_.save`, which writes what is to be given away, has none of it.

- d × d numbers per agent have to fit into a quarter of the free memory. Where they do not, `partial_fit` says so;
  keep the rows and `fit` all of them, which needs no such matrix.
- After a `fit` that worked with the rows themselves (few rows of many columns) `partial_fit` says that it cannot go
  on: the rows were not kept. Begin with `partial_fit` instead.
- Agents cannot join later. One that may have rows some day takes part from the first call on, with None.
- The first call needs enough rows for an answer: two, and as many as components are asked for.
"""

FOLLOWING = """
An exact answer for every batch takes dozens of rounds, many of them for the proof. Where an estimate will do, DeEPCA's
tracking can go on while the A_j change. Its state carries the product that S contains, so

    S_j ← S_j + A_j^new W_j − A_j^old W_j^before

keeps `mean S = mean A W` for the newest A_j, whatever they were before: tracking need not begin again. `follow` makes a
few iterations with each batch, over any network; `faded` makes the A_j from rows.

```python
import numpy as np
import deepca

rng = np.random.default_rng(0)
network = deepca.SimulatedNetwork(deepca.topology.ring(5))
W0 = deepca.operators.linalg.random_orthonormal(8, 2, seed=0)
algorithm = deepca.DeEPCA(np.zeros((5, 8, 8)), W0, network, deepca.FastMix(rounds=4))
batches = ([rng.standard_normal((40, 8)) * [4, 3, 2, 1, 1, 1, 1, 1] for _ in range(5)] for day in range(20))
for result in deepca.follow(algorithm, deepca.decomposition.streaming.faded(batches, forgetting=0.9), steps=3):
    pass  # result.components, result.eigenvalues: of every agent, after every batch
print(result.traffic.rounds, f"{result.agreed.disagreement:.0e}")
```

| | `partial_fit` | `follow` |
|---|---|---|
| after a batch | the top-k subspace of all rows so far, to `tol` | near it, some batches behind; agents differ a bit |
| proven | by a certificate, in every call | nothing; `agreed.disagreement` says how far apart agents are |
| once nothing changes | the same at once | exact too, at the rate of power iterations |
| centring, scaling | agreed anew in every call | not done: A_j are taken as they are |
| rounds per batch | as many as it takes | iterations × rounds of the mixer, and a diameter to agree on disagreement |

Rounding adds up over iterations, to about 1e-16 of ‖A_j‖ for each. Where the A_j shrink by many orders of
magnitude, or after millions of iterations, begin anew: `algorithm.restart(state, algorithm.rounds_for(1e-12))`.
"""

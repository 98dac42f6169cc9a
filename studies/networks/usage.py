"""The words at the head of the page: which networks there are, and how to use them. Its snippets are run by tests."""

from __future__ import annotations

from studies.shared.report import Section

__all__ = ["USAGE"]

_TEXT = """
Tracking needs one thing of a network: that every round keeps the sum over all agents. So DeEPCA and its accelerated
form are exact on more than connected graphs that stay. Every agent ends with the components that pooling all rows
would have given, and with the same certificate, on

* **directed graphs** (`deepca.topology.directed`), where agents push parts of what they hold to those that hear them,
  and a weight with it (push-sum);
* **networks that change from round to round** (`deepca.topology.time_varying`): random matchings, one peer at a time,
  links that fail, graphs in turn;
* **pairs that meet** (`deepca.Pairwise`): one link wakes at a time, its two ends take their mean, everyone else
  sleeps and sends nothing.

On the command line and in the estimator they have names. `deepca topology` shows how fast agents agree there, and
draws them; `deepca fit` takes a method that works there by itself.

```sh
deepca topology random-digraph:0.1:20 --plot digraph.png
deepca topology matchings:torus:5x10 --plot matchings.png
deepca sample digits --agents 20 -o sites
deepca fit sites/*.csv -k 5 --label-column class --topology directed-exponential -o model.npz
deepca fit sites/*.csv -k 5 --label-column class --topology failing:0.2:erdos-renyi:0.5 -o model.npz
```

| name | network |
| --- | --- |
| `directed-ring:50` | j sends to j + 1 |
| `directed-exponential:50` | j sends to j + 1, j + 2, j + 4, … |
| `random-digraph:0.3:50` | everyone sends to everyone else with probability 0.3 |
| `one-peer:50` | everyone sends to one other agent, 1, 2, 4, … ahead in turn |
| `matchings:torus:5x10` | agents pair up at random along links of the torus |
| `failing:0.2:ring:50` | each link is down with probability 0.2 in every round |
| `periodic:ring:50+star:50` | one network after the other |

| ![A directed graph with arrows](figures/digraph.png) | ![Four rounds of matchings on a torus](figures/matchings.png) |
| --- | --- |

In Python, by name or built from arcs and schedules:

```python
from sklearn.datasets import load_digits

import deepca

X = load_digits().data
pca = deepca.DecentralizedPCA(5, topology="one-peer", n_agents=16).fit(X)
print(pca.result_.status.advice)

arcs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]  # who sends to whom
pca = deepca.DecentralizedPCA(5, topology=deepca.topology.directed.from_arcs(4, arcs)).fit(X)

torus = deepca.topology.torus(4, 5)
pca = deepca.DecentralizedPCA(5, topology=deepca.topology.time_varying.failing(torus, 0.3, seed=1)).fit(X)
print(pca.explained_variance_)
```

Pairwise gossip is a mixer, for DeEPCA and the accelerated method, in the simulator, on agents and on ranks of an MPI
job. Who meets whom follows from a seed and the iteration, which all agents know. K rounds are ⌈Km/2⌉ meetings:

```python
import numpy as np

import deepca

rng = np.random.default_rng(0)
rows = [rng.standard_normal((200, 30)) * np.linspace(3, 1, 30) for _ in range(12)]
network = deepca.SimulatedNetwork(deepca.topology.ring(12))
W0 = deepca.operators.linalg.random_orthonormal(30, 3, seed=0)
algorithm = deepca.DeEPCA(deepca.operators.from_rows(rows), W0, network, deepca.Pairwise())
result = deepca.solve(algorithm, max_iter=2000, stop=deepca.Tolerance(1e-10))
print(result.status.advice)
print(result.traffic.messages, "messages in all")
```

What does not work is refused, and says what does: mixers that build on earlier rounds (FastMix, Chebyshev) and
messages of fewer digits need one symmetric matrix that stays; exact averages over a tree need links that stay, so
`krylov` and `covariance` take directed graphs but no changing ones; pairs meet on links that stay and go both ways.
Agreement on when to stop, and the certificate, need everyone to hear of everyone: they are flooded along the links of
the round, or made over a tree. Pairs that meet carry neither.
"""

USAGE = Section("Which networks, and how to use them", _TEXT, (), ())

"""Write golden files that later versions must read: ``python -m tests.golden.make FOLDER``.

Run once per released version, with the code of that version; the folder is never changed afterwards.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import deepca
from deepca.estimators.eigen import DecentralizedEigen
from deepca.estimators.pca import DecentralizedPCA
from deepca.estimators.svd import DecentralizedSVD

__all__ = ["COLUMNS", "SITES", "main"]

SITES = ("north", "south", "west")
COLUMNS = ("age", "height", "weight", "pulse", "glucose")
_ROWS = 24  # per site
_UNFINISHED = 1  # exit code of a run that stops at --max-iter
_NETWORK = """name = "golden"
components = 2
tolerance = 1e-9
scale = true
topology = "path"
on_loss = "shrink"
patience = "20s"

[[sites]]
name = "north"
address = "127.0.0.1:7001"

[[sites]]
name = "south"
address = "127.0.0.1:7002"

[[sites]]
name = "west"
address = "127.0.0.1:7003"
"""


def main(folder: Path) -> None:
    """Write all files into a new folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2024)
    mixed = rng.standard_normal((len(COLUMNS), len(COLUMNS)))
    parts = [rng.standard_normal((_ROWS, len(COLUMNS))) * [5, 3, 2, 1, 0.5] @ mixed + 10 for _ in SITES]
    for site, part in zip(SITES, parts, strict=True):
        np.savetxt(folder / f"{site}.csv", part, delimiter=",", header=",".join(COLUMNS), comments="", fmt="%.17g")
        np.save(folder / f"{site}.npy", part.astype(np.float32))
    csv, npy = ([f"{site}.{kind}" for site in SITES] for kind in ("csv", "npy"))
    _deepca(folder, "fit", *csv, "-k", "2", "--scale", "--topology", "path", "--out", "model.npz")
    _deepca(folder, "fit", *npy, "-k", "3", "--whiten", "--topology", "path", "--out", "model-float32.npz")
    for algorithm in ("deepca", "accelerated", "krylov"):
        kept = ("--checkpoints", f"checkpoints-{algorithm}", "--checkpoint-every", "1", "--tolerance", "1e-12")
        options = ("--algorithm", algorithm, "-k", "2", "--topology", "path", "--max-iter", "1", *kept)
        _deepca(folder, "fit", *csv, *options, "--out", "unfinished.npz", code=_UNFINISHED)
    (folder / "network.toml").write_text(_NETWORK, encoding="utf-8")
    _deepca(folder, "init", "network.toml", "--out", "kits", "--trial", "--days", "3650")
    coded: dict[str, Any] = {"algorithm": "deepca", "messages": "float32", "topology": "ring", "tol": 1e-8}
    directed: dict[str, Any] = {"algorithm": "deepca", "topology": "directed-ring", "tol": 1e-8}
    estimators = {
        "pca-coded": DecentralizedPCA(2, scale=True, **coded).fit_agents(parts),
        "pca-directed": DecentralizedPCA(2, scale=True, **directed).fit_agents(parts),
        "pca": DecentralizedPCA(2, topology="path", scale=True).fit_agents(parts),
        "svd": DecentralizedSVD(2, topology="path").fit_agents(parts),
        "eigen": DecentralizedEigen(2, topology="path").fit([part.T @ part / len(part) for part in parts]),
    }
    for name, estimator in estimators.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(estimator, protocol=4))
    about = {"version": deepca.__version__, "rows": _ROWS * len(SITES)}
    (folder / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


def _deepca(folder: Path, *arguments: str, code: int = 0) -> None:
    made = subprocess.run([sys.executable, "-m", "deepca", *arguments], cwd=folder, capture_output=True, text=True)
    if made.returncode != code:
        raise SystemExit(f"deepca {' '.join(arguments)}: {made.returncode}\n{made.stdout}{made.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

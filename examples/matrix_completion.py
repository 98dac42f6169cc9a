"""Fill in missing pixels of distributed images: soft-impute over a decentralized SVD.

Eight sites hold 50 images of digits each, and 40 % of the pixels are missing. Each iteration of soft-impute
(Mazumder, Hastie & Tibshirani 2010) fills the gaps with the last approximation Z and shrinks the singular values of
the result::

    Z ← U max(σ − λ, 0) Vᵀ    where    U σ Vᵀ = (pixels where observed, Z elsewhere)

Every site fills in its own images; only the SVD exchanges messages, and each SVD starts from the previous one.

Usage: python examples/matrix_completion.py [FIGURE.png]
"""

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from deepca import DecentralizedSVD

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def soft_impute(
    images: Sequence[Array], seen: Sequence[Mask], rank: int, shrink: float, iterations: int
) -> tuple[list[Array], list[int]]:
    """Return the completed images of each site, and the number of block products of each SVD."""
    svd = DecentralizedSVD(rank, topology="ring", warm_start=True)
    filled = [np.where(mask, X, 0.0) for X, mask in zip(images, seen, strict=True)]
    guess, products = filled, []
    for _ in range(iterations):
        svd.fit_agents(filled)
        shrunk = np.maximum(svd.singular_values_ - shrink, 0.0)
        guess = [(U * shrunk) @ svd.components_ for U in svd.left_]  # local
        filled = [np.where(mask, X, Z) for X, mask, Z in zip(images, seen, guess, strict=True)]
        products.append(svd.n_iter_)
    return guess, products


def main(picture: str) -> None:
    """Complete the digits, print the errors, and draw some of them."""
    sites, each = 8, 50
    X = np.asarray(load_digits().data[: sites * each], dtype=np.float64)
    missing = np.random.default_rng(0).random(X.shape) < 0.4
    images, seen = np.split(X, sites), np.split(~missing, sites)
    found, products = soft_impute(images, seen, rank=12, shrink=12.0, iterations=40)
    Z = np.clip(np.concatenate(found), 0.0, 16.0)
    means = np.nanmean(np.where(missing, np.nan, X), axis=0)

    def error(guess: Array) -> float:
        """Return the root mean square error over missing pixels."""
        return float(np.sqrt(np.mean(np.square(guess - X)[missing])))

    print(f"{missing.mean():.0%} of the pixels are missing; root mean square error (of 16 shades):")
    print(f"  {error(np.broadcast_to(means, X.shape)):.2f} if filled in with the mean of each pixel")
    print(f"  {error(Z):.2f} if filled in by soft-impute of rank 12 over {sites} sites")
    print(f"at most {max(products)} block products per SVD, each averaged over all sites")
    _draw(X, missing, Z, picture)


def _draw(X: Array, missing: Mask, Z: Array, picture: str) -> None:
    """Draw one image of each digit: observed, completed and true."""
    labels = load_digits().target[: len(X)]
    shown = [int(np.flatnonzero(labels == digit)[3]) for digit in range(10)]
    figure = Figure(figsize=(10.0, 3.4), layout="constrained")
    panels = figure.subplots(3, len(shown))
    for row, (name, values) in enumerate(
        (("seen", np.ma.array(X, mask=missing)), ("filled in", np.where(missing, Z, X)), ("true", X))
    ):
        for axes, i in zip(panels[row], shown, strict=True):
            axes.imshow(np.ones((8, 8)), cmap=ListedColormap(["#e8a87c"]))  # background of missing pixels
            axes.imshow(values[i].reshape(8, 8), cmap="gray_r", vmin=0.0, vmax=16.0)
            axes.set(xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set_color("#bbbbbb")
        panels[row][0].set_ylabel(name, fontsize=11)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "completion.png")

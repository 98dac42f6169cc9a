"""Test that files of earlier versions (``tests/golden``) can be read, or are rejected with what to do."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import deepca
from deepca._util.typing import Array
from deepca.errors import InvalidInput
from deepca.operators.linalg import tan_theta
from deepca.sites.config.network_file import read_network
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.column_key import column_key_of
from studies.faults.fleet import free_port
from tests.golden.make import COLUMNS, SITES
from tests.support.errors import raises
from tests.support.helpers import run_cli
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden"
VERSIONS = sorted(folder.parent for folder in GOLDEN.glob("*/about.json"))


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def golden(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def pooled(golden: Path) -> Array:
    return np.concatenate([np.loadtxt(golden / f"{site}.csv", delimiter=",", skiprows=1) for site in SITES])


def unpickled(golden: Path, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about a version mismatch
        return pickle.loads((golden / f"{name}.pickle").read_bytes())


def assert_same_span(found: Array, wanted: Array, tol: float) -> None:
    """Check that rows ``(k, d)`` span the same subspace."""
    assert float(tan_theta(wanted.T.astype(np.float64), found.T.astype(np.float64))) <= tol


def test_golden_files_exist() -> None:
    assert VERSIONS


def test_models_match_the_pooled_rows(golden: Path) -> None:
    model = deepca.load(golden / "model.npz")
    rows = pooled(golden)
    exact = PCA(2).fit(StandardScaler().fit_transform(rows))
    assert (model.status.code, model.columns, model.n_samples) == ("converged", COLUMNS, len(rows))
    assert model.certificate is not None
    assert model.certificate.worst_angle <= 1e-10
    assert_same_span(model.components, exact.components_, 1e-9)
    np.testing.assert_allclose(model.mean, rows.mean(axis=0), rtol=1e-12)
    assert model.transform(rows).shape == (len(rows), 2)


def test_float32_models_keep_their_dtype(golden: Path) -> None:
    model = deepca.load(golden / "model-float32.npz")
    rows = np.concatenate([np.load(golden / f"{site}.npy") for site in SITES])
    scores = model.transform(rows)
    assert model.dtype == scores.dtype == np.float32
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1.0, rtol=1e-4)  # whitened
    assert_same_span(model.components, PCA(3).fit(rows.astype(np.float64)).components_, 1e-5)


def test_models_survive_being_saved_again(golden: Path, tmp_path: Path) -> None:
    model = deepca.load(golden / "model.npz")
    model.save(tmp_path / "again.npz")
    again = deepca.load(tmp_path / "again.npz")
    np.testing.assert_array_equal(again.components, model.components)
    assert (again.status, again.certificate, dict(again.about)) == (model.status, model.certificate, dict(model.about))


def test_pickled_estimators_can_be_loaded(golden: Path) -> None:
    rows = pooled(golden)
    scaled = StandardScaler().fit_transform(rows)
    pca, svd, eigen = (unpickled(golden, name) for name in ("pca", "svd", "eigen"))
    assert_same_span(pca.components_, PCA(2).fit(scaled).components_, 1e-9)
    assert pca.transform(rows).shape == (len(rows), 2)
    np.testing.assert_allclose(svd.singular_values_, np.linalg.svd(rows, compute_uv=False)[:2], rtol=1e-9)
    np.testing.assert_allclose(
        eigen.eigenvalues_, np.linalg.eigvalsh(rows.T @ rows / (len(rows) / len(SITES)) / len(SITES))[::-1][:2]
    )
    for estimator in (pca, svd, eigen):
        assert estimator.result_.status.ok


@pytest.mark.parametrize("name", ["pca-coded", "pca-directed"])
def test_pickled_estimators_with_mixer_state_can_be_loaded(golden: Path, name: str) -> None:
    """With compressed messages or directed graphs, the state includes neighbours' copies or weights."""
    pca, rows = unpickled(golden, name), pooled(golden)
    assert_same_span(pca.components_, PCA(2).fit(StandardScaler().fit_transform(rows)).components_, 1e-7)
    assert pca.result_.status.ok
    assert pca.result_.state.memory is not None


@pytest.mark.parametrize("algorithm", ["deepca", "accelerated", "krylov"])
def test_a_run_resumes_from_a_checkpoint_or_reports_why_not(golden: Path, tmp_path: Path, algorithm: str) -> None:
    shutil.copytree(golden, tmp_path / "golden")
    files = [str(tmp_path / "golden" / f"{site}.csv") for site in SITES]
    options = ["--algorithm", algorithm, "-k", "2", "--topology", "path", "--tolerance", "1e-12"]
    kept = ["--checkpoints", str(tmp_path / "golden" / f"checkpoints-{algorithm}"), "--checkpoint-every", "1"]
    out = tmp_path / "model.npz"
    made = run_cli("fit", *files, *options, *kept, "--out", str(out))
    assert made.exit_code == 0, made.output
    assert "checkpoint" in made.output  # which checkpoint the run resumes from, or why it starts over
    assert_same_span(deepca.load(out).components, PCA(2).fit(pooled(golden)).components_, 1e-9)


def test_kits_can_be_loaded(golden: Path, tmp_path: Path) -> None:
    golden = Path(shutil.copytree(golden, tmp_path / "golden"))
    with raises(InvalidInput, parameter="privacy"):  # what was the default has to be asked for since 0.2
        read_network(golden / "network.toml")
    _open(golden)
    network = read_network(golden / "network.toml")
    assert (network.name, network.components, network.on_loss, network.patience) == ("golden", 2, "shrink", 20.0)
    assert tuple(site.name for site in network.sites) == SITES
    authority = x509.load_pem_x509_certificate((golden / "kits" / "authority" / "authority.pem").read_bytes())
    for name in SITES:
        site = read_site(golden / "kits" / name)
        assert (site.site, site.network) == (name, network)
        certificate = x509.load_pem_x509_certificate(site.certificate.read_bytes())
        certificate.verify_directly_issued_by(authority)
        key = load_pem_private_key(site.key.read_bytes(), None)
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        assert key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def _kits(golden: Path, folder: Path) -> Path:
    """Copy the kits, give every site its rows and a free port, and make key files private as they were."""
    kits = Path(shutil.copytree(golden / "kits", folder / "kits"))
    text = (golden / "network.toml").read_text("utf-8")
    for old in re.findall(r"127\.0\.0\.1:\d+", text):
        text = text.replace(old, f"127.0.0.1:{free_port()}")
    for name in ("authority", *SITES):
        (kits / name / "network.toml").write_text(text, encoding="utf-8")
        for key in kits.glob(f"{name}/*.key"):
            key.chmod(0o600)
    for name in SITES:
        toml = kits / name / "site.toml"
        rows = f'data = "{(golden / f"{name}.csv").as_posix()}"'
        changed = re.sub("^data = .*$", rows, toml.read_text("utf-8"), flags=re.MULTILINE)
        changed = changed.replace("[disclosure]\n", "") + "\n[disclosure]\nmin_sites = 2\n"  # on_loss is "shrink"
        toml.write_text(changed, encoding="utf-8")
    return kits


def _open(folder: Path) -> None:
    """Add the line that networks with on_loss = "shrink" need since version 0.2."""
    for path in (*folder.glob("network.toml"), *folder.glob("kits/*/network.toml")):
        path.write_text(f'privacy = "open"\n{path.read_text("utf-8")}', encoding="utf-8")


@pytest.mark.xdist_group("real")
def test_kits_receive_the_key_for_column_names_and_run(golden: Path, tmp_path: Path) -> None:
    kits = _kits(golden, tmp_path)
    _open(kits.parent)
    site, authority = str(kits / "north" / "site.toml"), str(kits / "authority")
    (kits / "authority" / "columns.key").unlink(missing_ok=True)  # kits of version 0.1.0 have none
    for name in SITES:
        (kits / name / "columns.key").unlink(missing_ok=True)
    refused = run_cli("agent", "run", site)
    assert refused.exit_code == 2
    assert "--column-key" in refused.output
    examined = json.loads(run_cli("doctor", site, "--json").stdout)
    assert "column key" in [one["check"] for one in examined["findings"] if one["verdict"] == "wrong"]

    made, again = (
        json.loads(run_cli("join", "--share-column-key", "--authority", authority, "--json").stdout) for _ in "12"
    )
    assert (made["made"], again["made"], made["identifier"]) == (True, False, again["identifier"])
    listed = json.loads(run_cli("join", "--reissue", "--authority", authority, "--json").stdout)[
        "list"
    ]  # one lasts a year
    for name in SITES:
        assert run_cli("join", str(kits / name), "--revocation-list", listed).exit_code == 0
        assert run_cli("join", str(kits / name), "--column-key", made["column_key"]).exit_code == 0
    assert len({column_key_of(read_site(kits / name)) for name in SITES}) == 1
    command = [sys.executable, "-m", "deepca", "agent", "run", "--quiet"]
    agents = [subprocess.Popen([*command, str(kits / name)]) for name in SITES]
    try:
        assert [agent.wait(120.0) for agent in agents] == [0, 0, 0]
    finally:
        for agent in agents:
            agent.kill()
    exact = PCA(2).fit(StandardScaler().fit_transform(pooled(golden)))
    [content] = {(kits / name / "model.npz").read_bytes() for name in SITES}
    (tmp_path / "model.npz").write_bytes(content)
    assert_same_span(deepca.load(tmp_path / "model.npz").components, exact.components_, 1e-8)

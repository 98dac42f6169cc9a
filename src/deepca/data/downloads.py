"""Download files with pooch and report failures in one line."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from deepca.errors import DataError, MissingExtraError, NetworkError

__all__ = ["DownloadProgress", "download", "download_advice", "import_pooch"]

DownloadProgress = Callable[[int, int | None], None]
"""Called with ``(bytes so far, total bytes)`` during a download; the total is None unless the server announces it."""


def download(name: str, url: str, target: Path, progress: DownloadProgress | None, timeout: float) -> None:
    """Download a file, translating failures into NetworkError or DataError.

    Parameters
    ----------
    name : str
        Name of the data set, for messages.
    url : str
        Address of the file.
    target : Path
        File to write.
    progress : callable, optional
        Called with ``(bytes so far, total bytes)``.
    timeout : float
        Seconds without data from the server after which the download fails.

    Raises
    ------
    NetworkError
        If the server cannot be reached, does not have the file, or the transfer is interrupted.
    DataError
        If the file cannot be stored.
    MissingExtraError
        If pooch is missing.
    """
    pooch, failed = import_pooch(), import_module("requests.exceptions")  # requests comes with pooch
    bar, advice = _ProgressBar(progress), download_advice(name)
    # without compression in transit, so that the announced length is the length of the file
    get = pooch.HTTPDownloader(
        progressbar=bar, chunk_size=1 << 16, timeout=timeout, headers={"Accept-Encoding": "identity"}
    )
    try:
        get(url, str(target), None)
    except failed.HTTPError as error:
        error.response.close()
        status = f"{error.response.status_code} {error.response.reason}"
        raise NetworkError(f"the server answered {status!r} for {url}; {advice}") from error
    except (failed.ChunkedEncodingError, failed.ContentDecodingError) as error:
        raise NetworkError(_interrupted(name, url, bar)) from error
    except (failed.Timeout, failed.ConnectionError) as error:
        if isinstance(error, failed.Timeout) or "timed out" in str(error):
            raise NetworkError(f"no answer from {url} within {timeout:g} s; {advice}") from error
        raise NetworkError(f"{url} cannot be reached ({error}); check the network connection, or {advice}") from error
    except failed.RequestException as error:
        raise NetworkError(f"{url} could not be downloaded ({error}); {advice}") from error
    except OSError as error:
        raise DataError(
            f"the download of {url} cannot be stored ({error.strerror}); free disk space, or choose another cache"
        ) from error
    if target.stat().st_size < bar.total:  # older versions of urllib3 do not report this
        raise NetworkError(_interrupted(name, url, bar))


def _interrupted(name: str, url: str, bar: _ProgressBar) -> str:
    when = f" before all {bar.total:,} bytes had arrived" if bar.total else ""
    return f"the download of {url} was interrupted{when}; nothing was stored; {download_advice(name)}"


def download_advice(name: str) -> str:
    """Return the advice for a download that failed."""
    return f"try again later, or obtain {name} by other means and give the folder that contains it"


class _ProgressBar:
    """Progress bar with the interface that pooch expects, which reports to a callback."""

    def __init__(self, progress: DownloadProgress | None) -> None:
        self.total = 0  # set by pooch; 0 if the server does not announce it
        self._done, self._progress = 0, progress

    def update(self, n: int) -> None:
        """Report that n more bytes have arrived."""
        self._done = min(self._done + n, self.total) if self.total else self._done + n
        if self._progress is not None:
            self._progress(self._done, self.total or None)

    def reset(self) -> None:
        """Do nothing: pooch resets the bar at the end, only to fill it again."""

    def close(self) -> None:
        """Do nothing; pooch requires the method."""


def import_pooch() -> Any:
    """Import pooch; if it is missing, raise an error that says how to install it."""
    try:
        return import_module("pooch")
    except ImportError as error:
        message = "downloading data sets needs pooch; pip install 'deepca[data]'"
        raise MissingExtraError(message, name="pooch") from error

"""Keep the disclosure rules while an agent runs, and count the directions of the pooled covariance that totals show.

A product ``A P`` shows everybody the mean A of the ``A_j``, which is the covariance of all rows, in the directions of
the columns of P. Columns of several products may overlap, so their number is an upper bound on the directions shown;
there are no more than d. The smallest limit of all members holds for all of them. Since it and the count are the same
at every member, a run that would exceed the limit ends at all of them before the same product.
"""

from __future__ import annotations

import numpy as np

from deepca._util.logs import EventLogger
from deepca.decomposition.settings import Settings
from deepca.errors import DisclosureError
from deepca.network.agent import AgentNetwork
from deepca.sites.config.disclosure import shows_all_directions
from deepca.sites.config.site_file import SiteFile
from deepca.sites.runtime.promise_store import PromiseStore

__all__ = ["ShownDirections", "enforce_rules"]


class ShownDirections:
    """Number of directions that totals of one run have shown so far, and the limit.

    The number is stored before a product is sent: a run that is interrupted and starts over shows other directions.

    Parameters
    ----------
    d : int
        Number of columns.
    limit : int
        How many directions this site allows.
    promises : PromiseStore
        Where the number is stored.
    """

    def __init__(self, d: int, limit: int, promises: PromiseStore) -> None:
        self._d, self._own_limit, self._promises = d, limit, promises
        self.limit, self.count = limit, promises.load().directions

    def agree(self, network: AgentNetwork, settings: Settings) -> None:
        """Agree with the members of a plan on the smallest limit, and on the largest number that any of them knows.

        Settings that show all directions count at once. A single member shows nothing to anybody.

        Raises
        ------
        DisclosureError
            If such settings exceed the limit.
        """
        if network.n_agents == 1:
            return
        network.begin(network.epoch, 0, "disclosure")
        limit, known = network.reduce(np.array([float(self._own_limit), -float(self.count)]), "min")
        self.limit = int(np.clip(limit, 0.0, float(self._d)))
        self._set(int(np.clip(-known, 0.0, float(self._d))))
        if shows_all_directions(settings.n_components, settings.algorithm, settings.messages):
            self.add(self._d)

    def add(self, directions: int) -> None:
        """Count the columns of a product, before it is sent.

        Raises
        ------
        DisclosureError
            If the product could show more directions than all members allow.
        """
        after = min(self.count + directions, self._d)
        if after > self.limit:
            raise DisclosureError(
                "max_directions",
                f"this run has shown {self.count} of {self._d} directions of the pooled covariance and needs more, but "
                f"the smallest max_directions of all sites allows {self.limit}; raise it in [disclosure] of site.toml "
                "at every site that sets less, if the data officers agree, or ask for fewer components or a larger "
                "tolerance",
                value=after,
            )
        self._set(after)

    def _set(self, count: int) -> None:
        if count > self.count:
            self.count = count
            self._promises.store_directions(count)


def enforce_rules(site: SiteFile, d: int, log: EventLogger) -> None:
    """Check the rules that need no rows, and log what is weaker than the defaults.

    Raises
    ------
    DisclosureError
        If ``network.toml`` has too few sites, or its settings imply that too many directions are shown.
    """
    site.rules.check_sites(site.network)
    site.rules.check_settings(site.network, d)
    if len(site.network.sites) == 1:
        return
    if site.network.privacy == "open":
        log.warning(
            "this network is open: neighbours can learn the mean, covariance and row count of this site",
            event="open",
            facts={"privacy": "open"},
        )
    for one in site.rules.overrides(d):
        log.warning(
            f"disclosure rule overridden in site.toml: {one.text}",
            event="disclosure",
            facts={"rule": one.rule, "value": one.value, "default": one.default},
        )

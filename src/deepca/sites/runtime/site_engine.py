"""Engine of one site's process, which adds up the traffic of all sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from deepca.consensus.averaging import common_average
from deepca.engines.local import Engine
from deepca.network.agent import AgentNetwork
from deepca.network.traffic import Traffic

__all__ = ["SiteEngine"]


class SiteEngine(Engine):
    """Engine of one site's process, which reports the traffic of all members."""

    def __init__(self, network: AgentNetwork) -> None:
        self._network = network

    def totals(self, own: Traffic, proof: Traffic | None) -> tuple[Traffic, Traffic | None]:
        """Sum the traffic over all members with an exact average, so every member has to call this."""
        network, m = self._network, self._network.n_agents
        counts = [own] if proof is None else [own, proof]
        sent = np.array([[one.messages, one.bytes_sent, one.control_bytes] for one in counts], dtype=np.float64)
        network.begin(network.epoch, 0, "traffic")
        mean = common_average(network, sent.ravel()).reshape(-1, 3)
        summed = [[round(float(value) * m) for value in row] for row in mean]
        common = [
            replace(one, messages=row[0], bytes_sent=row[1], control_bytes=row[2], agents=m)
            for one, row in zip(counts, summed, strict=True)
        ]
        return common[0], None if proof is None else common[1]

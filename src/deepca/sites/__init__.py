"""Run one agent per site, where that site's rows are stored. These modules require the ``agent`` extra.

From the lowest layer up: ``config`` reads and writes the configuration files, ``protocol`` defines the messages between
neighbours, ``pki`` decides who may take part, ``transport`` carries the messages, ``runtime`` runs an agent, and
``admin`` has the operators' tools: kits, the doctor and trial networks.

Events are logged under the ``deepca.sites`` logger and discarded unless the application adds a handler.
"""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())

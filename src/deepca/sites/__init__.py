"""Run agents at separate sites, each next to its own rows. These modules require the ``agent`` extra.

From the foundation up: ``config`` reads and writes the configuration files, ``protocol`` defines what neighbours send
each other, ``pki`` decides who may take part, ``transport`` carries the messages, ``runtime`` runs an agent, and
``admin`` provides what operators need around a run.

Events are logged below the logger ``deepca.sites``; they are discarded unless a handler is added.
"""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())

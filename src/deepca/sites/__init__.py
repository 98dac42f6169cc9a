"""Agents at sites of their own, each beside its own rows. Modules import what the ``agent`` extra brings.

From the foundation up: ``config`` reads what is written down, ``protocol`` says what neighbours tell each other,
``pki`` who may speak, ``transport`` how messages travel, ``runtime`` is an agent at work, ``admin`` what operators do
around a run.

Events are logged below ``deepca.sites``, and go nowhere unless a handler is added.
"""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())

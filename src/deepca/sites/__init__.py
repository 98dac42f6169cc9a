"""Agents at sites of their own: what is written down, who is who, and what is said between neighbours.

``config`` reads network.toml and site.toml, ``certificates`` says who may speak, ``kits`` makes what every site is
handed. Modules import grpcio, protobuf and cryptography where they need them.
"""

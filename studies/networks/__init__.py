"""What directed and changing networks, and pairwise gossip, take beside networks that stay; and what losses do."""

"""The paper's claims, each with what was measured and whether it holds."""

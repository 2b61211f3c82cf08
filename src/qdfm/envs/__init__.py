"""Environments: pure JAX ones of our own, and the adapter between them, agents and Gymnasium."""

"""The mathematics of discrete flows. Knows arrays; knows nothing of rewards, datasets or agents.

Shapes, everywhere: a state of the chain is a vector of D tokens `[..., D]`, integers in 0..K−1, or K for a token
that is still masked. Rates and laws are `[..., D, K]`, legality masks `[..., D, K]` or anything that broadcasts to it.
"""

"""Data: the Dataset, its Spec, and everything that turns outside data into one."""

"""Draws path.png: a probability path, its rates and some simulated chains, for one token with five choices.

python docs/figures/draw_path.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from qdfm.algorithms.guidance import tilt
from qdfm.flow.path import target_rates
from qdfm.flow.samplers import euler, exact_law

MU = np.array([0.30, 0.25, 0.05, 0.25, 0.15])
Q = np.array([0.0, 1.0, 1.0, -1.0, 1.0])
BETA, STEPS, CHAINS, MANY = 1.5, 20, 14, 20_000
LEAVING = 3  # the action whose rates are drawn
COLOURS = ("#4c72b0", "#dd8452", "#8c8c8c", "#c44e52", "#55a868")


def marginal_rates(p0: jax.Array, p1: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
    """Target rates out of `current` `[..., 1]` at time t, averaged over the endpoints that could have led there."""
    here = jax.nn.one_hot(current, len(p1))  # [..., 1, K]
    stayed, arrived = (1 - t) * p0[current], t * p1[current]  # two ways to be at `current` at time t
    share = (stayed / (stayed + arrived))[..., None]
    return target_rates(share * p1 + (1 - share) * here, current, jnp.broadcast_to(t, current.shape[:-1]))


def chains(p0: jax.Array, p1: jax.Array, count: int, seed: int) -> np.ndarray:
    """Simulated chains `[STEPS + 1, count]`: `euler` asked for one step of length 1/N at a time."""
    start, moves = jax.random.split(jax.random.key(seed))
    current = jax.random.choice(start, len(p0), (count, 1), p=p0).astype(jnp.int32)
    uniforms = jax.random.uniform(moves, (STEPS, count, 1))
    history = [current]
    for n in range(STEPS):
        t = jnp.float32(n / STEPS)
        current = euler(lambda a, _, t=t: marginal_rates(p0, p1, a, t), current, uniforms[n : n + 1], alpha=1 / STEPS)
        history.append(current)
    return np.asarray(jnp.stack(history))[..., 0]


def draw(path: Path) -> None:
    """The picture."""
    p0 = jnp.full(len(MU), 1 / len(MU))
    p1 = tilt(jnp.log(jnp.asarray(MU)), jnp.asarray(Q), BETA)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, middle, right, bars) = plt.subplots(
        1, 4, figsize=(12.5, 3.4), width_ratios=(1, 1, 1.25, 0.6), layout="constrained"
    )

    t = np.linspace(0, 1, 101)
    for a, colour in enumerate(COLOURS):
        left.plot(t, (1 - t) * p0[a] + t * p1[a], color=colour, lw=2, label=f"action {a}")
    left.set(title="probability of each action", xlabel="time t", xlim=(0, 1), ylim=(0, None))
    left.legend(frameon=False, loc="upper left", fontsize=8)

    inside = np.linspace(0, 0.99, 100)
    current = jnp.array([LEAVING])
    rates = np.stack([np.asarray(marginal_rates(p0, p1, current, jnp.float32(s)))[0] for s in inside])
    for a, colour in enumerate(COLOURS):
        if a != LEAVING:
            middle.plot(inside, rates[:, a], color=colour, lw=2, label=f"to action {a}")
    middle.plot(inside, 1 / (1 - inside), color="black", lw=1, ls=":", label="1/(1−t)")
    middle.set(title=f"rates out of action {LEAVING}", xlabel="time t", xlim=(0, 1), ylim=(0, 6))
    middle.legend(frameon=False, loc="upper left", fontsize=8)

    some = chains(p0, p1, CHAINS, seed=2)
    offset = np.linspace(-0.28, 0.28, CHAINS)
    times = np.arange(STEPS + 1) / STEPS
    for i in range(CHAINS):
        y = some[:, i] + offset[i]
        right.step(times, y, where="post", color=COLOURS[some[-1, i]], lw=1.3, alpha=0.9)
        right.plot(times[[0, -1]], y[[0, -1]], "o", color=COLOURS[some[-1, i]], ms=3)
    right.set(title=f"{CHAINS} chains, {STEPS} Euler steps", xlabel="time t", xlim=(-0.02, 1.02))
    right.set(ylabel="action", yticks=range(len(MU)), ylim=(-0.5, len(MU) - 0.5))

    ends = np.bincount(chains(p0, p1, MANY, seed=1)[-1], minlength=len(MU)) / MANY
    law = exact_law(lambda a, s: marginal_rates(p0, p1, a, s), p0, tokens=1, steps=STEPS)
    bars.barh(range(len(MU)), ends, color=COLOURS, height=0.6)
    bars.plot(law, range(len(MU)), "k|", ms=16, mew=2, label="exact law")
    bars.set(title=f"where {MANY:,} end", xlabel="share", yticks=range(len(MU)), ylim=right.get_ylim())
    bars.legend(frameon=False, loc=(0.3, 0.62), fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(Path(__file__).with_name("path.png"))

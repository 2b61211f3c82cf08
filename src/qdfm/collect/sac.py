"""SAC (Haarnoja et al., 2018): how the policies in collect/policies were trained. Not an offline algorithm.

    python -m qdfm.collect.sac --env Hopper-v5 --steps 1000000 --out hopper_expert.npz
    python -m qdfm.collect.sac --env Hopper-v5 --until 1400 --out hopper_medium.npz
    python -m qdfm.collect.sac --env mo-hopper-d4morl --steps 3000000 --out mo_hopper.npz

Twin critics with y = r + γ(1 − terminated)(min_i Q̄_i(s', a') − α log π(a'|s')), an actor that minimises
α log π(a|s) − min_i Q_i(s, a), and log α that falls where the entropy exceeds −dim(a) and rises where it does not.
Actions are in units of the largest one, and so is π's density. With several objectives every episode has a
preference, drawn uniformly, which actor and critics see as part of the observation, and r is ⟨preference, reward⟩.

Where we differ: several environments are stepped in turns of `turn` steps, and as many updates as there were steps run
in one compiled scan meanwhile, on what came before. So the actor that plays is one turn behind.
"""

import math
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdfm.checkpoint import check_writable
from qdfm.collect.actor import LOG_STD, Actor, Weights, forward, layers, write_actor
from qdfm.collect.rollouts import Lane, Trajectories, empty_rows, episode_returns, gains, time_limit
from qdfm.errors import Diverged, QDFMError, told
from qdfm.progress import open_count

Twins = tuple[Weights, Weights]


@dataclass(frozen=True)
class SAC:
    """Train a policy and write it to a file, the best by its returns so far, and beside it the last one."""

    env: str
    """A Gymnasium id with continuous actions."""
    out: Path
    """The file of the best policy (.npz); the last one is kept beside it with -last in its name."""
    steps: int = 1_000_000
    """Environment steps in all."""
    until: float | None = None
    """Stop once the mean return of an evaluation reaches this."""
    seed: int = 0
    environments: int = 8
    """Environments that are stepped together."""
    turn: int = 16
    """Steps of each environment between two looks at the learner."""
    explore: int = 10_000
    """Steps with uniform actions, and without updates, at the beginning."""
    evaluate_every: int = 20_000
    """Steps between evaluations."""
    episodes: int = 10
    """Episodes of an evaluation, with the policy's own noise."""
    memory: int = 1_000_000
    """Transitions that are remembered."""
    batch: int = 256
    hidden: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    """How far the target critics move with each update."""


class Batch(NamedTuple):
    """Transitions on the device."""

    observation: jax.Array  # [B, n]
    action: jax.Array  # [B, A] in (−1, 1)
    reward: jax.Array  # [B]
    next_observation: jax.Array  # [B, n]
    terminated: jax.Array  # [B], 0 or 1


class Learner(NamedTuple):
    """All that training changes."""

    actor: Weights
    critics: Twins
    targets: Twins
    log_alpha: jax.Array
    optimisers: tuple[Any, Any, Any]  # of actor, critics and temperature


def draw(actor: Weights, observation: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions `[B, A]` in (−1, 1) and their log-density `[B]`: a Gaussian's, less log(1 − tanh²) of each dimension."""
    mean, log_std = jnp.split(forward(actor, observation), 2, -1)
    log_std = jnp.clip(log_std, *LOG_STD)
    before = mean + jnp.exp(log_std) * noise
    gaussian = -(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2
    squash = 2 * (math.log(2) - before - jax.nn.softplus(-2 * before))  # log(1 − tanh²), also far out
    return jnp.tanh(before), jnp.sum(gaussian - squash, -1)


def values(critics: Twins, observation: jax.Array, action: jax.Array) -> jax.Array:
    """What both critics say, `[2, B]`."""
    x = jnp.concatenate([observation, action], -1)
    return jnp.stack([forward(critic, x)[:, 0] for critic in critics])


def bootstrap(learner: Learner, batch: Batch, noise: jax.Array, gamma: float) -> jax.Array:
    """The critics' target y `[B]`."""
    action, log_prob = draw(learner.actor, batch.next_observation, noise)
    after = values(learner.targets, batch.next_observation, action).min(0) - jnp.exp(learner.log_alpha) * log_prob
    return batch.reward + gamma * (1 - batch.terminated) * after


def temperature_loss(log_alpha: jax.Array, log_prob: jax.Array, dimensions: int) -> jax.Array:
    """−log α · mean(log π − dim(a))."""
    return -log_alpha * jnp.mean(log_prob - dimensions)


def initial(config: SAC, key: jax.Array, size: int, dimensions: int) -> Learner:
    """A learner for observations of that size and actions of so many dimensions."""
    actor_key, one, other = jax.random.split(key, 3)
    actor = layers(actor_key, (size, config.hidden, config.hidden, 2 * dimensions))
    sizes = (size + dimensions, config.hidden, config.hidden, 1)
    critics = (layers(one, sizes), layers(other, sizes))
    log_alpha = jnp.zeros(())
    adam = optax.adam(config.learning_rate)
    optimisers = (adam.init(actor), adam.init(critics), adam.init(log_alpha))
    return Learner(actor, critics, jax.tree.map(jnp.copy, critics), log_alpha, optimisers)


def update(config: SAC, learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, jax.Array]:
    """One step of critics, actor, temperature and target critics; also the critics' loss."""
    dimensions = batch.action.shape[-1]
    noise = jax.random.normal(key, (2, *batch.action.shape))
    y = bootstrap(learner, batch, noise[0], config.gamma)
    alpha = jnp.exp(learner.log_alpha)

    def critic_loss(critics: Twins) -> jax.Array:
        return jnp.mean((values(critics, batch.observation, batch.action) - y) ** 2, -1).sum()

    loss, slope = jax.value_and_grad(critic_loss)(learner.critics)
    critics, critic_optimiser = _descend(config, slope, learner.optimisers[1], learner.critics)

    def actor_loss(actor: Weights) -> tuple[jax.Array, jax.Array]:
        action, log_prob = draw(actor, batch.observation, noise[1])
        return jnp.mean(alpha * log_prob - values(critics, batch.observation, action).min(0)), log_prob

    slope, log_prob = jax.grad(actor_loss, has_aux=True)(learner.actor)
    actor, actor_optimiser = _descend(config, slope, learner.optimisers[0], learner.actor)
    slope = jax.grad(temperature_loss)(learner.log_alpha, log_prob, dimensions)
    log_alpha, alpha_optimiser = _descend(config, slope, learner.optimisers[2], learner.log_alpha)
    targets = optax.incremental_update(critics, learner.targets, config.tau)
    return Learner(actor, critics, targets, log_alpha, (actor_optimiser, critic_optimiser, alpha_optimiser)), loss


def _descend(config: SAC, slope: Any, optimiser: Any, weights: Any) -> tuple[Any, Any]:
    step, optimiser = optax.adam(config.learning_rate).update(slope, optimiser)
    return optax.apply_updates(weights, step), optimiser


@partial(jax.jit, donate_argnums=0)
def remember(memory: Batch, rows: Batch, at: jax.Array) -> Batch:
    """The memory with new rows from a place on."""
    return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, at, 0), memory, rows)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def learn(config: SAC, learner: Learner, memory: Batch, filled: jax.Array, key: jax.Array) -> tuple[Learner, jax.Array]:
    """The updates of a turn on the rows that are filled; also their mean loss."""

    def one(learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
        rows_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(rows_key, (config.batch,), 0, filled)
        return update(config, learner, jax.tree.map(lambda x: x[rows], memory), noise_key)

    learner, losses = jax.lax.scan(one, learner, jax.random.split(key, config.environments * config.turn))
    return learner, losses.mean()


class Players:
    """The environments on the host, stepped in turns."""

    def __init__(self, config: SAC) -> None:
        self.lanes = [Lane(config.env, config.seed, i) for i in range(config.environments)]
        self.turn = config.turn

    def play(self, actor: Actor | None) -> Batch:
        """A turn's transitions, by the actor or, without one, uniformly at random."""
        lanes, dimensions = self.lanes, self.lanes[0].world.action_space.shape[0]  # type: ignore[index]
        high = self.lanes[0].world.action_space.high  # type: ignore[attr-defined]
        rows = empty_rows(lanes[0].world, self.turn * len(lanes))
        for t in range(self.turn):
            if actor is None:
                action = np.stack([lane.generator.uniform(-1, 1, dimensions) for lane in lanes]) * high
            else:
                noise = np.stack([lane.generator.standard_normal(dimensions) for lane in lanes])
                action = actor.act(np.stack([lane.now for lane in lanes]), noise)
            for i, lane in enumerate(lanes):
                lane.step(action[i].astype(np.float32), rows, t * len(lanes) + i)
        return _batch(rows, high)

    def close(self) -> None:
        """Let go of the environments."""
        for lane in self.lanes:
            lane.close()


def train(config: SAC, progress: bool = True) -> dict[int, float]:
    """Train and write the files; the mean return of each evaluation by the step at which it was made.

    What is lost when it is interrupted is the time since the last evaluation.
    """
    _check(config)
    with closing(Players(config)) as players:
        return _train(config, players, progress)


def _train(config: SAC, players: Players, progress: bool) -> dict[int, float]:
    space = players.lanes[0].world.action_space
    rows = config.environments * config.turn
    size = -(-min(config.memory, config.steps) // rows) * rows
    block = players.play(None)
    memory = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), jnp.float32), block)
    first, key = jax.random.split(jax.random.key(config.seed))
    learner = initial(config, first, block.observation.shape[1], block.action.shape[1])
    actor, done, loss = _actor(learner, space), rows, jnp.zeros(())
    returns: dict[int, float] = {}
    with open_count(f"{config.env} steps", config.steps, progress) as tell:
        while True:
            memory = remember(memory, block, (done - rows) % size)
            if done >= config.explore:
                learner, loss = learn(config, learner, memory, min(done, size), jax.random.fold_in(key, done))
            over = done >= config.steps
            if over or done // config.evaluate_every > (done - rows) // config.evaluate_every:
                actor = _actor(learner, space)
                returns[done] = _evaluate(config, actor, done, returns, learner.log_alpha, progress)
                if over or (config.until is not None and returns[done] >= config.until):
                    return returns
            block = players.play(actor if done >= config.explore else None)  # while the updates run
            done += rows
            tell(min(done, config.steps))
            if not np.isfinite(loss):
                raise Diverged(f"The critics' loss is {loss} at step {done}; the files hold the policies before.")
            actor = _actor(learner, space)


def _check(config: SAC) -> None:
    from gymnasium import spaces

    from qdfm.envs.gymnasium import registered, unknown_id
    from qdfm.envs.mujoco import make_plain

    if config.out.suffix != ".npz":
        raise QDFMError(f"{config.out} does not end in .npz; name the file of the policy so.")
    check_writable(config.out)
    if not registered(config.env):
        raise unknown_id("environment", config.env, ())
    if not time_limit(config.env):
        raise QDFMError(f"{config.env} has no time limit, so that an evaluation might never end; register it with one.")
    with closing(make_plain(config.env)) as world:
        space = world.action_space
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1 and np.array_equal(space.low, -space.high)):
        raise QDFMError(f"{config.env} has the action space {space}; SAC needs a Box between −high and high.")


def _batch(rows: Trajectories, high: np.ndarray) -> Batch:
    action = rows.action / high
    fields = (rows.observation, action, gains(rows), rows.next_observation, rows.terminated)
    return Batch(*(jnp.asarray(x, jnp.float32) for x in fields))


def _actor(learner: Learner, space: Any) -> Actor:
    """A copy on the host, since the learner's own arrays are given away to the next turn."""
    return Actor(tuple(np.array(w) for w in learner.actor), space.high)


def _evaluate(
    config: SAC, actor: Actor, done: int, before: dict[int, float], log_alpha: jax.Array, progress: bool
) -> float:
    """The mean return of the actor, which is written as the last and, if there was none better, as the best."""
    returns = episode_returns(config.env, actor, config.episodes, config.seed + 1)
    mean = float(returns.mean())
    write_actor(config.out.with_stem(f"{config.out.stem}-last"), actor.weights)
    if mean >= max(before.values(), default=-math.inf):
        write_actor(config.out, actor.weights)
    if progress:
        spread, alpha = returns.std(ddof=1) if len(returns) > 1 else 0.0, math.exp(float(log_alpha))
        print(f"step {done}: return {mean:.1f} ± {spread:.1f}, temperature {alpha:.3g}", file=sys.stderr, flush=True)
    return mean


def main() -> None:
    """The command line."""
    import tyro

    def run() -> None:
        train(tyro.cli(Annotated[SAC, tyro.conf.OmitArgPrefixes]))

    if code := told(run):
        sys.exit(code)


if __name__ == "__main__":
    main()

"""MAPPO (Yu et al., 2022): how the policies of the SMAX battles were trained. Not an offline algorithm.

    python -m qdfm.collect.ppo smax-3m 3m.npz --steps 3000000

Every agent draws from the same actor π(a | its observation, its number), over its legal choices. One critic V reads the
global state. With δ_t = r_t + γ(1 − terminated)V(s_{t+1}) − V(s_t) the advantages are A_t = δ_t + γλ(1 − ended)A_{t+1}
(GAE, Schulman et al., 2016), and each agent's choice has the clipped objective min(ρA, clip(ρ, 1 ± ε)A). The critic
minimises (V − A − V_old)².

Where we differ: no recurrence, since the policies are to be imitated from single observations; agents without a choice,
such as dead ones, do not count; and episodes that are cut off bootstrap from the state they were cut off in.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdfm.checkpoint import check_writable
from qdfm.collect.actor import NAMES, Weights, forward, layers
from qdfm.data.arrays import write_arrays
from qdfm.envs.base import Contest, TeamEnv
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.errors import Diverged, QDFMError, told, unknown
from qdfm.progress import open_count

SMALL = 0.01  # the first logits are almost equal
FORBIDDEN = -1e9  # the logit of an illegal choice
SECONDS = 60.0  # at least, between two writings of an unfinished run


@dataclass(frozen=True)
class PPO:
    """Train a team and write its actors of all checkpoints to a file."""

    env: str
    """A built-in environment of a team, such as smax-3m."""
    out: Path
    """The file of the actors (.npz)."""
    steps: int = 3_000_000
    """Environment steps in all."""
    seed: int = 0
    environments: int = 128
    """Environments that are stepped together."""
    turn: int = 64
    """Steps of each environment between two updates."""
    epochs: int = 4
    """How often an update goes through its steps."""
    minibatches: int = 4
    """Gradient steps of each time."""
    checkpoint: int = 1
    """Updates between two actors that are kept."""
    hidden: int = 128
    learning_rate: float = 2e-3
    """At the beginning; it falls to 0 at the end in equal steps."""
    gamma: float = 0.99
    trace: float = 0.95
    """λ of the advantages."""
    clip: float = 0.2
    """ε of the objective."""
    entropy: float = 0.01
    """The weight of the entropy."""
    largest: float = 0.5
    """The largest norm of a gradient."""
    scale: float = 0.1
    """What rewards are multiplied by, so that returns are about 1."""

    @property
    def updates(self) -> int:
        """In all, as whole checkpoints."""
        return self.checkpoint * max(1, round(self.steps / (self.environments * self.turn * self.checkpoint)))


class Nets(NamedTuple):
    """All that is learned."""

    actor: Weights
    critic: Weights


class Learner(NamedTuple):
    """All that training changes."""

    nets: Nets
    optimiser: Any
    worlds: Any  # states of the environments [N, ...]
    clock: jax.Array  # [N], steps since the episodes began
    paid: jax.Array  # [N], their returns so far
    unit: jax.Array  # [s], what the critic's inputs are divided by


class Turn(NamedTuple):
    """What happened, time first."""

    observation: jax.Array  # [T, N, G, o]
    mask: jax.Array  # [T, N, G, K]
    action: jax.Array  # [T, N, G]
    log_prob: jax.Array  # [T, N, G]
    state: jax.Array  # [T, N, s]
    next_state: jax.Array  # [T, N, s], before a new episode begins
    reward: jax.Array  # [T, N]
    terminated: jax.Array  # [T, N]
    ended: jax.Array  # [T, N], terminated or cut off
    won: jax.Array  # [T, N], where ended
    returned: jax.Array  # [T, N], the whole return where ended


class History(NamedTuple):
    """Actors of a run, one after the other, and how the episodes went that ended between each and the next."""

    actor: tuple[np.ndarray, ...]  # w0, b0, ... with a leading axis [C]
    steps: np.ndarray  # [C], before each
    won: np.ndarray  # [C], share of the episodes
    returned: np.ndarray  # [C], mean return


def log_law(actor: Weights, observation: jax.Array, mask: jax.Array) -> jax.Array:
    """log π `[..., G, K]` at observations `[..., G, o]` with legal choices `[..., G, K]`."""
    agents = observation.shape[-2]
    number = jnp.broadcast_to(jnp.eye(agents), (*observation.shape[:-1], agents))
    logits = forward(actor, jnp.concatenate([observation, number], -1))
    return jax.nn.log_softmax(jnp.where(mask, logits, FORBIDDEN), -1)


def draw(log_probs: jax.Array, uniforms: jax.Array) -> jax.Array:
    """One choice `[...]` per law `[..., K]`, by Gumbel's trick on uniforms `[..., K]`."""
    # `flow.samplers.inverse_cdf` would need one uniform, but draw other battles than those that results/ speaks of.
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniforms, jnp.finfo(jnp.float32).tiny)))
    return jnp.argmax(log_probs + gumbel, -1)


def advantages(delta: jax.Array, ended: jax.Array, gamma: float, trace: float) -> jax.Array:
    """A_t = δ_t + γλ(1 − ended_t)A_{t+1} for `[T, N]`, with nothing after the last step."""

    def back(after: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        here = now[0] + gamma * trace * jnp.where(now[1], 0, after)
        return here, here

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, ended), reverse=True)[1]


def initial(config: PPO, env: TeamEnv, key: jax.Array) -> Learner:
    """Fresh networks and fresh episodes."""
    spec, (actor_key, critic_key, reset_key, play_key) = env.spec, jax.random.split(key, 4)
    assert spec.state_shape is not None
    (size,), width = spec.state_shape, config.hidden
    actor = layers(actor_key, (spec.observation_shape[-1] + spec.agents, width, width, spec.num_choices))
    actor = (*actor[:-2], SMALL * actor[-2], jnp.zeros_like(actor[-1]))
    nets = Nets(actor, layers(critic_key, (size, width, width, 1)))
    worlds = jax.vmap(env.reset)(jax.random.split(reset_key, config.environments))
    nobody = jnp.zeros(config.environments)
    learner = Learner(nets, optimiser(config).init(nets), worlds, nobody.astype(jnp.int32), nobody, jnp.ones(size))
    largest = jnp.abs(play(config, env, learner, play_key)[1].state).max((0, 1))
    return learner._replace(unit=jnp.where(largest > 0, largest, 1))


def optimiser(config: PPO) -> optax.GradientTransformation:
    """Adam with a falling rate; the gradients of actor and critic are bounded apart."""
    falling = optax.linear_schedule(config.learning_rate, 0, config.updates * config.epochs * config.minibatches)
    each = optax.chain(optax.clip_by_global_norm(config.largest), optax.adam(falling, eps=1e-5))
    names: Any = Nets("actor", "critic")  # type: ignore[arg-type]
    return optax.multi_transform({"actor": each, "critic": each}, names)


def play(config: PPO, env: TeamEnv, learner: Learner, key: jax.Array) -> tuple[Learner, Turn]:
    """A turn of all environments; an episode that ends is followed by a new one."""
    actor, count = learner.nets.actor, config.environments

    def step(carry: Any, key: jax.Array) -> tuple[Any, Turn]:
        worlds, clock, paid = carry
        draw_key, move_key, reset_key = jax.random.split(key, 3)
        observation, mask = jax.vmap(env.observation)(worlds), jax.vmap(env.mask)(worlds)
        state = jax.vmap(env.global_state)(worlds)
        law = log_law(actor, observation, mask)
        action = draw(law, jax.random.uniform(draw_key, law.shape))
        log_prob = jnp.take_along_axis(law, action[..., None], -1)[..., 0]
        moved = jax.vmap(env.step)(worlds, action, jax.random.split(move_key, count))
        reward, clock = moved.reward[:, 0], clock + 1
        ended, paid = moved.terminated | (clock >= env.horizon), paid + reward
        won = jax.vmap(env.won)(moved.state) if isinstance(env, Contest) else jnp.zeros(count, bool)
        happened = Turn(
            observation, mask, action, log_prob, state, jax.vmap(env.global_state)(moved.state), reward,
            moved.terminated, ended, won & ended, jnp.where(ended, paid, 0),
        )  # fmt: skip
        fresh = jax.vmap(env.reset)(jax.random.split(reset_key, count))

        def begin(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(ended.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        worlds = jax.tree.map(begin, fresh, moved.state)
        return (worlds, jnp.where(ended, 0, clock), jnp.where(ended, 0, paid)), happened

    start = (learner.worlds, learner.clock, learner.paid)
    (worlds, clock, paid), turn = jax.lax.scan(step, start, jax.random.split(key, config.turn))
    return learner._replace(worlds=worlds, clock=clock, paid=paid), turn


class Rows(NamedTuple):
    """Steps to learn from, one per row."""

    observation: jax.Array  # [B, G, o]
    mask: jax.Array  # [B, G, K]
    action: jax.Array  # [B, G]
    log_prob: jax.Array  # [B, G]
    state: jax.Array  # [B, s]
    advantage: jax.Array  # [B]
    target: jax.Array  # [B]


def loss(config: PPO, nets: Nets, rows: Rows) -> jax.Array:
    """The actor's clipped objective and entropy, and the critic's square."""
    law = log_law(nets.actor, rows.observation, rows.mask)
    ratio = jnp.exp(jnp.take_along_axis(law, rows.action[..., None], -1)[..., 0] - rows.log_prob)  # [B, G]
    standard = (rows.advantage - rows.advantage.mean()) / (rows.advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * standard[:, None], jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * standard[:, None])
    entropy = -jnp.sum(jnp.exp(law) * jnp.where(rows.mask, law, 0), -1)  # [B, G]
    chooses = rows.mask.sum(-1) > 1
    gained = jnp.sum(jnp.where(chooses, gain + config.entropy * entropy, 0)) / jnp.maximum(chooses.sum(), 1)
    return jnp.mean((forward(nets.critic, rows.state)[:, 0] - rows.target) ** 2) - gained


def update(config: PPO, env: TeamEnv, learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
    """Play and learn; also the loss, how many episodes ended, how many were won, and the sum of their returns."""
    play_key, *epoch_keys = jax.random.split(key, config.epochs + 1)
    learner, turn = play(config, env, learner, play_key)
    state, next_state = turn.state / learner.unit, turn.next_state / learner.unit
    value, after = (forward(learner.nets.critic, x)[..., 0] for x in (state, next_state))
    delta = config.scale * turn.reward + config.gamma * jnp.where(turn.terminated, 0, after) - value
    advantage = advantages(delta, turn.ended, config.gamma, config.trace)
    rows = Rows(turn.observation, turn.mask, turn.action, turn.log_prob, state, advantage, advantage + value)
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    descend = optimiser(config)

    def one(carry: Any, chosen: jax.Array) -> tuple[Any, jax.Array]:
        nets, memory = carry
        value, slope = jax.value_and_grad(partial(loss, config))(nets, jax.tree.map(lambda x: x[chosen], rows))
        move, memory = descend.update(slope, memory)
        return (optax.apply_updates(nets, move), memory), value

    order = jnp.concatenate([jax.random.permutation(k, len(rows.target)) for k in epoch_keys])
    order = order.reshape(config.epochs * config.minibatches, -1)
    (nets, memory), losses = jax.lax.scan(one, (learner.nets, learner.optimiser), order)
    told = jnp.stack([losses.mean(), turn.ended.sum(), turn.won.sum(), turn.returned.sum()])
    return learner._replace(nets=nets, optimiser=memory), told


def train(
    config: PPO,
    env: TeamEnv | None = None,
    progress: bool = True,
    keep: Callable[[History], None] = lambda history: None,
) -> History:
    """Train in the environment, by default the one of the config's name; the actor of every checkpoint.

    `keep` gets those so far once a minute, so that no more is lost when training is interrupted.
    """
    env = environment(config.env) if env is None else env
    if (config.environments * config.turn) % config.minibatches:
        raise QDFMError(f"{config.minibatches} minibatches do not divide environments × turn; give a divisor.")
    first, key = jax.random.split(jax.random.key(config.seed, impl="threefry2x32"))
    learner = jax.jit(partial(initial, config, env))(first)

    @jax.jit
    def chunk(learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
        return jax.lax.scan(partial(update, config, env), learner, jax.random.split(key, config.checkpoint))

    actors: list[Weights] = []
    seen: list[tuple[int, float, float]] = []
    kept = time.monotonic()

    def history() -> History:
        steps, shares, returns = (np.array(column) for column in zip(*seen, strict=True))
        return History(tuple(np.stack(layer) for layer in zip(*actors, strict=True)), steps, shares, returns)

    rows, count = config.environments * config.turn * config.checkpoint, config.updates // config.checkpoint
    with open_count(f"{config.env} steps", rows * count, progress) as tell:
        for i in range(count):
            actors.append(jax.device_get(learner.nets.actor))
            learner, told = chunk(learner, jax.random.fold_in(key, i))
            losses, ended, won, returned = np.asarray(told, np.float64).T
            if not np.isfinite(losses).all():
                raise Diverged(f"The loss is {losses[-1]} after {rows * (i + 1)} steps; lower the learning rate.")
            episodes = max(ended.sum(), 1)
            seen.append((rows * i, won.sum() / episodes, returned.sum() / episodes))
            tell(rows * (i + 1))
            if progress:
                print("step {}: won {:.3f}, return {:.2f}".format(*seen[-1]), file=sys.stderr, flush=True)
            if time.monotonic() - kept >= SECONDS:
                keep(history())
                kept = time.monotonic()
    return history()


def environment(name: str) -> TeamEnv:
    """The team's environment of a name."""
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    env = ENVIRONMENTS[name]()
    if env.spec.agents == 1:
        raise QDFMError(f"{name} is played by one agent; choose the environment of a team, such as smax-3m.")
    if env.spec.objectives > 1:
        raise QDFMError(f"{name} has several objectives; choose the environment of a team with one, such as smax-3m.")
    return env  # type: ignore[return-value]


def write_history(path: Path, history: History) -> None:
    """Write the file of a run."""
    seen = {"steps": history.steps, "won": history.won, "returned": history.returned}
    write_arrays(path, dict(zip(NAMES, history.actor, strict=True)) | seen)


def main() -> None:
    """The command line."""
    import tyro

    def run() -> None:
        config = tyro.cli(PPO, config=(tyro.conf.PositionalRequiredArgs,))
        if config.out.suffix != ".npz":
            raise QDFMError(f"{config.out} does not end in .npz; name the file of the actors so.")
        check_writable(config.out)
        write_history(config.out, train(config, keep=partial(write_history, config.out)))

    if code := told(run):
        sys.exit(code)


if __name__ == "__main__":
    main()

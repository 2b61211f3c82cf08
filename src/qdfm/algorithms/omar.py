"""OMAR: offline multi-agent RL with actor rectification (Pan et al., 2022), for teams with discrete actions.

Every agent has a conservative critic of its own, all by one network, on the team's reward: Q_i minimises
(Q_i − y_i)² + α (log Σ_a exp Q_i(o_i, a) − Q_i(o_i, a_i)) with y_i = r + γ Σ_a π̄_i(a|o'_i) Q̄_i(o'_i, a). The actor
π_i(a|o_i) descends −(1 − τ) Σ_a π_i(a|o_i) Q_i(o_i, a) − τ log π_i(â_i|o_i): the policy gradient, which can get stuck
where Q_i has several peaks, and a pull towards â_i, the best action that a search without gradients finds.
Deviations: for continuous actions the search draws from a Gaussian that moves to better draws, round by round, and the
actor approaches its best draw in squared distance; among K choices the search is exact, â_i = argmax_a Q_i(o_i, a) over
the legal ones, and the distance is the cross-entropy. A softmax per agent instead of TD3's deterministic actor: sums
over π_i are exact, with no smoothing noise and no small penalty on the actor's outputs.
"""

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Metrics, legal_choices, sampled
from qdfm.algorithms.critic import CriticConfig, greedy_law, read, scalarise
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import MLP, context
from qdfm.valuenets import AgentValues


@dataclass(frozen=True)
class OMAR(CriticConfig):
    """Offline multi-agent RL with actor rectification."""

    train_steps: int = 60_000
    """Gradient steps."""
    penalty: float = 1.0
    """α, the weight of the conservative term (the authors: .5, 1 or 5 by data set; twice what CQL calls so)."""
    rectification: float = 0.9
    """τ, the weight of the pull towards the best action (the authors: .1 to 1 by data set, mostly .9 or 1)."""
    critics: int | None = 2
    """Size of the ensemble (the paper: 2)."""
    pessimism: str | None = "min"
    """How the ensemble is read: min, mean or mean-std (the paper: min)."""

    name = "omar"
    about = "teams: conservative critic of each agent, actor pulled to its best action"
    teams_only = True

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.penalty < 0:
            raise QDFMError(f"omar: penalty is {config.penalty}; it must be at least 0.")
        if not 0 <= config.rectification <= 1:
            raise QDFMError(f"omar: rectification is {config.rectification}; it must lie between 0 and 1.")

        def init(key: jax.Array) -> State:
            k1, k2 = jax.random.split(key)
            hidden, norm = config.critic_hidden or config.hidden, bool(config.layer_norm)
            critic = AgentValues(spec, hidden, config.critics or 1, spec.num_choices, norm, k2)
            return State(init_softmax(config, spec, k1), learner.start(critic, config.critic_learning_rate))

        def values(net: AgentValues, observation: jax.Array, preference: jax.Array) -> jax.Array:
            every = net(context(spec, observation, preference))
            return read(config, every, scalarise(every, preference))  # [B, G, K, objectives]

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            legal = legal_choices(spec, batch.mask, len(batch))  # [B, G, K]

            seen = batch.next_observation
            next_law = jnp.exp(log_softmax_of(spec, state.policy.average, seen, preference, batch.next_mask))
            next_q = values(state.critic.average, seen, preference)
            value = jnp.einsum("bgk,bgkr->bgr", next_law, next_q)
            critic, metrics = fit_agents(config, spec, state.critic, batch, preference, value)

            q = scalarise(values(critic.net, batch.observation, preference), preference)  # [B, G, K]

            def loss(net: MLP) -> jax.Array:
                log_pi = log_softmax_of(spec, net, batch.observation, preference, batch.mask)
                return rectified_loss(log_pi, q, legal, config.rectification)

            policy_loss, gradient = jax.value_and_grad(loss)(state.policy.net)
            policy = learner.descend(state.policy, gradient, config.learning_rate, config.ema)
            return State(policy, critic), metrics | {"policy_loss": policy_loss}

        return tokenwise(
            spec,
            init=init,
            phases=(sampled(config, spec, "train", config.train_steps, step),),
            policy=lambda state: state.policy.average,
            log_law=partial(log_softmax_of, spec),
        )


class State(eqx.Module):
    """The policy and the critic of all agents."""

    policy: Learner
    critic: Learner


def fit_agents(
    config: OMAR, spec: Spec, critic: Learner, batch: Dataset, preference: jax.Array, value: jax.Array
) -> tuple[Learner, Metrics]:
    """One conservative step of every agent's values towards r + γ·value, for values `[B, G, objectives]` of its own."""
    x = context(spec, batch.observation, preference)
    legal = legal_choices(spec, batch.mask, len(batch))
    taken = jax.nn.one_hot(batch.action, spec.num_choices, dtype=bool)  # [B, G, K]
    goes_on = (1 - batch.terminated.astype(value.dtype))[:, None, None]
    target = jax.lax.stop_gradient(batch.reward[:, None] + config.gamma * goes_on * value)

    def loss(net: AgentValues) -> tuple[jax.Array, jax.Array]:
        every = net(x)  # [E, B, G, K, objectives]
        error = jnp.sum(jnp.where(taken[..., None], every, 0), 3) - target
        worth = scalarise(every, preference)
        data_q = jnp.sum(jnp.where(taken, worth, 0), -1)  # [E, B, G]
        gap = logsumexp(jnp.where(legal, worth, -jnp.inf), -1) - data_q
        each = jnp.sum(error**2, -1) + config.penalty * gap
        return jnp.sum(jnp.mean(each, (1, 2))), data_q

    (lost, data_q), gradient = jax.value_and_grad(loss, has_aux=True)(critic.net)
    new = learner.descend(critic, gradient, config.critic_learning_rate, 1 - config.target_rate)
    return new, {"loss": lost, "q": jnp.mean(data_q), "q_abs": jnp.mean(jnp.abs(data_q))}


def rectified_loss(log_pi: jax.Array, q: jax.Array, legal: jax.Array, rectification: float) -> jax.Array:
    """The actors' loss, a mean over rows and agents of laws, values and legal choices `[B, G, K]`."""
    best = greedy_law(q, legal)
    gain = jnp.sum(jnp.exp(log_pi) * q, -1)
    fit = jnp.sum(jnp.where(best > 0, log_pi, 0), -1)
    return -jnp.mean((1 - rectification) * gain + rectification * fit)

"""CFCQL: counterfactual conservative Q-learning (Shao et al., 2023), for teams.

Q_tot minimises ½ (Q_tot − y)² + α (Σ_i λ_i log Σ_k exp Q_tot(s, k, a_−i) − Q_tot(s, a_data)): one agent at a time
leaves the logged joint action, over its own legal choices, so that the penalty does not grow with the team. Agents that
stray further from the behaviour count more, as in the authors' code: λ ∝ exp(τ KL_i) over agents, with KL_i the
divergence of π_i ∝ exp Q_tot(s, ·, a_−i) from the agent's behaviour, which is cloned first. `qmix.py` says what the
values are and how the team acts.
Deviations: the behaviour is cloned for a given number of steps; KL_i is exact, without the authors' floor of 1e-5 under
all probabilities.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.bc import clone_phase
from qdfm.algorithms.critic import init_critic
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.qmix import QMixConfig, conservative_step, greedy_team
from qdfm.algorithms.softmax import divergence, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError


@dataclass(frozen=True)
class CFCQL(QMixConfig):
    """Counterfactual conservative Q-learning."""

    clone_steps: int = 20_000
    """Gradient steps of the behaviour network."""
    sharpness: float = 0.5
    """τ: how much more agents count that stray from the behaviour; 0: all alike (the authors: 0 to 1, mostly .5)."""

    name = "cfcql"
    about = "for teams: QMIX with counterfactual conservative Q-learning"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.sharpness < 0:
            raise QDFMError(f"cfcql: sharpness is {config.sharpness}; it must be at least 0.")

        def init(key: jax.Array) -> State:
            k1, k2 = jax.random.split(key)
            return State(init_softmax(config, spec, k1), init_critic(config, spec, k2))

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            log_mu = log_softmax_of(spec, state.behaviour.average, batch.observation, preference, batch.mask)

            def gap(at_data: jax.Array, q: jax.Array) -> jax.Array:
                q = jnp.where(
                    jnp.isfinite(log_mu), q.reshape(*q.shape[:2], *log_mu.shape[1:]), -jnp.inf
                )  # [E, B, G, K]
                return jnp.sum(agent_weights(q, log_mu, config.sharpness) * logsumexp(q, -1), -1) - at_data

            actions = counterfactuals(batch.action, spec.num_choices)
            critic, metrics = conservative_step(config, spec, state.critic, batch, preference, actions, gap)
            return State(state.behaviour, critic), metrics

        clone = clone_phase(config, spec, config.clone_steps)
        return tokenwise(
            spec,
            init=init,
            phases=(clone, sampled(config, spec, "train", config.train_steps, step)),
            policy=lambda state: state.critic.average,
            log_law=greedy_team(config, spec),
        )


class State(eqx.Module):
    """The cloned behaviour and the critic."""

    behaviour: Learner
    critic: Learner


def counterfactuals(action: jax.Array, choices: int) -> jax.Array:
    """Joint actions `[B, G · K, G]`: the logged ones `[B, G]` with one agent's choice replaced by each of K."""
    agents = action.shape[-1]
    replaced = jnp.eye(agents, dtype=bool)[:, None]  # [G, 1, G]
    joint = jnp.where(replaced, jnp.arange(choices)[:, None], action[:, None, None])  # [B, G, K, G]
    return joint.reshape(len(action), agents * choices, agents)


def agent_weights(q: jax.Array, log_mu: jax.Array, sharpness: float) -> jax.Array:
    """λ `[E, B, G]` from counterfactual values `[E, B, G, K]` and log μ̂ `[B, G, K]`, both −inf at illegal choices."""
    away = divergence(jax.nn.log_softmax(q, -1), log_mu)
    return jax.lax.stop_gradient(jax.nn.softmax(sharpness * away, -1))

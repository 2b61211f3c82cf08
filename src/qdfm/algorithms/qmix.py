"""What the value methods of teams share: QMIX (Rashid et al., 2018) on logged data, with a conservative penalty.

Q_tot(s, a) is mixed from the agents' own values U_i(o_i, a_i) and increases in each, so that the best joint action is
every agent's own best. It minimises ½ (Q_tot − y)² plus a penalty, with y = r + γ Q̄_tot(s', a'), a' the best legal
actions by the agents' own values in training and Q̄ the target network (double Q). Agents act by the target's own
values, each by what it sees itself; the global state, where there is one, is for mixing only. As in QMIX, weights that
are never negative under an ELU make Q_tot convex in the own values: it can say that good choices are better still
together, not that they are worse, nor that agents had better differ.
Deviations: agents see the present observation, no history; the targets look one step ahead (td(λ) in PyMARL); squared
error; a target network that follows at every step. With several objectives each has a mixing of its own and an agent
takes its best ⟨ω, U_i⟩: under a preference between two objectives that need not be the best joint action. The own
values of an ensemble are read as its values are, although each member has its own mixing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Metrics, legal_choices
from qdfm.algorithms.critic import CriticConfig, critic_context, greedy_law, read, regress, vector_values
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import LogLaw
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.valuenets import Critic


@dataclass(frozen=True)
class QMixConfig(CriticConfig):
    """What these methods have."""

    train_steps: int = 60_000
    """Gradient steps of the values."""
    penalty: float = 1.0
    """α, the weight of the conservative term (CFCQL's authors: .1 to 50 by data set)."""
    critics: int | None = 1
    """Size of the ensemble (the papers: 1)."""
    pessimism: str | None = "mean"
    """How an ensemble is read: min, mean or mean-std."""

    teams_only = True

    def resolve(self, spec: Spec) -> Self:
        """Fill in what is left open, and refuse what does not go together."""
        config = super().resolve(spec)
        if config.penalty < 0:
            raise QDFMError(f"{self.name}: penalty is {config.penalty}; it must be at least 0.")
        return config

    def mixed(self, spec: Spec) -> bool:
        """Always."""
        return True

    def state_size(self, spec: Spec) -> int:
        """All of the global state."""
        return spec.state_size


def own_values(
    config: QMixConfig, spec: Spec, net: Critic, observation: jax.Array, preference: jax.Array
) -> jax.Array:  # fmt: skip
    """What each agent's choices are worth to itself, `[B, G, K]`; no global state is needed."""
    values = net.utilities(critic_context(config, spec, observation, preference))
    worth = config.worth(spec, values, preference, observation)
    return config.worth(spec, read(config, values, worth), preference, observation)


def conservative_step(
    config: QMixConfig,
    spec: Spec,
    critic: Learner,
    batch: Dataset,
    preference: jax.Array,
    actions: jax.Array,
    gap: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[Learner, Metrics]:
    """One step of QMIX with the penalty α · gap(Q(data) `[E, B]`, Q of joint actions `[E, B, M]`) `[E, B]`."""
    legal = legal_choices(spec, batch.next_mask, len(batch))
    own = own_values(config, spec, critic.net, batch.next_observation, preference)
    best = jnp.argmax(jnp.where(legal, own, -jnp.inf), -1)  # [B, G]
    value = vector_values(config, spec, critic.average, config.seen_next(batch), preference, best[:, None])[:, 0, 0]

    def penalty(values: jax.Array) -> jax.Array:
        q = config.worth(spec, values, preference, config.seen(batch))[:, :, 0]  # [E, B, 1 + M]
        # 2: the squared error comes without its ½
        return 2 * config.penalty * jnp.sum(jnp.mean(gap(q[..., 0], q[..., 1:]), -1))

    return regress(config, spec, critic, batch, preference, value, penalty, actions)


def greedy_team(config: QMixConfig, spec: Spec) -> LogLaw:
    """The law of every agent's best legal choice by its own value."""

    def log_law(critic: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        legal = legal_choices(spec, mask, len(observation))
        return jnp.log(greedy_law(own_values(config, spec, critic, observation, preference), legal))

    return log_law

"""MACQL: QMIX with CQL's penalty on joint actions, the baseline of Shao et al. (2023), for teams.

Q_tot minimises ½ (Q_tot − y)² + α (log Σ_a exp Q_tot(s, a) − Q_tot(s, a_data)), the sum over all legal joint actions
(Kumar et al., 2020). There are too many to enumerate, so the sum is estimated from joint actions of which one half is
drawn uniformly and the other from the agents' softmax over their own values, each weighed by one over the probability
of the mixture of both. `qmix.py` says what the values are and how the team acts.
Deviations: the authors draw uniformly only, illegal actions too, and count those as value 0; CQL weighs each half by
its own density, which for the softmax has no bound.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from qdfm.algorithms.base import Algorithm, Metrics, draw_batch, halved, legal_choices
from qdfm.algorithms.critic import init_critic
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.qmix import QMixConfig, conservative_step, greedy_team, own_values
from qdfm.algorithms.softmax import log_likelihood, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.samplers import inverse_cdf


@dataclass(frozen=True)
class MACQL(QMixConfig):
    """QMIX with CQL's penalty."""

    samples: int = 10
    """Joint actions drawn uniformly, and as many from the agents' softmax (CQL: 10; Shao et al.: 100, all uniform)."""

    name = "macql"
    about = "for teams: QMIX with conservative Q-learning over joint actions"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.samples < 1:
            raise QDFMError(f"macql: samples is {config.samples}; it must be at least 1.")

        def draw(dataset: Dataset, cache: None, key: jax.Array) -> tuple[Dataset, jax.Array, jax.Array]:
            rows, draws = jax.random.split(key)
            return *draw_batch(config, spec, dataset, rows), draws

        def step(critic: Learner, drawn: tuple[Dataset, jax.Array, jax.Array]) -> tuple[Learner, Metrics]:
            batch, preference, draws = drawn
            legal = legal_choices(spec, batch.mask, len(batch))
            own = own_values(config, spec, critic.net, batch.observation, preference)
            actions, log_density = propose(draws, own, legal, config.samples)

            def gap(at_data: jax.Array, q: jax.Array) -> jax.Array:
                return logsumexp(q - log_density, -1) - jnp.log(q.shape[-1]) - at_data

            return conservative_step(config, spec, critic, batch, preference, actions, gap)

        return tokenwise(
            spec,
            init=partial(init_critic, config, spec),
            phases=(halved("train", config.train_steps, draw, step),),
            policy=lambda critic: critic.average,
            log_law=greedy_team(config, spec),
        )


def propose(key: jax.Array, own: jax.Array, legal: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
    """Legal joint actions `[B, 2 · samples, G]` and the log-density `[B, 2 · samples]` of the mixture they come from.

    The first half is uniform, the second drawn from each agent's softmax over its own values `[B, G, K]`.
    """
    scores = jnp.stack([jnp.zeros_like(own), own])
    log_laws = jax.nn.log_softmax(jnp.where(legal, scores, -jnp.inf), -1)  # [2, B, G, K]
    drawn = inverse_cdf(jax.random.uniform(key, (*scores.shape[:-1], samples)), jnp.exp(log_laws))  # [2, B, G, samples]
    actions = jnp.moveaxis(jnp.concatenate([*drawn], -1), 1, 2)
    density = jax.vmap(lambda law: jax.vmap(partial(log_likelihood, law), 1, 1)(actions))(log_laws)  # [2, B, M]
    return actions, jax.lax.stop_gradient(logsumexp(density, 0) - jnp.log(2))

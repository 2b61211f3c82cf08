"""Critics: Q(s, a, ω) ∈ R^objectives by Bellman regression, shared by every algorithm that has values.

What the value of the next state is (a maximum, a mean over a policy, a Boltzmann backup) each algorithm says itself.
Common to all, and missing from the paper's printed algorithm: no value beyond a terminated step (truncation does
bootstrap), an EMA target network, an ensemble with a pessimistic reading as an option.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Config, Metrics, check_choice, legal_choices
from qdfm.algorithms.learner import Learner
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import context, quantities
from qdfm.valuenets import Critic


@dataclass(frozen=True)
class CriticConfig(Config):
    """What every algorithm with a critic has. None: chosen by `resolve` from the spec."""

    critic_learning_rate: float = 3e-4
    """Adam's step size for the critic, whose targets move (CQL, IQL, BRAC: 3e-4)."""
    gamma: float = 0.99
    """Discount factor."""
    critic: str = "vector"
    """vector: Q(s, a, ω), one target per objective; scalarised: the paper's Q(s, a), trained on ⟨ω, Q⟩."""
    critic_hidden: tuple[int, ...] | None = None
    """Widths of the critic's hidden layers (None: as `hidden`)."""
    critics: int | None = None
    """Size of the ensemble (None: 2 for one token, 4 for several; guided methods: 4 for continuous actions too)."""
    pessimism: str | None = None
    """How the ensemble is read: min, mean or mean-std (None: mean-std where there are 4 by default, else min)."""
    target_rate: float = 0.005
    """Rate at which the target network follows (SAC, IQL, BRAC: .005); value methods act by that network."""
    layer_norm: bool | None = None
    """Layer norm in critics, and in the flow where there is one (None: for several tokens only)."""

    def resolve(self, spec: Spec) -> Self:
        """Fill in what depends on the number of tokens, and check the words."""
        single = spec.tokens == 1
        filled: dict[str, Any] = {
            "critics": 2 if single else 4,
            "pessimism": "min" if single else "mean-std",
            "layer_norm": not single,
        }
        config = replace(super().resolve(spec), **{k: v for k, v in filled.items() if getattr(self, k) is None})
        check_choice(config, "critic", ("vector", "scalarised"))
        check_choice(config, "pessimism", ("min", "mean", "mean-std"))
        if config.critic == "scalarised" and spec.objectives > 1 and (config.teams_only or config.mixed(spec)):
            raise QDFMError(f'{self.name}: values of a team\'s agents follow the preference; leave critic="vector".')
        if (config.critics or 0) < 1:
            raise QDFMError(f"{self.name}: critics is {config.critics}; it must be at least 1.")
        if config.target_rate > 1:
            raise QDFMError(f"{self.name}: target_rate is {config.target_rate}; it must be at most 1.")
        if not 0 <= config.gamma <= 1:
            raise QDFMError(f"{self.name}: gamma is {config.gamma}; it must lie between 0 and 1.")
        return config

    def critic_rate(self) -> learner.Rate:
        """The step size of the critic."""
        return self.critic_learning_rate

    def state_size(self, spec: Spec) -> int:
        """How many numbers of a team's global state the critic reads: none, where it is needed when agents act."""
        return 0

    def mixed(self, spec: Spec) -> bool:
        """Whether the values of a team are mixed from its agents' own."""
        return False

    def seen(self, batch: Dataset) -> "jax.Array | Seen":
        """What the critic looks at now."""
        return Seen(batch.observation, batch.state) if self.state_size(batch.spec) else batch.observation

    def seen_next(self, batch: Dataset) -> "jax.Array | Seen":
        """What the critic looks at one step later."""
        return Seen(batch.next_observation, batch.next_state) if self.state_size(batch.spec) else batch.next_observation

    def worth(self, spec: Spec, values: jax.Array, preference: jax.Array, observation: "jax.Array | Seen") -> jax.Array:
        """What values `[..., B, T, M, objectives]` are worth under preferences `[B, objectives]`: ⟨ω, Q⟩."""
        return scalarise(values, preference)


class Seen(NamedTuple):
    """A team's observations together with its global state."""

    observation: jax.Array
    state: jax.Array


def init_critic(config: CriticConfig, spec: Spec, key: jax.Array, decomposed: bool = True) -> Learner:
    """A fresh critic, whose average is the target network; `decomposed`: one that adds up over several tokens."""
    assert config.critics is not None and config.layer_norm is not None  # resolved
    hidden = config.critic_hidden or config.hidden
    mixed, state = config.mixed(spec), config.state_size(spec)
    net = Critic(
        spec, hidden, config.critics, config.critic == "vector", config.layer_norm, decomposed, key, mixed, state
    )  # fmt: skip
    return learner.start(net, config.critic_rate())


def scalarise(values: jax.Array, preference: jax.Array) -> jax.Array:
    """⟨ω, Q⟩ for values `[..., B, T, M, objectives]` and preferences `[B, objectives]`."""
    return jnp.einsum("...btmr,br->...btm", values, preference)


def read(config: CriticConfig, values: jax.Array, worth: jax.Array) -> jax.Array:
    """One vector of values `[B, T, M, objectives]` from an ensemble `[E, B, T, M, objectives]` and what each is worth.

    Decomposed values of several tokens are read token by token, which is at least as pessimistic as reading their sum.
    """
    if config.pessimism == "mean-std":
        return jnp.mean(values, 0) - jnp.std(values, 0)
    if config.pessimism == "mean":
        return jnp.mean(values, 0)
    worst = jnp.argmin(worth, 0)  # the member that is worst under the preference
    return jnp.take_along_axis(values, worst[None, ..., None], 0)[0]


def critic_context(config: CriticConfig, spec: Spec, seen: jax.Array | Seen, preference: jax.Array) -> jax.Array:
    """The input of the critic: a scalarised critic does not see the preference."""
    observation, state = seen if isinstance(seen, Seen) else (seen, None)
    x = context(spec, observation, preference if config.critic == "vector" else None)
    return x if state is None else jnp.concatenate([x, quantities(state.reshape(len(x), -1))], -1)


def vector_values(
    config: CriticConfig, spec: Spec, net: Critic, observation: "jax.Array | Seen", preference: jax.Array,
    actions: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Values `[B, T, M, objectives]` as the ensemble is read: of actions `[B, M, D]`, or of all choices (None)."""
    values = net.values(critic_context(config, spec, observation, preference), actions)
    return read(config, values, config.worth(spec, values, preference, observation))


def preferred_values(
    config: CriticConfig, spec: Spec, net: Critic, observation: "jax.Array | Seen", preference: jax.Array,
    actions: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """The same under the preference, `[B, T, M]`."""
    values = vector_values(config, spec, net, observation, preference, actions)
    return config.worth(spec, values, preference, observation)


def expected(law: jax.Array, values: jax.Array) -> jax.Array:
    """E Q `[B, objectives]` under independent laws `[B, T, M]` of decomposed values `[B, T, M, objectives]`."""
    return jnp.einsum("btm,btmr->br", law, values)


def greedy_law(q: jax.Array, allowed: jax.Array) -> jax.Array:
    """The law `[B, T, M]` of the best allowed choice of every token, whose sum is the best joint action."""
    best = jnp.argmax(jnp.where(allowed, q, -jnp.inf), -1)
    return jax.nn.one_hot(best, q.shape[-1], dtype=q.dtype)


def double_q(
    config: CriticConfig, spec: Spec, critic: Learner, observation: jax.Array, preference: jax.Array, allowed: jax.Array
) -> jax.Array:
    """Values `[B, objectives]` of the best allowed actions, chosen by the network and valued by its target."""
    choice = greedy_law(preferred_values(config, spec, critic.net, observation, preference), allowed)
    return expected(choice, vector_values(config, spec, critic.average, observation, preference))


def conservative(
    config: CriticConfig, spec: Spec, batch: Dataset, preference: jax.Array, weight: float
) -> Callable[[jax.Array], jax.Array]:
    """CQL's penalty on values `[E, B, D, K, objectives]` of all choices: weight · (log Σ_a exp Q(s, a) − Q(s, a_data)).

    Twice that, because `regress` takes the squared error without its ½.
    """
    legal = legal_choices(spec, batch.mask, len(batch))

    def penalty(values: jax.Array) -> jax.Array:
        q = jnp.where(legal, config.worth(spec, values, preference, config.seen(batch)), -jnp.inf)  # [E, B, D, K]
        taken = jax.nn.one_hot(batch.action, q.shape[-1], dtype=bool)
        gap = jnp.sum(logsumexp(q, -1) - jnp.sum(jnp.where(taken, q, 0), -1), -1)  # [E, B]
        return 2 * weight * jnp.sum(jnp.mean(gap, -1))

    return penalty


def regress(
    config: CriticConfig,
    spec: Spec,
    critic: Learner,
    batch: Dataset,
    preference: jax.Array,
    value: jax.Array,
    penalty: Callable[[jax.Array], jax.Array] | None = None,
    actions: jax.Array | None = None,
) -> tuple[Learner, Metrics]:
    """One step towards r + γ·value, given the next states' values `[B, objectives]`, or each member's own `[E, ...]`.

    `penalty(values)` is added to the squared error, for the values `[E, B, D, K, objectives]` of all choices; or, given
    joint actions `[B, M, D]`, for those `[E, B, 1, 1 + M, objectives]` of the logged action and them.
    """
    x = critic_context(config, spec, config.seen(batch), preference)
    target = batch.reward + config.gamma * (1 - batch.terminated.astype(value.dtype))[:, None] * value
    target = jax.lax.stop_gradient(target)

    def loss(net: Critic) -> tuple[jax.Array, jax.Array]:
        if penalty is None:
            q = net.values(x, batch.action[:, None])[:, :, 0, 0]  # [E, B, objectives]
        elif actions is None:  # one pass for both: two would be differentiated twice
            every = net.values(x)
            q = jnp.sum(jnp.take_along_axis(every, batch.action[None, :, :, None, None], 3), (2, 3))
        else:
            every = net.values(x, jnp.concatenate([batch.action[:, None], actions], 1))
            q = every[:, :, 0, 0]
        error = q - target
        if config.critic == "scalarised":
            error = jnp.einsum("ebr,br->eb", error, preference)[..., None]
        total = jnp.sum(jnp.mean(jnp.sum(error**2, -1), 1))
        return total if penalty is None else total + penalty(every), q

    (value_loss, q), gradient = jax.value_and_grad(loss, has_aux=True)(critic.net)
    new = learner.descend(critic, gradient, config.critic_rate(), 1 - config.target_rate)
    data_q = config.worth(spec, q[:, :, None, None], preference, config.seen(batch))
    return new, {"loss": value_loss, "q": jnp.mean(data_q), "q_abs": jnp.mean(jnp.abs(data_q))}

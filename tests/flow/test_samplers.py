"""The simulated chain against closed forms, its exact law against enumeration, its draws against that law.

What differs between cases of one shape is an input of one compiled program.
"""

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.flow.path import draw_source
from qdfm.flow.rates import PARAMETERISATIONS, off_diagonal
from qdfm.flow.samplers import Rates, euler, exact_law, inverse_cdf, joint_states, jump_law, one_step

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
DRAWS = 100_000
ROWS = 30
draw_by = jax.jit(inverse_cdf)


def exact_rates(pi: np.ndarray | jax.Array, tokens: int, k: int, masked: bool = False) -> Rates:
    """Rates for a joint law `pi[A0, A1]`, from each token's endpoint given the whole current action."""
    ends = joint_states(tokens, k)
    starts = np.full((1, tokens), k) if masked else ends
    end = jnp.asarray(np.eye(k)[ends])  # [A1, D, K]

    def rates(current: jax.Array, t: jax.Array) -> jax.Array:
        here = current[:, None, None]
        path = jnp.prod((1 - t) * (here == starts[:, None]) + t * (here == ends), -1)  # [J, A0, A1]
        joint = jnp.einsum("jse,se,edk->jdk", path, jnp.asarray(pi), end)
        total = jnp.sum(joint, -1, keepdims=True)
        law = jnp.where(total > 0, joint / jnp.where(total > 0, total, 1), 1 / k)  # anything where never
        times = jnp.broadcast_to(t, current.shape[:-1])
        return off_diagonal("posterior", jnp.log(law), current, times, jnp.ones(k, bool), masked)

    return rates


class Programs(NamedTuple):
    """The compiled functions of all chains with one table of scores."""

    rates: Callable[..., jax.Array]  # (states, t, legal)
    law: Callable[..., jax.Array]  # (p0, α, legal, steps)
    draw: Callable[..., jax.Array]  # (key, p0 or None for the uniform source, α, legal, steps, draws)


@cache
def programs(name: str, k: int, tokens: int, masked: bool) -> Programs:
    """Scores are a random table that depends on the whole action and on time."""
    states = k + masked
    every = joint_states(tokens, states)
    size = (2, states**tokens, tokens, k)
    constant, slope = np.random.default_rng(k + 10 * tokens).normal(0, 1, size).astype(np.float32)

    def rates(current: jax.Array, t: jax.Array, legal: jax.Array) -> jax.Array:
        index = jnp.sum(current * states ** jnp.arange(tokens)[::-1], -1)
        times = jnp.broadcast_to(t, current.shape[:-1])
        return off_diagonal(name, (constant + t * slope)[index], current, times, legal, masked)

    def law(p0: jax.Array, alpha: float, legal: jax.Array, steps: int) -> jax.Array:
        return exact_law(lambda a, t: rates(a, t, legal), p0, tokens, steps, alpha, masked)

    def draw(key: jax.Array, p0: jax.Array | None, alpha: float, legal: jax.Array, steps: int, draws: int) -> jax.Array:
        key_start, key_path = jax.random.split(key)
        if p0 is None:
            a0 = draw_source(jax.random.uniform(key_start, (draws, tokens)), legal)
        else:
            a0 = jnp.asarray(every)[inverse_cdf(jax.random.uniform(key_start, (draws,)), p0)]
        u = jax.random.uniform(key_path, (steps, draws, tokens))
        return euler(lambda a, t: rates(a, t, legal), a0, u, alpha, masked)

    return Programs(
        jax.jit(rates),
        jax.jit(law, static_argnames="steps"),
        jax.jit(draw, static_argnames=("steps", "draws"), compiler_options={"xla_backend_optimization_level": 1}),
    )


class Chain(NamedTuple):
    """A chain of `programs`."""

    rates: str
    steps: int
    alpha: float
    start: str  # uniform, fixed, given or mask
    k: int = 4
    tokens: int = 1
    legal: tuple[tuple[int, ...], ...] | None = None

    @property
    def masked(self) -> bool:
        return self.start == "mask"

    @property
    def states(self) -> int:
        return self.k + self.masked

    @property
    def allowed(self) -> np.ndarray:
        return np.ones((self.tokens, self.k), bool) if self.legal is None else np.array(self.legal, bool)

    @property
    def reachable(self) -> np.ndarray:
        """Which joint states are made of legal choices only."""
        return self.allowed[np.arange(self.tokens), joint_states(self.tokens, self.k)].all(-1)

    @property
    def programs(self) -> Programs:
        return programs(self.rates, self.k, self.tokens, self.masked)

    def rate_function(self) -> Rates:
        return lambda current, t: self.programs.rates(current, t, self.allowed)

    def start_law(self) -> np.ndarray:
        every = joint_states(self.tokens, self.states)
        if self.start == "mask":
            return (every == self.k).all(-1) * 1.0
        if self.start == "uniform":
            return self.reachable / self.reachable.sum()
        if self.start == "fixed":
            return np.eye(len(every))[np.flatnonzero(self.reachable)[-1]]
        p = np.random.default_rng(1).dirichlet(np.ones(len(every))) * self.reachable
        return p / p.sum()

    def law(self) -> np.ndarray:
        """The exact law, over the joint states of the chain."""
        return np.asarray(self.programs.law(self.start_law(), self.alpha, self.allowed, self.steps), np.float64)

    def draw(self, seed: int, draws: int = DRAWS) -> np.ndarray:
        """Counts of the joint states in draws of `euler`."""
        p0 = None if self.start == "uniform" else self.start_law().astype(np.float32)
        end = self.programs.draw(jax.random.key(seed), p0, self.alpha, self.allowed, self.steps, draws)
        index = np.ravel_multi_index(tuple(np.asarray(end).T), (self.states,) * self.tokens)
        return np.bincount(index, minlength=self.states**self.tokens)


CHAINS = {
    f"{c.rates} N={c.steps} α={c.alpha:g} {c.start} K={c.k} D={c.tokens}{' illegal' if c.legal else ''}": c
    for c in (
        Chain("posterior", 1, 1, "uniform"),
        Chain("posterior", 5, 1, "fixed"),
        Chain("posterior", 20, 1, "given"),
        Chain("softplus", 1, 2, "given"),
        Chain("softplus", 5, 2, "uniform"),
        Chain("posterior", 20, 2, "fixed"),
        Chain("softplus", 1, 5, "fixed"),
        Chain("posterior", 5, 5, "given"),
        Chain("softplus", 20, 5, "uniform"),
        Chain("softplus", 20, 1, "fixed"),
        Chain("posterior", 5, 1, "uniform", 3, 2),
        Chain("softplus", 20, 2, "given", 3, 2),
        Chain("softplus", 5, 5, "uniform", 2, 3),
        Chain("posterior", 5, 1, "mask"),
        Chain("softplus", 5, 1, "mask"),
        Chain("posterior", 1, 1, "mask", 3, 2),
        Chain("posterior", 5, 1, "mask", 3, 2),
        Chain("posterior", 20, 5, "mask", 2, 3),
        Chain("posterior", 5, 2, "uniform", 4, 1, ((0, 1, 1, 0),)),
        Chain("softplus", 20, 5, "given", 3, 2, ((1, 0, 1), (0, 1, 1))),
        Chain("posterior", 5, 1, "mask", 3, 2, ((1, 0, 1), (1, 1, 0))),
    )
}


def by_hand(chain: Chain) -> np.ndarray:
    """The law of Algorithm 2 with its repairs, told again in loops."""
    rates = chain.rate_function()
    every = joint_states(chain.tokens, chain.states)
    p = chain.start_law()
    for n in range(chain.steps):
        u = np.asarray(rates(every, np.float64(n / chain.steps)))
        new = np.zeros_like(p)
        for i, here in enumerate(every):
            tokens = []
            for d in range(chain.tokens):
                jump = chain.alpha * u[i, d] / chain.steps
                last = chain.masked and n == chain.steps - 1 and here[d] == chain.k
                if last or jump.sum() > 1:
                    jump = jump / jump.sum()
                law = np.zeros(chain.states)
                law[: chain.k] = jump
                law[here[d]] += 1 - jump.sum()
                tokens.append(law)
            for j, there in enumerate(every):
                new[j] += p[i] * np.prod([law[x] for law, x in zip(tokens, there)])
        p = new
    return p


@pytest.mark.parametrize("name", CHAINS)
def test_exact_law_is_the_algorithm_step_by_step(x64, name):
    law = CHAINS[name].law()
    assert np.abs(law - by_hand(CHAINS[name])).max() < 1e-12
    assert np.all(law >= 0)
    assert law.sum() == pytest.approx(1, abs=1e-12)


def test_draws_follow_the_law_of_the_discretised_chain(rejected):
    cases = {name: (chain.draw(seed), chain.law()) for seed, (name, chain) in enumerate(CHAINS.items())}
    assert not rejected(cases)
    for counts, law in cases.values():
        assert counts.sum() == DRAWS
        assert np.all(counts[law == 0] == 0)


def test_the_goodness_of_fit_would_notice_another_chain(rejected):
    one, other = Chain("softplus", 20, 1, "uniform"), Chain("softplus", 20, 1.1, "uniform")
    assert np.abs(one.law() - other.law()).sum() / 2 < 0.03
    cases = {"same": (one.draw(8), one.law()), "other": (other.draw(8), one.law())}
    assert list(rejected(cases)) == ["other"]


@pytest.mark.parametrize("name", [n for n, c in CHAINS.items() if c.legal])
def test_illegal_choices_have_no_rate_and_no_probability(name):
    chain = CHAINS[name]
    every = joint_states(chain.tokens, chain.states)
    for t in (0.0, 0.8):
        rates = chain.rate_function()(every, np.float32(t))
        assert np.all(np.asarray(rates)[:, ~chain.allowed] == 0)
        assert np.all(np.asarray(jump_law(rates, 0.2, 5.0))[:, ~chain.allowed] == 0)
    ends = (slice(chain.k),) * chain.tokens
    legal = chain.reachable.reshape((chain.k,) * chain.tokens)
    law = chain.law().reshape((chain.states,) * chain.tokens)[ends]
    assert np.all(law[~legal] == 0)
    assert np.all(law[legal] > 0)
    drawn = chain.draw(99, 10_000).reshape((chain.states,) * chain.tokens)[ends]
    assert drawn[legal].sum() == 10_000


@cache
def law_of_exact_rates(steps: int, k: int, tokens: int = 1, masked: bool = False) -> Callable[..., jax.Array]:
    """The compiled law after so many steps, for a joint law `pi[A0, A1]` and a law of A0."""
    return jax.jit(lambda pi, p0: exact_law(exact_rates(pi, tokens, k, masked), p0, tokens, steps, masked=masked))


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("coupling", ["uniform source", "other source", "certain source", "dependent"])
def test_one_token_with_exact_rates_has_no_error_at_any_number_of_steps(x64, steps, coupling):
    k = 6
    rng = np.random.default_rng(0)
    p1 = rng.dirichlet(np.ones(k))
    p0 = {
        "uniform source": np.full(k, 1 / k),
        "other source": rng.dirichlet(np.ones(k)),
        "certain source": np.eye(k)[2],
        "dependent": np.full(k, 1 / k),
    }[coupling]
    pi = np.outer(p0, p1)
    if coupling == "dependent":
        pi = rng.dirichlet(np.ones(k * k)).reshape(k, k)
        p0, p1 = pi.sum(1), pi.sum(0)
    law = law_of_exact_rates(steps, k)(pi, p0)
    assert law.dtype == jnp.float64
    assert np.abs(np.asarray(law) - p1).max() < 1e-13


@pytest.mark.parametrize("masked", [False, True])
def test_two_tokens_in_parallel_err_by_one_over_n(x64, masked):
    k = 3
    p1 = np.random.default_rng(1).dirichlet(np.full(k * k, 0.4))
    independent = np.outer(p1.reshape(k, k).sum(1), p1.reshape(k, k).sum(0)).ravel()
    assert np.abs(p1 - independent).sum() / 2 > 0.2  # correlated
    pi = p1[None] if masked else np.outer(np.full(k * k, 1 / k**2), p1)
    p0 = np.eye((k + 1) ** 2)[-1] if masked else np.full(k * k, 1 / k**2)
    steps, error = np.array([16, 32, 64, 128, 256]), []
    for n in steps:
        law = np.asarray(law_of_exact_rates(int(n), k, 2, masked)(pi, p0))
        law = law.reshape(k + masked, k + masked)[:k, :k].ravel()
        assert law.sum() == pytest.approx(1, abs=1e-12)
        error.append(np.abs(law - p1).sum() / 2)
    slope = np.polyfit(np.log(steps), np.log(error), 1)[0]
    assert -slope == pytest.approx(1, abs=0.1)


@cache
def homogeneous_law(steps: int, k: int) -> Callable[..., jax.Array]:
    """The compiled law of a chain whose rates are `pi` at all times, from `p0` and with α."""

    def law(pi: jax.Array, p0: jax.Array, alpha: float) -> jax.Array:
        return exact_law(
            lambda current, t: pi * (1 - jax.nn.one_hot(current, k, dtype=jnp.float64)), p0, 1, steps, alpha
        )

    return jax.jit(law)


@pytest.mark.parametrize("alpha", [1, 2, 5])
@pytest.mark.parametrize("steps", [5, 20, 100])
def test_homogeneous_chain_forgets_its_start_by_a_known_factor(x64, alpha, steps):
    k = 5
    pi, p0 = np.random.default_rng(6).dirichlet(np.ones(k), 2)
    law = np.asarray(homogeneous_law(steps, k)(pi, p0, float(alpha)))
    assert np.abs(law - (pi + (1 - alpha / steps) ** steps * (p0 - pi))).max() < 1e-12


@pytest.mark.parametrize("name", PARAMETERISATIONS)
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_factorised_generator_is_the_joint_one(x64, name, tokens):
    """The kernel of a step of size h is the polynomial I + hG + ..., and G sums the tokens' rates."""
    chain = Chain(name, 1, 1, "uniform", 3, tokens)
    rates = chain.rate_function()
    at = np.float64(0.4)
    every = joint_states(tokens, 3)
    u = np.asarray(rates(every, at))
    generator = np.zeros((len(every), len(every)))  # [from, to]
    for (i, here), (j, there) in itertools.product(enumerate(every), repeat=2):
        changed = np.flatnonzero(here != there)
        if len(changed) == 1:
            generator[i, j] = u[i, changed[0], there[changed[0]]]
            generator[i, i] -= generator[i, j]

    @jax.jit
    def kernel(h: float) -> jax.Array:
        return jax.vmap(lambda p: exact_law(lambda a, _: rates(a, at), p, tokens, 1, h))(jnp.eye(len(every)))

    # (kernel − I) / h has degree D − 1 in h, so that D points give its value at h = 0
    sizes = 0.1 / np.arange(1, tokens + 1)
    weights = [np.prod([y / (y - x) for y in sizes if y != x]) for x in sizes]
    slope = sum(w * (np.asarray(kernel(float(h))) - np.eye(len(every))) / h for w, h in zip(weights, sizes))
    assert np.abs(slope - generator).max() < 1e-12
    assert np.abs(generator).max() > 0.5
    if tokens == 1:
        assert np.abs(np.asarray(kernel(0.1)) - np.eye(3) - 0.1 * generator).max() < 1e-15


def test_jump_law_clamps_by_renormalising(x64):
    rates = jnp.asarray([[[1.0, 3.0, 0.0]], [[0.1, 0.2, 0.0]], [[0.0, 0.0, 0.0]]])
    law = np.asarray(jump_law(rates, 0.5, 2.0))
    np.testing.assert_allclose(law, [[[0.25, 0.75, 0]], [[0.1, 0.2, 0]], [[0, 0, 0]]], atol=1e-15)


@cache
def enlarged(name: str) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The compiled law and draws of 20 steps with rates times `size`."""

    def run(size: float, alpha: float) -> tuple[jax.Array, jax.Array]:
        base = Chain(name, 20, 1, "uniform").rate_function()
        rates = lambda a, t: size * base(a, t)  # noqa: E731
        u = jax.random.uniform(jax.random.key(0), (20, 1000, 1))
        law = exact_law(rates, jnp.full(4, 0.25), 1, 20, alpha)
        return law, euler(rates, jnp.zeros((1000, 1), jnp.int32), u, alpha)

    return jax.jit(run)


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_large_rates_close_to_the_end_give_valid_probabilities(alpha):
    """hλ > 1 near t = 1 at any h: the law stays a law, and nothing turns into NaN."""
    for name, size in itertools.product(PARAMETERISATIONS, (1.0, 1e4)):
        law, end = map(np.asarray, enlarged(name)(size, alpha))
        assert np.all((law >= 0) & (law <= 1))
        assert law.sum() == pytest.approx(1, abs=1e-5)
        assert np.all((end >= 0) & (end < 4))


def test_without_rates_nothing_moves():
    still = lambda a, t: jnp.zeros((*a.shape, 4))  # noqa: E731
    a0 = jnp.asarray([[0, 3], [2, 1]])
    for u in (0.0, 0.5, BELOW_ONE):
        assert np.array_equal(euler(still, a0, jnp.full((7, 2, 2), u), 5.0), a0)
    p0 = np.random.default_rng(0).dirichlet(np.ones(16)).astype(np.float32)
    assert np.array_equal(exact_law(still, jnp.asarray(p0), 2, 7, 5.0), p0)


def test_one_step_draws_the_posterior_at_time_zero_whatever_the_start(x64):
    p = np.array([0.1, 0.2, 0.3, 0.4])
    rates = exact_rates(np.outer(np.full(4, 0.25), p), 1, 4)
    u = (np.arange(1000)[:, None] + 0.5) / 1000
    law, draw = jax.jit(lambda p0: exact_law(rates, p0, 1, 1)), jax.jit(lambda a0: one_step(rates, a0, u))
    for start in range(4):
        assert np.abs(np.asarray(law(np.eye(4)[start])) - p).max() < 1e-15
        end = draw(np.full((1000, 1), start))
        assert np.array_equal(np.bincount(np.asarray(end)[:, 0]), [100, 200, 300, 400])


@partial(jax.jit, static_argnames="steps")
def from_masked(scores: jax.Array, u: float, steps: int) -> jax.Array:
    """Draws from all tokens masked, by one uniform for all; the last choice is illegal."""
    rows, tokens, k = scores.shape

    def rates(current: jax.Array, t: jax.Array) -> jax.Array:
        return off_diagonal("posterior", scores, current, jnp.full(rows, t), jnp.arange(k) < k - 1, True)

    return euler(rates, jnp.full((rows, tokens), k), jnp.full((steps, rows, tokens), u), 1.0, True)


@pytest.mark.parametrize("u", [0.0, 0.5, float(BELOW_ONE)])
@pytest.mark.parametrize("k", [2, 7, 41, 300])
def test_no_token_stays_masked(u, k):
    scores = np.random.default_rng(k).normal(0, 3, (200, 3, k)).astype(np.float32)
    for steps in (1, 3):
        end = np.asarray(from_masked(scores, u, steps))
        assert end.max() < k - 1  # neither masked nor the illegal last choice


def test_inverse_cdf_follows_its_weights(rejected):
    rng = np.random.default_rng(8)
    cases = {}
    for k, scale in ((3, 1.0), (17, 1e-30), (256, 1e30)):
        w = rng.gamma(0.5, size=k) * (rng.random(k) < 0.7)
        u = jax.random.uniform(jax.random.key(k), (DRAWS,))
        drawn = np.asarray(draw_by(u, (w * scale).astype(np.float32)))
        cases[str(k)] = np.bincount(drawn, minlength=k), w
    assert not rejected(cases)


def test_inverse_cdf_divides_the_unit_interval_exactly():
    w = np.array([[0, 1, 0, 3, 0, 4, 0], [2, 0, 0, 0, 2, 4, 0]], np.float32)
    u = np.tile((np.arange(800, dtype=np.float32) + 0.5) / 800, (2, 1)).astype(np.float32)
    drawn = np.asarray(draw_by(u, w))
    counts = np.stack([np.bincount(row, minlength=7) for row in drawn])
    assert np.array_equal(counts, 100 * w)


@pytest.mark.parametrize("k", [1, 2, 9, 33, 256, 1000])
def test_inverse_cdf_never_draws_weight_zero(k):
    """At 0, at the largest number below 1, and at the last float on either side of every border."""
    rng = np.random.default_rng(k)
    w = rng.gamma(1, size=(ROWS, k)) * (rng.random((ROWS, k)) < 0.5)
    w[np.arange(ROWS), rng.integers(0, k, ROWS)] += 0.1
    w = (np.where(w > 0, w + 0.01, 0) * 10 ** rng.uniform(-6, 6, (ROWS, 1))).astype(np.float32)
    border = (np.cumsum(w, -1) / w.sum(-1, keepdims=True)).astype(np.float32)
    around = [np.nextafter(border, np.float32(0)), border, np.nextafter(border, np.float32(2))]
    ends = np.broadcast_to(np.array([0, BELOW_ONE], np.float32), (ROWS, 2))
    u = np.clip(np.concatenate([ends, *around], -1), 0, BELOW_ONE)
    drawn = np.asarray(draw_by(u, w))
    assert drawn.min() >= 0
    assert drawn.max() < k
    assert np.take_along_axis(w, drawn, -1).min() > 0
    positive = w > 0
    assert np.array_equal(drawn[:, 0], positive.argmax(-1))
    assert np.array_equal(drawn[:, 1], k - 1 - positive[:, ::-1].argmax(-1))


@pytest.mark.parametrize("masked", [False, True])
def test_euler_never_draws_an_illegal_choice_of_many(masked):
    """Where the cumulative sum of a long row is rounded differently on either side of an illegal choice."""
    k = 1000
    rng = np.random.default_rng(0)
    legal = rng.random(k) < 0.5
    law = rng.gamma(1, size=(ROWS, 1, k)) * legal
    law = (law / law.sum(-1, keepdims=True)).astype(np.float32)
    border = np.cumsum(law, -1, dtype=np.float32)[:, 0]
    u = np.concatenate([np.nextafter(border, np.float32(0)), border, np.nextafter(border, np.float32(2))], -1)
    u = np.clip(u, 0, BELOW_ONE).T[..., None]  # [draws, ROWS, 1]
    start = np.full((ROWS, 1), k if masked else int(np.flatnonzero(legal)[0]))
    draw = jax.jit(lambda law, us: jax.lax.map(lambda u: euler(lambda a, t: law, start, u[None], masked=masked), us))
    end = draw(law, u)
    assert legal[np.asarray(end)].all()

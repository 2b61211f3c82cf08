"""Agent: the thin thing people hold. A fitted policy with its config and spec; NumPy in, NumPy out."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdfm import checkpoint
from qdfm.algorithms import ALGORITHMS, Config
from qdfm.algorithms.base import Algorithm
from qdfm.data.checks import check_categories, check_preference
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError, unknown
from qdfm.seeds import check_seed

# Weights times their evaluations up to which the CPU has decided before an accelerator has answered
HOST_WORK = 2**23


class Compiled(NamedTuple):
    """An algorithm's acting functions on raw observations, shared by all agents of one config and spec.

    The compiled ones take the policy as a tuple of its leaves, which costs less per call than a tree of modules. Where
    there is one objective the preference may be None.
    """

    algorithm: Algorithm
    structure: Any  # of a policy
    act: Callable[
        ..., tuple[jax.Array, Any]
    ]  # (policy, noise, observation, preference, mask, carry, greedy), traceable
    # compiled: (leaves, noise, observation, preference, mask) -> tokens, or actions where the algorithm finds them and
    # no mask says which are legal
    draw: Callable[..., jax.Array]
    greedy: Callable[..., jax.Array]
    probs: Callable[..., jax.Array]  # compiled: (leaves, observation, preference, mask) -> probabilities


@lru_cache(maxsize=64)
def compiled(config: Config, spec: Spec) -> Compiled:
    """The functions of one config and spec; each compiles once per number of rows."""
    algorithm = config.build(spec)
    structure = jax.tree.structure(policy_shapes(algorithm))

    def prefer(observation: Any, preference: Any) -> Any:
        return jnp.ones((len(observation), 1)) if preference is None else preference

    def act(policy: Any, noise: Any, observation: Any, preference: Any, mask: Any, carry: Any, greedy: bool) -> Any:
        x = spec.normalise_observation(observation)
        return algorithm.act(policy, noise, x, prefer(x, preference), mask, carry, greedy=greedy)

    def flat(greedy: bool) -> Callable[..., jax.Array]:
        def run(leaves: Any, noise: Any, observation: Any, preference: Any, mask: Any) -> jax.Array:
            policy, x = jax.tree.unflatten(structure, leaves), spec.normalise_observation(observation)
            choose = algorithm.act if algorithm.actions is None or mask is not None else algorithm.actions
            return choose(policy, noise, x, prefer(x, preference), mask, None, greedy=greedy)[0]

        return jax.jit(run)

    def probs(leaves: Any, observation: Any, preference: Any, mask: Any) -> jax.Array:
        assert algorithm.probs is not None
        x = spec.normalise_observation(observation)
        return algorithm.probs(jax.tree.unflatten(structure, leaves), x, prefer(x, preference), mask)

    return Compiled(algorithm, structure, act, flat(False), flat(True), jax.jit(probs))


def policy_shapes(algorithm: Algorithm) -> Any:
    """The structure and shapes of an algorithm's policy."""
    return jax.eval_shape(lambda: algorithm.policy(algorithm.init(jax.random.key(0))))


class Agent:
    """A fitted policy. Takes one observation or a batch; without a seed, repeated calls differ."""

    def __init__(self, config: Config, spec: Spec, policy: Any, seed: int = 0):
        self.config, self.spec, self.policy = config, spec, jax.device_put(policy)
        self.compiled = compiled(config, spec)
        if jax.tree.structure(self.policy) != self.compiled.structure:
            raise QDFMError(
                f"{config.name}: this policy has other networks than its settings ask for (steps and members decide on "
                "them); keep those that it was trained with, or train it anew."
            )
        self._leaves = tuple(jax.tree.leaves(self.policy))
        self._asked: tuple[np.ndarray, np.ndarray] | None = None  # the last preference, and what it was taken for
        self._on_host: tuple[Any, ...] | None = None  # the same weights beside the CPU
        self._size = spec.agents * sum(leaf.size for leaf in self._leaves)
        self._generator = np.random.default_rng(check_seed(seed))

    def act(
        self,
        observation: Any,
        preference: Any = None,
        mask: Any = None,
        greedy: bool = False,
        seed: int | Sequence[np.random.Generator] | None = None,
    ) -> np.ndarray:
        """Actions for one observation or a batch, in the form the data had them.

        `mask` marks the legal choices; an agent does not know them, so give one at every call: without it every choice
        counts as legal, whatever masks the data had. `greedy` takes the most likely action, or whatever a method does
        without drawing (a mean, a plan without noise). An integer `seed` reproduces the draw; without one the agent's
        own generator moves on. With a generator per row, a row's draw is its own, whatever rows are beside it (up to
        rounding: few decisions of small networks are found on the CPU, whatever device trains).
        """
        x, one = self._observation(observation)
        rows = len(x)
        given = (self._noise(seed, rows), x, self.preferences(preference, rows, "rows"), self._mask(mask, rows))
        run = self.compiled.greedy if greedy else self.compiled.draw
        work = rows * self._size * self.compiled.algorithm.evaluations[greedy]
        actions = np.asarray(run(self._weights(work), *given))
        if self.compiled.algorithm.actions is None or mask is not None:
            actions = self.spec.actions.decode(actions)
        return actions[0] if one else actions

    def action_probabilities(self, observation: Any, preference: Any = None, mask: Any = None) -> np.ndarray:
        """Exact probabilities of all actions: `[K]` or `[B, K]`; one axis per part for several, `[B, K_1, ...]`.

        Without a mask every choice counts as legal, whatever masks the data had.
        """
        if self.compiled.algorithm.probs is None:
            raise QDFMError(f"{self.config.name} has no exact action probabilities; draw samples with act instead.")
        x, one = self._observation(observation)
        rows = len(x)
        given = (x, self.preferences(preference, rows, "rows"), self._mask(mask, rows))
        p = np.asarray(self.compiled.probs(self._leaves, *given))
        p = p[(slice(None), *(slice(k) for k in self.spec.choices))]
        return p[0] if one else p

    def log_prob(self, observation: Any, action: Any, preference: Any = None, mask: Any = None) -> np.ndarray:
        """The logarithm of the probability of one action, or of one per row of a batch; masks are as in `act`."""
        _, one = self._observation(observation)
        p = self.action_probabilities(observation, preference, mask)
        p = p[None] if one else p
        tokens = self.spec.actions.encode(np.asarray(action)[None] if one else np.asarray(action))
        if len(tokens) != len(p) or (tokens < 0).any() or (tokens >= np.asarray(self.spec.choices)).any():
            raise QDFMError(f"The action {action} does not fit {len(p)} row(s) of {self.spec.actions}.")
        with np.errstate(divide="ignore"):
            log = np.log(p[(np.arange(len(p)), *tokens.T)])
        return log[0] if one else log

    def eval(self, obs: Any, w: Any) -> np.ndarray:
        """The greedy action under preference w, as the evaluators of multi-objective libraries call it."""
        return self.act(obs, preference=w, greedy=True)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with weights, config and spec."""
        header = {
            "algorithm": self.config.name,
            "config": dataclasses.asdict(self.config),
            "spec": self.spec.to_json(),
        }
        checkpoint.write_tree(path, "agent", self.policy, header)

    def __repr__(self) -> str:
        spec = self.spec
        choices = spec.choices[0] if len(set(spec.choices)) == 1 else spec.choices
        actions = f"{choices} actions" if spec.tokens == 1 else f"{spec.tokens} parts of {choices} choices"
        objectives = f"{spec.objectives} objective{'s' * (spec.objectives > 1)}"
        team = f", {spec.agents} agents" if spec.agents > 1 else ""
        return f"<qdfm.Agent {self.config.name}: observations {spec.observation_shape}, {actions}, {objectives}{team}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """What goes to another process: the settings, the weights and where the draws stand. It compiles for itself."""
        return _rebuilt, (self.config, self.spec, jax.device_get(self._leaves), self._generator)

    def _weights(self, work: int) -> tuple[Any, ...]:
        """The leaves of the policy, where decisions of so much work are found soonest."""
        if jax.default_backend() == "cpu" or work > HOST_WORK:
            return self._leaves
        if self._on_host is None:
            try:
                self._on_host = jax.device_put(self._leaves, jax.devices("cpu")[0])
            except RuntimeError:  # JAX was told to leave the CPU alone
                self._on_host = self._leaves
        return self._on_host

    def _noise(self, seed: Any, rows: int) -> np.ndarray:
        """The uniforms `[B, noise]` of as many decisions."""
        each = self.compiled.algorithm.noise
        if isinstance(seed, Sequence) and not isinstance(seed, str):
            if not all(isinstance(generator, np.random.Generator) for generator in seed):
                raise QDFMError(f"The seeds are {seed!r}; give one whole number, or a NumPy generator per row.")
            if len(seed) != rows:
                raise QDFMError(f"There are {len(seed)} generators for {rows} rows; give one per row.")
            return np.stack([generator.random(each, np.float32) for generator in seed])
        generator = self._generator if seed is None else np.random.default_rng(check_seed(seed))
        return generator.random((rows, each), np.float32)

    def _observation(self, observation: Any) -> tuple[np.ndarray, bool]:
        x = _numbers("observation", observation)
        dtype, shape = np.dtype(self.spec.observation_dtype), self.spec.observation_shape
        if dtype.kind != "f" and x.dtype != dtype and not ((x >= 0) & (x <= 255) & (x == np.round(x))).all():
            raise QDFMError("The observation has an entry that is no byte, 0 to 255, as this agent was trained on.")
        x = x.astype(dtype, copy=False)
        one = x.shape == shape
        if one:
            x = x[None]
        elif x.shape == (0, *shape):
            raise QDFMError("The observation is a batch without rows; give at least one.")
        elif x.shape[1:] != shape:
            so_far = f", the last {self.spec.history} observations side by side" if self.spec.history > 1 else ""
            so_far += "" if self.spec.accumulation is None else ", the return so far and γ^t at its end"
            raise QDFMError(
                f"The observation has shape {x.shape} but this agent was trained on {shape} per row{so_far}; give one "
                f"such row, or a batch of shape (n, {', '.join(map(str, shape))})."
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise QDFMError("The observation has a NaN or infinite entry; repair it before acting.")
        check_categories("The observation", x, self.spec)
        return x, one

    def followed(self, preference: Any) -> np.ndarray | None:
        """The preference to act by, checked: the given one, or the only one that the agent was trained for."""
        if preference is None:
            return self._follow(None)
        if self._asked is None or not np.array_equal(preference, self._asked[0]):
            found = self._follow(preference)
            assert found is not None
            self._asked = np.array(preference), found
        return self._asked[1]

    def _follow(self, preference: Any) -> np.ndarray | None:
        objectives, trained = self.spec.objectives, self.config.preference
        if preference is None and trained is None:
            if objectives > 1:
                one = (1, *(0,) * (objectives - 1))
                raise QDFMError(
                    f"This agent follows a preference over {objectives} objectives; give weights that sum to 1, such "
                    f"as preference={list(one)} (on the command line --preference {' '.join(map(str, one))})."
                )
            return None
        omega = check_preference(trained if preference is None else preference, objectives)
        if trained is not None and not np.allclose(omega, trained, atol=1e-4):
            raise QDFMError(f"This agent was trained for the preference {list(trained)} only; leave preference out.")
        return self.spec.nearest_preference(omega)

    def preferences(self, preference: Any, count: int, of: str) -> np.ndarray | None:
        """As `followed`, one for each of so many rows or episodes, `[count, objectives]`."""
        omega = self.followed(preference)
        if omega is None:
            return None
        if omega.ndim > 1 and omega.shape not in ((1, self.spec.objectives), (count, self.spec.objectives)):
            raise QDFMError(f"There are {len(omega)} preferences for {count} {of}; give one, or one for each.")
        return np.broadcast_to(omega, (count, self.spec.objectives))

    def _mask(self, mask: Any, rows: int) -> np.ndarray | None:
        if mask is None:
            return None
        array = _numbers("mask", mask)
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise QDFMError("The mask has an entry that is neither true nor false; give booleans or 0/1.")
        array = array.astype(bool, copy=False)
        tokens, k = self.spec.legal.shape
        fits = {(tokens, k), (1, tokens, k), (rows, tokens, k)} | ({(k,), (rows, k)} if tokens == 1 else set())
        if array.shape not in fits:
            raise QDFMError(f"The mask has shape {array.shape} but needs one flag per choice, ({rows}, {tokens}, {k}).")
        array = np.broadcast_to(array.reshape(-1, tokens, k), (rows, tokens, k))
        if not (array & self.spec.legal).any(-1).all():
            row = int(np.flatnonzero(~(array & self.spec.legal).any(-1).all(-1))[0])
            raise QDFMError(f"The mask forbids every choice in row {row}; allow at least one.")
        return array


def _numbers(what: str, values: Any) -> np.ndarray:
    """The values as an array of numbers or flags."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise QDFMError(f"The {what} has rows of different lengths; give every row the same shape.") from None
    if array.dtype.kind not in "fiub":
        raise QDFMError(f"The {what} has type {array.dtype}; give numbers.")
    return array


def _rebuilt(config: Config, spec: Spec, leaves: tuple[np.ndarray, ...], generator: np.random.Generator) -> Agent:
    """The agent that was sent from another process."""
    agent = Agent(config, spec, jax.tree.unflatten(compiled(config, spec).structure, leaves))
    agent._generator = generator
    return agent


def load(path: str | Path) -> Agent:
    """Read an agent that `Agent.save` wrote."""
    header = checkpoint.read_header(path, "agent")
    name = str(header.get("algorithm"))
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    try:
        settings, spec = dict(header["config"]), Spec.from_json(header["spec"])
        if settings.get("beta_scale") == "share" and settings.get("beta"):
            settings["beta"] = None  # which was written beside the share that it had no effect on
        config = ALGORITHMS[name](**settings)
    except (KeyError, TypeError, AttributeError, QDFMError):
        raise QDFMError(f"The header of {path} does not fit this qdfm; use the version that wrote it.") from None
    algorithm = compiled(config, spec).algorithm
    like = policy_shapes(algorithm)
    return Agent(config, spec, checkpoint.read_tree(path, "agent", like))

"""Rollouts of an agent: built-in environments in one compiled program, Gymnasium ones step by step, many at a time.

All randomness follows from the seed. Every episode ends when the environment terminates or truncates it. In Gymnasium
an episode has its own seed and its own draws, so what happens in it does not depend on the others, up to the rounding
of a batch of another size.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdfm.agent import Agent, compiled
from qdfm.algorithms.base import Config
from qdfm.data.spec import Spec
from qdfm.envs.accumulated import Accumulated
from qdfm.envs.base import Contest, JaxEnv
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.envs.remembered import Remembered
from qdfm.envs.simulate import Record, record
from qdfm.errors import QDFMError, raise_interrupt
from qdfm.progress import open_count
from qdfm.seeds import check_seed
from qdfm.tasks import PLACES

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class Evaluation:
    """Returns of some episodes in the units of the reward, discounted where `evaluate` was told a gamma below 1."""

    returns: np.ndarray  # [episodes, objectives]
    lengths: np.ndarray  # [episodes]
    terminated: np.ndarray  # [episodes], False where an episode was cut off
    scores: np.ndarray | None = None  # [episodes], returns on D4RL's scale, where the task has one
    won: np.ndarray | None = None  # [episodes], where episodes can be won

    def summary(self) -> dict[str, Any]:
        """Plain numbers: means and sample deviations over episodes."""
        spread = self.returns.std(0, ddof=1) if len(self.returns) > 1 else np.zeros(self.returns.shape[1])
        scored = {} if self.scores is None else {"score_mean": float(self.scores.mean())}
        won = {} if self.won is None else {"win_rate": float(self.won.mean())}
        return {
            "episodes": len(self.returns),
            "return_mean": [float(v) for v in self.returns.mean(0)],
            "return_std": [float(v) for v in spread],
            "length_mean": float(self.lengths.mean()),
            "terminated": float(self.terminated.mean()),
            **scored,
            **won,
        }


def evaluate(
    agent: Agent,
    env: "str | JaxEnv | gymnasium.Env",
    episodes: int = 200,
    seed: int = 0,
    greedy: bool = False,
    preference: Any = None,
    gamma: float = 1.0,
    progress: bool = False,
    workers: int = 1,
) -> Evaluation:
    """Play episodes in a built-in environment (by name or itself), in a Gymnasium one (by id or itself), on a map of
    SMAC such as smac-3m, or where the data of a task such as hopper-medium or smax-3m-medium was played; the returns of
    a MuJoCo task, where not discounted, come with scores.

    The preference is one for all episodes or one for each, `[episodes, objectives]`. With `gamma` below 1 the returns
    are discounted: step t of an episode, counted from 0, weighs gamma^t. `progress` shows a bar for environments that
    are not built in. Several copies of those play at a time: in this process, or each in one of so many `workers`,
    which pays off where a step is slow; scripts need `if __name__ == "__main__":` then.
    """
    if not isinstance(agent, Agent):
        raise QDFMError(f"The agent is a {type(agent).__name__}; give an Agent, as fit and qdfm.load(path) give one.")
    if episodes < 1:
        raise QDFMError(f"{episodes} episodes cannot be evaluated; give at least 1.")
    if not 0 <= gamma <= 1:
        raise QDFMError(f"gamma is {gamma}; it must be at least 0 and at most 1.")
    seed = check_seed(seed)
    if workers < 1:
        raise QDFMError(f"workers is {workers}; give at least 1.")
    if isinstance(env, str) and env in PLACES:
        place = PLACES[env]
        played = evaluate(agent, place.env, episodes, seed, greedy, preference, gamma, progress, workers)
        if place.score is None or gamma < 1:
            return played
        return replace(played, scores=place.score(played.returns[:, 0]))
    if isinstance(env, str) and env in ENVIRONMENTS:
        env = ENVIRONMENTS[env]()
    if isinstance(env, JaxEnv) and not isinstance(env, type):
        rolled = rollout(agent, env, episodes, seed, greedy, preference)
        raise_interrupt()
        discount = gamma ** np.arange(len(rolled.reward))  # [T]: all episodes begin together
        returns = (discount[:, None, None] * rolled.reward).sum(0)
        won = None
        if isinstance(env, Contest):
            won = np.asarray(jax.vmap(env.won)(jax.tree.map(lambda x: x[-1], rolled.states)))
        return Evaluation(returns, rolled.running.sum(0), rolled.terminated, won=won)
    import gymnasium

    if not isinstance(env, str | gymnasium.Env):
        raise QDFMError(
            f"The environment is a {type(env).__name__}; give a name, a Gymnasium id or an environment itself."
        )
    if not isinstance(env, str) and workers > 1:
        raise QDFMError("An environment itself cannot be copied to several workers; give its id, or workers=1.")
    from qdfm.envs.gymnasium import seeded

    with seeded(seed):
        return _evaluate_gymnasium(agent, env, episodes, seed, greedy, preference, gamma, progress, workers)


def rollout(
    agent: Agent, env: JaxEnv, episodes: int, seed: int = 0, greedy: bool = False, preference: Any = None
) -> Record:
    """Episodes with all that happened in them."""
    shown = _shown(agent.spec, env).spec.observation_shape
    _check_fits("observations of shape", agent.spec.observation_shape, shown)
    _check_fits("choices", agent.spec.choices, env.spec.choices)
    _check_fits("objectives", agent.spec.objectives, env.spec.objectives)
    omega = _preferences(agent, preference, episodes)
    key = jax.random.key(seed, impl="threefry2x32")
    play = _compiled_rollout(agent.config, agent.spec, env, episodes, greedy)
    played: Record = jax.device_get(play(agent.policy, key, omega))
    return played._replace(reward=played.reward.astype(np.float64))


def _shown(spec: Spec, env: JaxEnv) -> JaxEnv:
    """The environment with the observations that an agent knows: with a history, or what was paid so far."""
    if spec.history > 1:
        env = Remembered(env, spec.history)
    if spec.accumulation is None:
        return env
    if len(env.spec.observation_shape) != 1:
        raise QDFMError(f"The agent needs flat observations, but the environment's are {env.spec.observation_shape}.")
    return Accumulated(env, spec.accumulation.gamma)


@lru_cache(maxsize=64)
def _compiled_rollout(config: Config, spec: Spec, env: JaxEnv, episodes: int, greedy: bool) -> Any:
    functions, shown = compiled(config, spec), _shown(spec, env)

    def play(policy: Any, key: jax.Array, omega: jax.Array) -> Record:
        def act(noise: jax.Array, observation: jax.Array, mask: jax.Array, carry: Any) -> tuple[jax.Array, Any]:
            return functions.act(policy, noise, observation, omega, mask, carry, greedy=greedy)

        played = record(shown, act, functions.algorithm.noise, episodes, key)
        states = played.states
        for _ in range((spec.history > 1) + (spec.accumulation is not None)):
            states = states.state  # the environment's own, without what is shown besides
        return played._replace(states=states)

    return jax.jit(play)


def _evaluate_gymnasium(
    agent: Agent,
    env: "str | gymnasium.Env",
    episodes: int,
    seed: int,
    greedy: bool,
    preference: Any,
    gamma: float,
    progress: bool,
    workers: int,
) -> Evaluation:
    from gymnasium.spaces import Box

    from qdfm.envs.gymnasium import action_masks, action_tokens
    from qdfm.envs.vector import copies_of, vectorised

    spec, omega = agent.spec, _preferences(agent, preference, episodes)
    copies = copies_of(env, episodes, workers)
    seeds: list[int | None] = [int(s) for s in np.random.default_rng(seed).integers(2**31, size=episodes)]
    returns = np.zeros((episodes, spec.objectives))
    lengths, terminated = np.zeros(episodes, int), np.zeros(episodes, bool)
    won: dict[int, bool] = {}  # by episode, where the environment says so
    running = np.arange(copies)  # the episode that each copy plays, −1 when it has none left
    draws, begun = [_draws(seed, k) for k in range(copies)], copies
    worlds = vectorised(env, spec, copies, workers, seed)
    with closing(worlds), open_count("episodes", episodes, progress) as tell:
        space = worlds.single_action_space
        actions = action_tokens(space, spec.actions)
        _check_fits("observations of shape", spec.observation_shape, worlds.single_observation_space.shape)
        _check_fits("choices", spec.choices, actions.choices)
        observation, infos = worlds.reset(seed=seeds[:copies])
        seen = infos["report"]  # of each copy, what came with its last live observation
        while (live := np.flatnonzero(running >= 0)).size:
            raise_interrupt()
            masks = action_masks(actions, [report.info for report in seen])
            chosen = agent.act(observation, omega[running], masks, greedy, draws)
            if isinstance(space, Box):  # the data may have gone beyond its bounds by rounding
                chosen = np.clip(chosen, space.low, space.high)
            observation, *_, infos = worlds.step(chosen)
            fresh = np.zeros(copies, bool)
            for i in live:
                k, report = running[i], infos["report"][i]
                gain = np.asarray(report.reward, np.float64)
                # What the environment gives counts: a wrapper may have made one number of a declared vector.
                _check_fits("objectives", spec.objectives, gain.size)
                returns[k] += gamma ** lengths[k] * gain
                lengths[k] += 1
                if not (report.terminated or report.truncated):
                    seen[i] = report
                    continue
                terminated[k], running[i] = report.terminated, -1
                if "won" in report.info:
                    won[k] = bool(report.info["won"])
                if begun < episodes:
                    running[i], draws[i], fresh[i] = begun, _draws(seed, begun), True
                begun += 1
                tell(begun - copies)
            if fresh.any():
                first = [seeds[k] for k in running]
                observation, infos = worlds.reset(seed=first, options={"reset_mask": fresh})
                seen[fresh] = infos["report"][fresh]
    known = np.array([won[k] for k in range(episodes)]) if len(won) == episodes else None
    return Evaluation(returns, lengths, terminated, won=known)


def _draws(seed: int, episode: int) -> np.random.Generator:
    """The generator of an episode's decisions."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(episode,)))


def _preferences(agent: Agent, preference: Any, episodes: int) -> np.ndarray:
    """One checked preference per episode, `[episodes, objectives]`; ones where there is nothing to prefer."""
    omega = agent.preferences(preference, episodes, "episodes")
    return np.ones((episodes, agent.spec.objectives), np.float32) if omega is None else omega


def _check_fits(what: str, mine: Any, its: Any) -> None:
    if mine != its:
        raise QDFMError(
            f"The agent was trained on {what} {mine} but the environment has {its}; "
            "evaluate it where its data came from."
        )

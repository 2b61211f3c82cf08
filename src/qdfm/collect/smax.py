"""Data of the SMAX battles: policies of four qualities, shipped with the library, rolled out.

`expert` is the best actor of a run of `qdfm.collect.ppo`, `medium` one that won half as often on its way there, `poor`
the last one before that which hardly won, and in `medium-replay` six take turns, from the first one to the medium one.
They draw their actions. How often they win and their mean return, over 2,000 battles each:

| map | quality | won | return |
|---|---|---|---|
| 3m | expert | 87.5 % | 18.6 |
| 3m | medium | 39.4 % | 12.7 |
| 3m | medium-replay | 11.7 % | 6.9 |
| 3m | poor | 2.6 % | 6.3 |
| 2s3z | expert | 99.8 % | 20.0 |
| 2s3z | medium | 49.4 % | 14.3 |
| 2s3z | medium-replay | 13.5 % | 8.0 |
| 2s3z | poor | 2.4 % | 7.8 |
| 5m_vs_6m | expert | 5.5 % | 7.6 |
| 5m_vs_6m | medium | 2.9 % | 7.1 |
| 5m_vs_6m | medium-replay | 1.6 % | 5.9 |
| 5m_vs_6m | poor | 0.8 % | 6.4 |

On 5m_vs_6m we have no policy that wins often: the best one still learned, slowly, when its eight million steps were
over. The qualities of this map differ in return rather than in victories.

The policies were made of a run's file by

    python -m qdfm.collect.ppo smax-3m 3m.npz --checkpoint 2
    python -m qdfm.collect.smax 3m 3m.npz

and for the other maps with the options --checkpoint 2 --hidden 64 --entropy 0.003 (2s3z) and --checkpoint 5 --steps
8000000 (5m_vs_6m). On two CPU cores the first takes four minutes.
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from qdfm.collect.actor import NAMES, POLICIES
from qdfm.collect.ppo import draw, log_law
from qdfm.data.arrays import read_arrays, write_arrays
from qdfm.data.dataset import Dataset
from qdfm.data.episodes import borders
from qdfm.envs.simulate import Record, record, steps_taken
from qdfm.envs.smax import REWARD, Smax
from qdfm.errors import QDFMError, told, unknown
from qdfm.tasks import BATTLES

EPISODES = {"expert": 1_000, "medium": 1_000, "medium-replay": 2_000, "poor": 1_000}
EARLIER = tuple(f"replay-{i}" for i in range(5))  # from the first checkpoint on, before the medium one
MEMBERS = {"expert": ("expert",), "medium": ("medium",), "medium-replay": (*EARLIER, "medium"), "poor": ("poor",)}
TOGETHER = 200  # battles that are played at a time
MEASURED = 2_000  # battles that an actor is measured by
HARDLY = 0.05  # a poor one may win so many of the battles that an expert wins


class Policy(NamedTuple):
    """C actors who take turns, battle by battle, and what each is known to achieve."""

    actors: tuple[np.ndarray, ...]  # w0, b0, ... with a leading axis [C]
    steps: np.ndarray  # [C], environment steps that each was trained for
    won: np.ndarray  # [C], share of MEASURED battles
    returned: np.ndarray  # [C], mean return of these


def find_task(task: str) -> tuple[str, str]:
    """The map and the quality of a task's name."""
    if task not in BATTLES:
        raise unknown("SMAX task", task, BATTLES)
    name, _, quality = task.removeprefix("smax-").partition("-")
    return name, quality


def policy_of(task: str) -> Policy:
    """The shipped policy of a task."""
    name, quality = find_task(task)
    files = [read_arrays(_file(name, member)) for member in MEMBERS[quality]]
    stacked = {field: np.stack([file[field] for file in files]) for field in files[0]}
    actors = tuple(stacked.pop(w).astype(np.float32) for w in NAMES)
    return Policy(actors, **stacked)


def collect_smax(task: str, transitions: int | None = None, seed: int = 0, normalise: bool = True) -> Dataset:
    """So many transitions of a task's policy; None: as many as its default number of battles has.

    The data depends on the seed alone, and fewer transitions are the first ones of more. The battles are fought on the
    CPU, whatever device trains on them: another device rounds differently, and battles magnify that. Another kind of
    CPU or another compiler may still give others, of the same kind.
    """
    name, quality = find_task(task)
    if transitions is not None and transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    episodes = EPISODES[quality] if transitions is None else None
    return battles(Smax(name), policy_of(task).actors, episodes, transitions, seed, normalise)


def battles(
    env: Smax,
    actors: tuple[np.ndarray, ...],
    episodes: int | None,
    transitions: int | None,
    seed: int = 0,
    normalise: bool = True,
) -> Dataset:
    """So many battles or so many transitions, whichever is given; actor i plays the battles whose number is i mod C."""
    policies = len(actors[0])
    lanes = max(1, TOGETHER // policies)
    play, done, rows = _compiled(env, policies, lanes), 0, 0
    parts: list[dict[str, np.ndarray]] = []
    with jax.default_device(jax.devices("cpu")[0]):
        key = jax.random.key(seed, impl="threefry2x32")
        while done < (episodes or 0) or rows < (transitions or 0):
            part = steps_taken(jax.device_get(play(actors, jax.random.fold_in(key, len(parts)))))
            part["episode"] += done
            parts.append(part)
            done, rows = done + lanes * policies, rows + len(part["reward"])
    fields: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    keep = transitions if episodes is None else int(np.searchsorted(fields["episode"], episodes))
    fields = {name: values[:keep] for name, values in fields.items()}
    fields["truncated"][-1] |= not fields["terminated"][-1]  # the recording ends here
    spec = env.spec
    return Dataset.from_arrays(**fields, agents=spec.agents, num_actions=spec.choices, normalise=normalise)


def won_battles(data: Dataset) -> np.ndarray:
    """Which episodes `[episodes]` were won: nothing but victory pays more than REWARD in one step."""
    _, last = borders(data.episode)
    won: np.ndarray = np.asarray(data.reward)[last, 0] > REWARD
    return won


def statistics(data: Dataset) -> dict[str, float]:
    """How many battles there are, their mean return, and how many of them were won."""
    won = won_battles(data)
    return {"episodes": len(won), "return_mean": float(data.returns().mean()), "win_rate": float(won.mean())}


@lru_cache(maxsize=16)
def _compiled(env: Smax, policies: int, lanes: int) -> Any:
    tokens, choices = env.spec.tokens, env.spec.num_choices
    views = {"observation": env.observation, "mask": env.mask, "state": env.global_state}

    def play(actors: Any, key: jax.Array) -> Record:
        def act(uniforms: jax.Array, observation: jax.Array, mask: jax.Array, carry: None) -> tuple[jax.Array, None]:
            def by_actor(x: jax.Array) -> jax.Array:
                return x.reshape(lanes, policies, tokens, -1)

            law = jax.vmap(log_law, (0, 1, 1), 1)(actors, by_actor(observation), by_actor(mask))
            return draw(law, by_actor(uniforms)).reshape(-1, tokens), carry

        played = record(env, act, tokens * choices, lanes * policies, key)
        return played._replace(states={name: jax.vmap(jax.vmap(view))(played.states) for name, view in views.items()})

    return jax.jit(play)


def chosen(won: np.ndarray, returned: np.ndarray) -> dict[str, int]:
    """Which checkpoint of a run each actor is, by the share of battles won and the mean return `[checkpoints]`."""
    expert = int(np.lexsort((returned, won))[-1])
    half = won[expert] / 2
    until = int(np.flatnonzero(won >= half)[0])
    medium = int(np.abs(won[: until + 1] - half).argmin())
    poor = int(np.flatnonzero(won[: medium + 1] <= HARDLY * won[expert])[-1])
    earlier = np.linspace(0, medium, len(EARLIER), endpoint=False).round().astype(int).tolist()
    return {"expert": expert, "medium": medium, "poor": poor, **dict(zip(EARLIER, earlier, strict=True))}


@dataclass(frozen=True)
class Make:
    """Choose the actors of a map from a run of qdfm.collect.ppo, measure them and write them."""

    map: str
    """Such as 3m."""
    history: Path
    """The run's file."""
    folder: Path = POLICIES
    """Where the files go."""


def make(config: Make, episodes: int = MEASURED) -> None:
    """Write the files and print what they achieve. Weights are kept in half precision."""
    env, run = Smax(config.map), read_arrays(config.history)
    for member, i in chosen(run["won"], run["returned"]).items():
        weights = {name: run[name][i].astype(np.float16) for name in NAMES}
        actors = tuple(w[None].astype(np.float32) for w in weights.values())
        played = statistics(battles(env, actors, episodes, None, seed=1, normalise=False))
        known = {"steps": run["steps"][i], "won": played["win_rate"], "returned": played["return_mean"]}
        write_arrays(_file(config.map, member, config.folder), {**weights, **known})
        print(f"{config.map} {member}: {known}", flush=True)


def _file(name: str, member: str, folder: Path = POLICIES) -> Path:
    return folder / f"smax_{name}_{member}.npz"


def main() -> None:
    """The command line."""
    import tyro

    if code := told(lambda: make(tyro.cli(Make, config=(tyro.conf.PositionalRequiredArgs,)))):
        sys.exit(code)


if __name__ == "__main__":
    main()

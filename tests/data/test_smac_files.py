"""SMAC files that the test writes itself, with its own padding: every transition against a plain loop, and refusals."""

import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from qdfm.data.columns import Columns
from qdfm.data.dataset import Dataset
from qdfm.data.smac import read_smac
from qdfm.data.sources import load_dataset
from qdfm.errors import QDFMError

REAL = Path(os.environ.get("QDFM_DATA", "nowhere")) / "smac" / "3m_medium.h5"
AGENTS, SEEN, STATE, CHOICES = 2, 3, 4, 5
LENGTHS = (4, 2, 1, 3)  # steps of the episodes
CUT = (False, True, False, True)  # by the time limit
ROWS = 6
JUNK = 77  # what padding holds; NaN where a number can be


def battles(layout: str = "pymarl") -> dict[str, Any]:
    """Four battles as lists of steps, padded. From its second step on, agent 0 of battle 0 is dead."""
    rng = np.random.default_rng(0)
    steps = ROWS - 1 if layout == "longer" else ROWS
    shape = (len(LENGTHS), ROWS, AGENTS)
    made: dict[str, Any] = {
        "obs": np.full((*shape, SEEN), np.nan, np.float32),
        "state": np.full((*shape[:2], STATE), np.nan, np.float32),
        "avail_actions": np.full((*shape, CHOICES), JUNK, np.int32),
        "actions": np.full((len(LENGTHS), steps, AGENTS, 1), JUNK, np.int64),
        "reward": np.full((len(LENGTHS), steps, 1), np.nan, np.float32),
        "terminated": np.full((len(LENGTHS), steps, 1), JUNK, np.uint8),
        "filled": np.zeros((len(LENGTHS), steps, 1), np.int64),
    }
    for e, (length, cut) in enumerate(zip(LENGTHS, CUT)):
        for t in range(length + 1):
            final = t == length
            if final and layout == "bare" and not cut:
                continue  # nothing follows a battle that ended
            made["obs"][e, t], made["state"][e, t] = rng.normal(size=(AGENTS, SEEN)), rng.normal(size=STATE)
            for g in range(AGENTS):
                dead = e == 0 and g == 0 and t > 0
                legal = np.eye(CHOICES, dtype=int)[0] if dead else np.r_[0, 1, rng.integers(0, 2, CHOICES - 2)]
                made["avail_actions"][e, t, g] = legal
                if not (final and layout == "longer"):
                    made["actions"][e, t, g, 0] = rng.choice(np.flatnonzero(legal))
            if final and layout == "longer":
                continue
            made["reward"][e, t], made["filled"][e, t] = 0 if final else rng.normal(), 1
            made["terminated"][e, t] = t == length - 1 and not cut
    return made


def write(path: Path, made: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in made.items():
            file[name] = values
    return path


def looped(made: dict[str, Any], layout: str) -> list[dict[str, Any]]:
    """The transitions, one at a time."""
    rows = []
    for e, (length, cut) in enumerate(zip(LENGTHS, CUT)):
        for t in range(length):
            last = t == length - 1
            after = t if last and layout == "bare" and not cut else t + 1
            rows.append(
                {
                    "observation": made["obs"][e, t],
                    "action": made["actions"][e, t, :, 0],
                    "reward": made["reward"][e, t],
                    "next_observation": made["obs"][e, after],
                    "terminated": last and not cut,
                    "truncated": last and cut,
                    "episode": e,
                    "mask": made["avail_actions"][e, t] == 1,
                    "next_mask": made["avail_actions"][e, after] == 1,
                    "state": made["state"][e, t],
                    "next_state": made["state"][e, after],
                }
            )
    return rows


@pytest.mark.parametrize("layout", ["pymarl", "bare", "longer"])
def test_every_transition_against_a_loop(tmp_path, layout):
    made = battles(layout)
    data = load_dataset(write(tmp_path / "3m.h5", made))
    rows = looped(made, layout)
    assert len(data) == len(rows) == sum(LENGTHS)
    for name in rows[0]:
        np.testing.assert_array_equal(getattr(data, name), np.stack([row[name] for row in rows]), err_msg=name)
    assert (data.spec.agents, data.spec.choices) == (AGENTS, (CHOICES,) * AGENTS)
    assert (data.spec.observation_shape, data.spec.state_shape) == ((AGENTS, SEEN), (STATE,))
    assert data.mask[1, 0].tolist() == [True, False, False, False, False]  # dead: the no-op only
    assert len(data.spec.normalisation.observation_mean) == AGENTS * SEEN
    assert not load_dataset(tmp_path / "3m.h5", normalise=False).spec.normalisation.observation_mean


def test_flat_datasets_other_endings_and_unused_ones(tmp_path, monkeypatch):
    made = battles()
    whole = read_smac(write(tmp_path / "3m.h5", made))
    flat = {name: values[..., 0] if values.shape[-1] == 1 else values for name, values in made.items()}
    write(tmp_path / "3m.HDF5", flat | {"actions_onehot": np.zeros(3)})
    monkeypatch.setenv("QDFM_DATA", str(tmp_path))
    again = load_dataset("3m.HDF5")
    assert again.spec == whole.spec
    for name in looped(made, "pymarl")[0]:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))


def test_an_episode_of_padding_and_one_of_a_single_row_give_nothing(tmp_path):
    made = battles()
    made["filled"][1] = 0
    made["filled"][3, 1:] = 0
    data = read_smac(write(tmp_path / "a.h5", made))
    np.testing.assert_array_equal(data.observation, [*made["obs"][0, :4], made["obs"][2, 0]])
    assert data.episode.tolist() == [0, 0, 0, 0, 1]
    made["filled"][:] = 0
    refused(tmp_path, made, "no step whose next observation is known", "filled")


def test_no_choice_need_be_left_after_the_end(tmp_path):
    made = battles()
    made["avail_actions"][0, LENGTHS[0]] = 0
    assert read_smac(write(tmp_path / "a.h5", made)).next_mask[3].all()
    made["avail_actions"][1, LENGTHS[1], 1] = 0  # cut off there, so that a choice would come next
    refused(tmp_path, made, "avail_actions", "forbids an agent everything in episode 1, step 2")


def test_saved_and_read_again(tmp_path):
    data = read_smac(write(tmp_path / "a.h5", battles()))
    data.save(tmp_path / "a.npz")
    again = Dataset.load(tmp_path / "a.npz")
    assert again.spec == data.spec
    np.testing.assert_array_equal(again.next_state, data.next_state)


def refused(folder: Path, made: dict[str, Any], *parts: str) -> None:
    """One sentence that names the file and has all the parts."""
    with pytest.raises(QDFMError) as error:
        load_dataset(write(folder / "bad.h5", made))
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert ";" in sentence
    for part in ("bad.h5", *parts):
        assert part in sentence, sentence


@pytest.mark.parametrize(
    ("name", "index", "value", "says"),
    [
        ("obs", (1, 1, 0, 2), np.nan, "obs in"),
        ("obs", (1, 2, 0, 2), np.inf, "NaN or infinite in episode 1, step 2"),  # seen after the last step
        ("state", (3, 1, 0), np.nan, "NaN or infinite in episode 3, step 1"),
        ("reward", (0, 2, 0), -np.inf, "reward in"),
        ("actions", (0, 2, 1, 0), CHOICES, "is 5 for agent 1 in episode 0, step 2, which is not one of 0..4"),
        ("actions", (3, 0, 0, 0), -1, "is -1 for agent 0 in episode 3, step 0"),
        ("actions", (0, 1, 0, 0), 1, "is 1 for agent 0 in episode 0, step 1, which avail_actions forbids"),
        ("avail_actions", (2, 0, 0, 3), 7, "avail_actions in"),
        ("terminated", (3, 1, 0), 2, "is 2 in episode 3, step 1; write 0 or 1"),
        ("terminated", (0, 1, 0), 1, "in episode 0, step 1, but the episode goes on to step 4"),
        ("filled", (2, 4, 0), 1, "is true in episode 2, step 4, after padding"),
        ("filled", (0, 1, 0), 3, "is 3 in episode 0, step 1; write 0 or 1"),
    ],
)
def test_wrong_values_are_named_by_episode_and_step(tmp_path, name, index, value, says):
    made = battles()
    made[name][index] = value
    refused(tmp_path, made, says)


def test_an_action_that_is_no_whole_number(tmp_path):
    made = battles()
    made["actions"] = made["actions"].astype(float)
    assert read_smac(write(tmp_path / "a.h5", made)).action.dtype == np.int32
    for value in (1.5, np.nan):
        made["actions"][3, 2, 1] = value
        refused(tmp_path, made, f"actions in {tmp_path / 'bad.h5'} is {value} for agent 1 in episode 3, step 2")


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("obs", lambda a: a[..., 0], "shape (4, 6, 2) but [episodes, rows, agents, features] is needed"),
        ("state", lambda a: a[:, :-1], "shape (4, 5, 4) but [episodes: 4, rows: 6, numbers] is needed"),
        ("avail_actions", lambda a: a[:, :, :1], "[episodes: 4, rows: 6, agents: 2, choices] is needed"),
        ("actions", lambda a: a[:, :-2], "[episodes: 4, steps: 6 or one less, agents: 2] is needed"),
        ("actions", lambda a: a[:, :, :1], "shape (4, 6, 1) but"),
        ("reward", lambda a: np.repeat(a, 2, -1), "shape (4, 6, 2) but [episodes: 4, steps: 6] is needed"),
        ("filled", lambda a: a[:3], "shape (3, 6) but"),
        ("terminated", lambda a: a[:, :-1], "terminated in"),
        ("obs", lambda a: a[:0], "shape (0, 6, 2, 3) but"),
        ("reward", lambda a: np.full(a.shape, b"x"), "has type |S1; write numbers"),
    ],
)
def test_wrong_shapes(tmp_path, name, change, says):
    made = battles()
    refused(tmp_path, made | {name: change(made[name])}, says)


def test_datasets_that_are_missing_or_no_arrays(tmp_path):
    made = battles()
    del made["state"], made["filled"]
    refused(tmp_path, made, "lacks the datasets state, filled; SMAC data has obs, state, avail_actions, actions")
    made = battles()
    made["obs/agent_0"] = made.pop("obs")  # a group in its place
    refused(tmp_path, made, "lacks the datasets obs;")


def test_files_that_are_none(tmp_path):
    (tmp_path / "text.h5").write_text("no data")
    whole = write(tmp_path / "cut.h5", battles()).read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    for name in ("text.h5", "cut.h5"):
        with pytest.raises(QDFMError, match=rf"{name} is damaged or no HDF5 file \(.*\); fetch it again\.$"):
            load_dataset(tmp_path / name)
    with pytest.raises(QDFMError, match=r"There is no file .*none\.h5"):
        load_dataset(tmp_path / "none.h5")


@pytest.mark.parametrize("option", [{"bins": 3}, {"num_actions": 9}, {"columns": Columns()}, {"transitions": 3}])
def test_options_that_do_not_concern_it(tmp_path, option):
    write(tmp_path / "a.h5", battles())
    with pytest.raises(QDFMError, match=rf"{next(iter(option))} does not concern .*a\.h5; leave it out"):
        load_dataset(tmp_path / "a.h5", **option)


@pytest.mark.skipif(not REAL.exists(), reason="battles of StarCraft II lie under QDFM_DATA")
def test_real_battles():
    """Counted in the file itself, for which its readers publish a mean return of 14.0."""
    data = load_dataset(str(REAL))
    with h5py.File(REAL) as file:
        filled, reward = np.asarray(file["filled"])[..., 0] > 0, np.asarray(file["reward"])[..., 0]
    assert len(data) == 50_450 and len(data.returns()) == 2_000
    assert data.spec.agents == 3 and data.spec.choices == (9, 9, 9) and data.spec.state_shape == (48,)
    np.testing.assert_allclose(data.returns().mean(), (reward * filled[:, : reward.shape[1]]).sum(1).mean(), rtol=1e-5)
    np.testing.assert_allclose(data.returns().mean(), 14.0, atol=0.05)
    assert np.take_along_axis(np.asarray(data.mask), np.asarray(data.action)[..., None], 2).all()


def test_without_h5py(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "a.h5").touch()
    with pytest.raises(QDFMError, match=r'Reading .*a\.h5 needs h5py; run: pip install "qdfm\[marl\]"'):
        load_dataset(tmp_path / "a.h5")

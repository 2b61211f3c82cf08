"""Dataset: validation at the door, sampling, normalisation, and the file it is saved in."""

import json
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdfm.data.actions import Bins, Discrete, MultiDiscrete
from qdfm.data.actions import from_json as space_from_json
from qdfm.data.actions import to_json as space_to_json
from qdfm.data.arrays import read_arrays
from qdfm.data.checks import check_preference
from qdfm.data.dataset import Dataset, saved_header
from qdfm.data.spec import Normalisation, Spec
from qdfm.errors import QDFMError


def arrays(n: int = 12, **changes: Any) -> dict[str, Any]:
    """Good arguments of from_arrays: three episodes of four rows, three actions, two objectives, masks."""
    rng = np.random.default_rng(0)
    good = {
        "observation": rng.normal(size=(n, 4)),
        "action": np.arange(n) % 3,
        "reward": rng.normal(size=(n, 2)),
        "next_observation": rng.normal(size=(n, 4)),
        "terminated": np.arange(n) % 4 == 3,
        "truncated": np.zeros(n, bool),
        "mask": np.ones((n, 3), bool),
        "next_mask": np.ones((n, 3), bool),
        "episode": np.arange(n) // 4,
        "preference": np.full((n, 2), 0.5),
        "state": rng.normal(size=(n, 5)),
        "next_state": rng.normal(size=(n, 5)),
        "num_actions": 3,
    }
    return good | changes


def changed(name: str, index: Any, value: Any) -> dict[str, Any]:
    """Good arguments but for one entry."""
    good = arrays()
    array = np.asarray(good[name]).astype(np.asarray(value).dtype if name == "action" else float)
    array[index] = value
    return good | {name: array}


def refused(*parts: str, **arguments: Any) -> None:
    """The arguments are refused by one sentence that has all the parts."""
    with pytest.raises(QDFMError) as error:
        Dataset.from_arrays(**arguments)
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert ";" in sentence  # after it comes the remedy
    for part in parts:
        assert part in sentence


def same(a: Dataset, b: Dataset) -> bool:
    """Equal to the bit, types included."""
    if a.spec != b.spec or jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b))
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


FLOATS = ("observation", "next_observation", "reward", "state", "next_state", "preference")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_not_finite_is_refused(name: str, value: float) -> None:
    refused(name, "NaN or infinite", "row 5", **changed(name, (5, 1), value))


@pytest.mark.parametrize("name", ["mask", "next_mask"])
def test_nan_in_a_mask_is_refused_by_its_row(name: str) -> None:
    refused(name, "row 5", "0/1", **changed(name, (5, 1), np.nan))


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("value", [np.nan, 2.0, -1.0])
def test_a_flag_that_is_neither_is_refused(name: str, value: float) -> None:
    refused(name, "row 7", "0/1", **changed(name, 7, value))


@pytest.mark.parametrize("name", ["terminated", "truncated", "episode"])
def test_more_than_one_column_of_what_a_row_has_one_of(name: str) -> None:
    rows = len(arrays()["action"])
    refused(f"{name} has shape ({rows}, 2)", "one value per row", **arrays(**{name: np.zeros((rows, 2), int)}))


def test_nan_in_episode_is_refused() -> None:
    refused("episode", "row 2", **changed("episode", 2, np.nan))


def test_float64_beyond_float32_is_refused() -> None:
    refused("reward", "row 1", **changed("reward", (1, 0), 1e300))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.5])
def test_action_not_integral(value: float) -> None:
    refused("action", "whole number", "row 5", **changed("action", 5, value))


@pytest.mark.parametrize(("value", "shown"), [(-1, "-1"), (3, "3"), (3.0, "3")])
def test_action_out_of_range(value: float, shown: str) -> None:
    refused(f"action is {shown} in row 5", "0..2", "num_actions", **changed("action", 5, value))


def test_action_beyond_int32_does_not_wrap_round() -> None:
    refused("action", "row 5", **changed("action", 5, 2**32))


def test_action_out_of_range_names_the_part() -> None:
    action = np.zeros((12, 2), int)
    action[4] = 0, 5
    plain = {"mask": None, "next_mask": None}
    refused("part 1", "is 5 in row 4", "0..1", **arrays(action=action, num_actions=(3, 2), **plain))


def test_negative_action_without_num_actions() -> None:
    refused("action is -1 in row 5", **(changed("action", 5, -1) | {"num_actions": None}))


def test_text_actions_are_refused() -> None:
    refused("action", "whole numbers", **arrays(action=np.array(["left"] * 12), num_actions=None))


def test_error_rows_are_the_users_rows_although_episodes_are_put_in_order() -> None:
    episode = np.arange(12) % 3  # interleaved
    refused("row 5", **(changed("action", 5, 7) | {"episode": episode}))
    refused("row 5", **(changed("observation", (5, 0), np.nan) | {"episode": episode}))


@pytest.mark.parametrize("name", [k for k in arrays() if k not in ("num_actions", "observation")])
def test_lengths_that_differ(name: str) -> None:
    refused(f"{name} has 11 rows but observation has 12", **arrays(**{name: arrays()[name][:-1]}))


def test_observation_shorter_than_the_rest() -> None:
    refused("12 rows but observation has 11", **arrays(observation=np.zeros((11, 4))))


@pytest.mark.parametrize("name", [*FLOATS, "action", "episode", "mask", "terminated"])
def test_ragged_rows_and_single_values_are_refused(name: str) -> None:
    refused(name, "different lengths", **arrays(**{name: [[0.0], [0.0, 1.0]] * 6}))
    refused(name, "single value", **arrays(**{name: 1}))


@pytest.mark.parametrize("name", ["observation", "next_observation", "reward", "preference"])
def test_text_is_refused(name: str) -> None:
    refused(name, "give numbers", **arrays(**{name: np.array([["a", "b"]] * 12)}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_actions": 3.0}, "num_actions is 3.0; give a whole number from 2"),
        ({"num_actions": "3"}, "num_actions is '3'; give a whole number from 2"),
        ({"num_actions": True}, "num_actions is True; give a whole number from 2"),
        ({"num_actions": 0}, "num_actions is 0; give a whole number from 2"),
        ({"num_actions": (3, 0)}, "num_actions is (3, 0); give a whole number from 2, or of several parts one for"),
        ({"actions": Bins}, "Bins'>; give an action space, or a function that finds one, such as partial(qdfm.Bins"),
        ({"categories": 3}, "categories is 3; give whole numbers"),
        ({"categories": (1.5, 0, 0, 0)}, "give whole numbers"),
        ({"agents": 0}, "agents is 0; give a whole number from 1"),
        ({"agents": 1.5}, "agents is 1.5"),
        ({"actions": "bins"}, "actions is 'bins'; give an action space"),
        ({"episode": [None] + [1] * 11}, "episode mixes types"),
    ],
)
def test_options_of_other_types_are_refused(given: dict[str, Any], says: str) -> None:
    refused(says, **(arrays() | given))


def test_empty_data() -> None:
    nothing = {k: v[:0] for k, v in arrays().items() if k != "num_actions"}
    refused("empty", "at least one", **nothing)
    refused("empty", **arrays(observation=[]))
    refused("action has 0 rows", **arrays(action=[]))


@pytest.mark.parametrize("num_actions", [None, 1])
def test_a_single_action(num_actions: int | None) -> None:
    one = {"action": np.zeros(12, int), "mask": None, "next_mask": None, "num_actions": num_actions}
    refused("action", "single choice", "num_actions", **arrays(**one))


@pytest.mark.parametrize("name", ["mask", "next_mask"])
def test_all_illegal_row(name: str) -> None:
    refused(f"{name} forbids every choice in row 5", **changed(name, 5, 0.0))


def test_padded_choices_do_not_make_a_row_legal() -> None:
    mask = np.ones((4, 2, 3), bool)
    mask[2, 1] = False, False, True  # token 1 has two choices; the third is padding
    action = np.zeros((4, 2), int)
    few = {k: v[:4] for k, v in arrays().items() if k not in ("num_actions", "mask", "action", "next_mask")}
    refused(
        "mask forbids every choice in row 2",
        **few,
        action=action,
        mask=mask,
        next_mask=mask,
        num_actions=(3, 2),
    )
    mask[2, 1] = True
    data = Dataset.from_arrays(**few, action=action, mask=mask, next_mask=mask, num_actions=(3, 2))
    assert not data.mask[:, 1, 2].any()


def test_logged_action_illegal_by_mask() -> None:
    refused("action is illegal by the mask in row 5", **changed("mask", (5, 2), 0.0))


def test_mask_without_next_mask_and_state_without_next_state() -> None:
    refused("mask and next_mask come together", **arrays(next_mask=None))
    refused("state and next_state come together", **arrays(next_state=None))


def test_mask_of_the_wrong_width() -> None:
    refused("mask", "(12, 1, 3)", **arrays(mask=np.ones((12, 4))))


@pytest.mark.parametrize("shape", [(12, 5), (12, 1, 5)])
def test_a_mask_tells_the_number_of_choices(shape: tuple[int, ...]) -> None:
    wide = {"mask": np.ones(shape), "next_mask": np.ones(shape), "num_actions": None}
    data = Dataset.from_arrays(**arrays(**wide))
    assert data.spec.actions == Discrete(5)  # of which the data takes three
    assert data.mask.shape == (12, 1, 5)
    refused("mask has shape (12, 5)", "(12, 1, 3)", ", or the right num_actions.", **arrays(mask=np.ones((12, 5))))
    refused("mask has shape (12, 2)", "(12, 1, 3)", **arrays(mask=np.ones((12, 2)), num_actions=None))
    refused("mask has shape (12,)", **arrays(mask=np.ones(12), num_actions=None))
    refused("different lengths", **arrays(mask=[[1.0], [1.0, 1.0]] * 6, num_actions=None))
    two = np.stack([np.arange(12) % 3, np.arange(12) % 2], 1)
    padded = {"mask": np.ones((12, 2, 3)), "next_mask": np.ones((12, 2, 3)), "num_actions": None}
    assert Dataset.from_arrays(**arrays(action=two, **padded)).spec.actions == MultiDiscrete((3, 2))
    bins = {"action": np.ones((12, 1)), "actions": Bins(((0.0, 1.0),)), "num_actions": None}
    refused("(12, 1, 2); give one column per choice.", **arrays(mask=np.ones((12, 3)), **bins))


def test_transposed_mask_is_refused() -> None:
    two = {"action": np.zeros((12, 2), int), "num_actions": (3, 3)}
    refused("mask", "(12, 2, 3)", **arrays(**two, mask=np.ones((12, 3, 2)), next_mask=np.ones((12, 2, 3))))


@pytest.mark.parametrize(
    ("preference", "part"),
    [
        ([[1.2, -0.2]], "negative"),
        ([[0.5, 0.6]], "sum to 1"),
        ([[np.nan, 1.0]], "NaN or infinite"),
        ([[1.0]], "per row"),
        ([[0.2, 0.3, 0.5]], "per row"),
    ],
)
def test_bad_preference_in_the_data(preference: list[list[float]], part: str) -> None:
    values = np.tile(np.eye(2)[:1], (12, 1)) if len(preference[0]) == 2 else np.ones((12, len(preference[0])))
    values[5] = preference[0]
    parts = (part,) if part == "per row" else (part, "row 5")
    refused("preference", *parts, **arrays(preference=values))


@pytest.mark.parametrize(
    ("preference", "part"),
    [
        ([1.5, -0.5], "negative"),
        ([0.5, 0.4], "sum to 1"),
        ([1.0], "1 entries but the reward has 2"),
        ([0.2, 0.3, 0.5], "3 entries but the reward has 2"),
        (1.0, "1 entries"),
        ([np.inf, 0.0], "infinite"),
        ("fast", "no list of numbers"),
        ([[0.5, 0.5], [0.5, 0.6]], "row 1"),
    ],
)
def test_check_preference_refuses(preference: Any, part: str) -> None:
    with pytest.raises(QDFMError, match=part) as error:
        check_preference(preference, 2)
    assert "preference" in str(error.value)
    assert ";" in str(error.value)


def test_check_preference_accepts() -> None:
    got = check_preference([0.25, 0.75], 2)
    assert got.dtype == np.float32
    assert got.tolist() == [0.25, 0.75]
    assert check_preference(np.full((3, 2), 0.5), 2).shape == (3, 2)


def test_shapes_that_do_not_fit_together() -> None:
    refused("next_observation has shape (3,)", "(4,)", **arrays(next_observation=np.zeros((12, 3))))
    refused("next_state", **arrays(next_state=np.zeros((12, 4))))
    refused("reward", **arrays(reward=np.zeros((12, 2, 2)), preference=None))
    refused("action", **arrays(action=np.zeros((12, 2, 2), int)))
    refused("num_actions names 2 parts but action has 1", **arrays(num_actions=(3, 3)))
    refused("3 agents", "[n, agents, ...]", **arrays(agents=3))


def test_defaults_read_off_the_data() -> None:
    data = Dataset.from_arrays([1.0, 2.0, 3.0], [0, 2, 1], [1, 2, 3], [2.0, 3.0, 4.0], [0, 1, 0])
    assert data.spec.actions == Discrete(3)
    assert data.observation.shape == (3, 1)
    assert data.action.tolist() == [[0], [2], [1]]
    assert data.reward.tolist() == [[1], [2], [3]]
    assert data.episode.tolist() == [0, 0, 1]
    assert data.terminated.dtype == bool
    assert not data.truncated.any()
    assert len(data) == 3
    assert data.nbytes() == sum(np.asarray(x).nbytes for x in jax.tree.leaves(data))


def test_many_part_actions() -> None:
    part = arrays(action=np.stack([np.arange(12) % 3, np.arange(12) % 2], 1), mask=None, next_mask=None)
    assert Dataset.from_arrays(**(part | {"num_actions": None})).spec.actions == MultiDiscrete((3, 2))
    assert Dataset.from_arrays(**(part | {"num_actions": 4})).spec.actions == MultiDiscrete((4, 4))


def test_interleaved_episodes_become_contiguous_in_time_order() -> None:
    n = 6
    row = np.arange(n)
    data = Dataset.from_arrays(row, row % 2, row, row, row >= 4, episode=np.array([9, 4, 9, 4, 9, 4]))
    assert data.episode.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.observation[:, 0].tolist() == [0, 2, 4, 1, 3, 5]
    named = Dataset.from_arrays(row, row % 2, row, row, row >= 4, episode=np.array(list("zazaza")))
    assert same(named, data)


def test_images_keep_their_bytes_and_mixed_types_become_floats() -> None:
    pixels = np.zeros((12, 2, 2), np.uint8)
    image = Dataset.from_arrays(**arrays(observation=pixels, next_observation=pixels))
    assert image.observation.dtype == image.next_observation.dtype == np.uint8
    assert image.spec.observation_dtype == "uint8"
    assert image.spec.normalisation.observation_mean == image.spec.normalisation.observation_std == ()
    mixed = Dataset.from_arrays(**arrays(observation=pixels, next_observation=pixels.astype(float)))
    assert mixed.observation.dtype == mixed.next_observation.dtype == np.float32


def test_what_follows_a_terminated_row_may_be_nan() -> None:
    good = arrays()
    after, state = good["next_observation"].copy(), good["next_state"].copy()
    after[3], after[7, 2], state[7] = np.nan, np.nan, np.nan  # rows 3, 7 and 11 terminate
    data = Dataset.from_arrays(**good | {"next_observation": after, "next_state": state})
    for row in range(12):
        there = good["observation"][row] if row in (3, 7) else after[row]
        np.testing.assert_array_equal(data.next_observation[row], np.float32(there))
        there = good["state"][row] if row == 7 else state[row]
        np.testing.assert_array_equal(data.next_state[row], np.float32(there))
    assert data.spec == Dataset.from_arrays(**good).spec
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(data.normalised()))
    assert np.isnan(after[3]).all()  # the user's own array is left alone
    cut = {"terminated": np.zeros(12), "truncated": good["terminated"], "next_observation": after}
    refused("next_observation is NaN or infinite in row 3", **good | cut)
    refused("next_observation is NaN or infinite in row 3", **changed("next_observation", (3, 0), np.inf))
    refused("next_observation has shape (3,)", **good | {"next_observation": np.zeros((12, 3))})
    refused("NaN", **good | {"next_observation": np.full((12, 3), np.nan)})
    column = Dataset.from_arrays([0.5, 1.5], [0, 1], [0, 1], [1.5, np.nan], [0, 1])
    assert column.next_observation.tolist() == [[1.5], [1.5]]


def test_it_is_shown_in_one_line() -> None:
    data = every_field()
    assert repr(data) == "Dataset(rows=12, episodes=3, observation=(4,), choices=(3,), objectives=2)"
    assert repr(data[:5]) == str(jax.device_put(data[:5])) == repr(data).replace("12", "5").replace("=3,", "=2,")
    team = {"observation": np.zeros((12, 2, 4)), "next_observation": np.zeros((12, 2, 4)), "agents": 2}
    shown = repr(Dataset.from_arrays(**arrays(action=np.zeros((12, 2), int), mask=None, next_mask=None, **team)))
    assert shown.endswith("observation=(2, 4), choices=(3, 3), objectives=2, agents=2)")
    # And as a tree, whatever its leaves are.
    traced = []
    jax.jit(lambda rows: traced.append(repr(rows)))(data)
    assert traced == [repr(data).replace("episodes=3, ", "")]
    assert repr(jax.tree.map(lambda x: np.stack([x, x]), data)).startswith("Dataset(rows=(2, 12), episodes=3, ")
    assert repr(jax.tree.map(lambda x: "leaf", data)).startswith("Dataset(rows=(), observation=(4,), ")
    assert same(jax.tree.map(lambda x: x, data), data)


def every_field() -> Dataset:
    return Dataset.from_arrays(**arrays()).with_normalisation(reward=True)


@pytest.mark.parametrize("optional", [True, False])
def test_save_and_load_are_exact(tmp_path: Path, optional: bool) -> None:
    data = every_field()
    if not optional:
        data = replace(data, mask=None, next_mask=None, preference=None, state=None, next_state=None)
        data = replace(data, spec=replace(data.spec, state_shape=None))
    else:
        assert all(getattr(data, f.name) is not None for f in fields(data))
    data.save(tmp_path / "data.npz")
    assert same(Dataset.load(tmp_path / "data.npz"), data)


def test_save_and_load_many_parts_and_device_arrays(tmp_path: Path) -> None:
    part = arrays(action=np.stack([np.arange(12) % 3, np.arange(12) % 2], 1), mask=None, next_mask=None)
    data = Dataset.from_arrays(**(part | {"num_actions": (3, 2)}))
    jax.device_put(data).save(tmp_path / "data.npz")
    assert same(Dataset.load(tmp_path / "data.npz"), data)


def test_load_refuses(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    every_field().save(path)
    with np.load(path) as file:
        saved = dict(file)

    def loading(match: str) -> None:
        with pytest.raises(QDFMError, match=match):
            Dataset.load(path)

    header = json.loads(str(saved["header"]))
    np.savez(path, **(saved | {"header": np.array(json.dumps(header | {"version": 99}))}))
    loading("newer qdfm")
    np.savez(path, **(saved | {"header": np.array(json.dumps({"format": "other"}))}))
    loading("not written by Dataset.save")
    np.savez(path, **(saved | {"header": np.array(json.dumps({k: header[k] for k in ("format", "version")}))}))
    loading("damaged")
    np.savez(path, **{k: v for k, v in saved.items() if k != "reward"})
    loading("damaged")
    np.savez(path, **(saved | {"reward": saved["reward"][:3]}))
    loading("reward has 3 rows")
    np.savez(path, **(saved | {"observation": saved["observation"][:, :2]}))
    loading("observation has shape")
    np.savez(path, **(saved | {"action": saved["action"] + 5}))
    loading("action is")
    path.write_bytes(path.read_bytes()[:200])
    loading("damaged")
    path.unlink()
    loading("Cannot read")
    with pytest.raises(QDFMError, match="Cannot write"):
        every_field().save(tmp_path / "nowhere" / "data.npz")
    with pytest.raises(QDFMError, match=r"data\.csv is not the name of a file of arrays; give one that ends in \.npz"):
        every_field().save(tmp_path / "data.csv")


def test_a_crash_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    data = every_field()
    data.save(tmp_path / "data.npz")
    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        data[:2].save(tmp_path / "data.npz")
    assert same(Dataset.load(tmp_path / "data.npz"), data)


def test_flipped_bytes_give_a_sentence_or_the_data(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    every_field().save(path)
    good, rng = path.read_bytes(), np.random.default_rng(0)
    refusals = 0
    for _ in range(200):
        broken = bytearray(good)
        broken[rng.integers(len(good))] ^= int(rng.integers(1, 256))
        path.write_bytes(broken)
        try:
            Dataset.load(path)
        except QDFMError:
            refusals += 1
    assert refusals > 100


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def test_pickled_objects_are_refused_unread(tmp_path: Path) -> None:
    path, mark = tmp_path / "data.npz", tmp_path / "ran"
    np.savez(path, header=np.array([Trap(str(mark))], object), allow_pickle=True)
    assert zipfile.is_zipfile(path)
    with pytest.raises(QDFMError, match="not loaded"):
        Dataset.load(path)
    assert not mark.exists()


def test_pytree_under_jit() -> None:
    data = jax.device_put(every_field())
    doubled = jax.jit(lambda d: replace(d, reward=2 * d.reward))(data)
    assert doubled.spec == data.spec
    np.testing.assert_array_equal(doubled.reward, 2 * data.reward)
    leaves, structure = jax.tree.flatten(data)
    assert len(leaves) == len(fields(data)) - 1  # the spec is static
    assert same(jax.tree.unflatten(structure, leaves), data)
    bare = replace(data, mask=None, next_mask=None)
    assert jax.jit(lambda d: d[1:3])(bare).mask is None

    traces = []
    counted = jax.jit(lambda d: (traces.append(1), d.reward.sum())[1])
    counted(data)
    counted(replace(data, reward=data.reward + 1))
    assert len(traces) == 1  # equal specs share one compilation


@pytest.mark.parametrize("place", [lambda d: d, jax.device_put])
def test_compiled_sampling_as_argument_and_as_closure(place: Any) -> None:
    data, key = place(every_field()), jax.random.key(1)
    eager = data.sample(key, 7)
    for batch in (jax.jit(lambda d, k: d.sample(k, 7))(data, key), jax.jit(lambda k: data.sample(k, 7))(key)):
        assert same(jax.tree.map(np.asarray, batch), jax.tree.map(np.asarray, eager))


def test_sample_is_uniform_with_replacement() -> None:
    n, draws = 20, 20_000
    row = np.arange(n)
    data = Dataset.from_arrays(row, row % 3, row, row, row % 4 == 3)
    drawn = np.asarray(data.sample(jax.random.key(0), draws).reward[:, 0]).astype(int)
    counts = np.bincount(drawn, minlength=n)
    assert stats.chisquare(counts).pvalue > 0.01


def test_sample_keeps_rows_together() -> None:
    data = every_field()
    batch = data.sample(jax.random.key(3), 50)
    for i in range(50):
        row = int(np.flatnonzero((data.observation == batch.observation[i]).all(1))[0])
        for f in fields(data):
            if f.name != "spec":
                np.testing.assert_array_equal(getattr(batch, f.name)[i], getattr(data, f.name)[row])


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_returns_against_a_loop(gamma: float) -> None:
    data = Dataset.from_arrays(**arrays(n=11, num_actions=None, mask=None, next_mask=None))
    expected: dict[int, np.ndarray] = {}
    steps: dict[int, int] = {}
    for e, r in zip(data.episode.tolist(), data.reward.astype(float)):
        t = steps.get(e, 0)
        expected[e] = expected.get(e, np.zeros(2)) + gamma**t * r
        steps[e] = t + 1
    np.testing.assert_allclose(data.returns(gamma), [expected[e] for e in sorted(expected)], rtol=1e-12)


def test_normalisation_applied() -> None:
    raw = arrays()
    raw["observation"] = raw["observation"] * [1, 10, 1e-9, 0] + [5, 0, 0, 0.1]  # the last is constant
    data = Dataset.from_arrays(**raw).with_normalisation(reward=True)
    seen = data.normalised()
    np.testing.assert_allclose(seen.observation[:, :3].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(seen.observation[:, :3].std(0), 1, rtol=1e-5)
    np.testing.assert_allclose(seen.observation[:, 3], 0, atol=1e-6)
    np.testing.assert_allclose(seen.reward.std(0), 1, rtol=1e-5)
    np.testing.assert_allclose(seen.reward * data.reward.std(0), data.reward, rtol=1e-6)
    assert (np.sign(seen.reward) == np.sign(data.reward)).all()  # scaled, not shifted
    mean, std = data.observation.mean(0), np.r_[data.observation[:, :3].std(0), 1]
    np.testing.assert_allclose(seen.next_observation, (data.next_observation - mean) / std, rtol=1e-4, atol=1e-4)
    assert seen.observation.dtype == seen.reward.dtype == np.float32
    np.testing.assert_allclose(jax.jit(lambda d: d.normalised())(data).observation, seen.observation, rtol=1e-5)


def test_normalising_one_leaves_the_other_as_it_is() -> None:
    reward = np.array([[0.0, 2.0], [4.0, 2.0], [0.0, 6.0], [4.0, 6.0]])  # both have a deviation of 2
    raw = Dataset.from_arrays([1.0, 1.0, 5.0, 5.0], [0, 1, 0, 1], reward, np.zeros(4), [0, 0, 0, 1], normalise=False)

    def of(data: Dataset) -> Normalisation:
        return data.spec.normalisation

    assert of(raw.with_normalisation(reward=True)) == Normalisation(reward_scale=(2.0, 2.0))
    assert of(raw.with_normalisation(observation=True)) == Normalisation((3.0,), (2.0,))
    both = Normalisation((3.0,), (2.0,), (2.0, 2.0))
    assert of(raw.with_normalisation(observation=True, reward=True)) == both
    assert of(raw.with_normalisation(observation=True).with_normalisation(observation=False, reward=True)) == both
    assert of(raw.with_normalisation(reward=True).with_normalisation(observation=True)) == both
    other = raw[:2].with_normalisation(reward=True)  # of the first two rows alone the second reward is constant
    assert of(other) == Normalisation(reward_scale=(2.0, 1.0))
    assert of(replace(raw, spec=other.spec).with_normalisation(reward=True)) == of(raw.with_normalisation(reward=True))


def test_a_team_shares_the_statistics_of_its_agents(tmp_path: Path) -> None:
    """Four rows of two agents with one feature, 0..7 in all, and a global state of two, one of which is constant."""
    seen = np.arange(8.0).reshape(4, 2, 1)
    state = np.column_stack([[1.0, 1.0, 3.0, 3.0], np.full(4, 5.0)])
    data = Dataset.from_arrays(
        seen, np.array([[0, 1], [1, 0], [0, 0], [1, 1]]), np.zeros(4), seen + 1, np.zeros(4),
        state=state, next_state=state + 1, agents=2,
    )  # fmt: skip
    spread = np.sqrt((8**2 - 1) / 12)  # of 0, 1, ..., 7
    inside = data.normalised()
    np.testing.assert_allclose(inside.observation, (seen - 3.5) / spread, rtol=1e-6)
    np.testing.assert_allclose(inside.next_observation, (seen - 2.5) / spread, rtol=1e-6)
    np.testing.assert_allclose(inside.state, [[-1, 0], [-1, 0], [1, 0], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(inside.next_state, [[0, 1], [0, 1], [2, 1], [2, 1]], atol=1e-6)
    data.save(tmp_path / "team.npz", {"seed": 3})
    assert Dataset.load(tmp_path / "team.npz").spec == data.spec
    header = saved_header(read_arrays(tmp_path / "team.npz"))
    assert header is not None and header["about"] == {"seed": 3}
    plain = replace(data, spec=replace(data.spec, normalisation=Normalisation())).normalised()
    np.testing.assert_array_equal(plain.state, state)


def test_without_normalisation_the_data_is_seen_as_it_is() -> None:
    data = Dataset.from_arrays(**arrays(normalise=False))
    assert same(data.normalised(), data)


def test_constant_reward_is_not_blown_up_by_rounding() -> None:
    data = Dataset.from_arrays(**arrays(reward=np.full((12, 2), 0.1))).with_normalisation(reward=True)
    assert data.spec.normalisation.reward_scale == (1.0, 1.0)


def test_indexing() -> None:
    data = every_field()
    assert len(data[2:5]) == 3
    assert data[np.array([[0, 1], [2, 3]])].observation.shape == (2, 2, 4)
    assert jnp.shape(data[0].reward) == (2,)


def test_spec_round_trip_and_padding() -> None:
    spec = Spec((3,), MultiDiscrete((3, 2)), objectives=2, state_shape=(4,), normalisation=Normalisation((0.1,) * 3))
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert hash(Spec.from_json(spec.to_json())) == hash(spec)
    assert (spec.tokens, spec.num_choices, spec.num_joint) == (2, 3, 9)
    assert spec.legal.tolist() == [[True, True, True], [True, True, False]]


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((2, 5))])
def test_action_spaces_round_trip(space: Any) -> None:
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space
    tokens = np.stack([np.arange(6) % k for k in space.choices], 1)
    assert space.encode(space.decode(tokens)).tolist() == tokens.tolist()


def test_nothing_need_be_legal_beyond_the_end() -> None:
    n = 4
    obs, ended = np.arange(n, dtype=float)[:, None], np.array([False, True, False, True])
    legal, after = np.ones((n, 2), bool), np.ones((n, 2), bool)
    after[ended] = False
    data = Dataset.from_arrays(obs, [0, 1, 0, 1], np.zeros(n), obs, ended, mask=legal, next_mask=after)
    assert np.asarray(data.next_mask).all()
    after[0] = False
    with pytest.raises(QDFMError, match="next_mask forbids every choice in row 0"):
        Dataset.from_arrays(obs, [0, 1, 0, 1], np.zeros(n), obs, ended, mask=legal, next_mask=after)


def team(n: int = 6, **changes: Any) -> Dataset:
    """Two agents that see three numbers each, and a global state of two numbers, the second of them constant."""
    rng = np.random.default_rng(1)
    seen = rng.normal(size=(2, n, 2, 3)) * [[1, 5, 1], [2, 1, 1]] + [[0, 3, 0], [4, 0, 1]]
    state = np.stack([rng.normal(2, 3, (2, n)), np.full((2, n), 0.1)], -1)
    action, ended = np.arange(2 * n).reshape(n, 2) % 3, np.arange(n) % 3 == 2
    good = {"state": state[0], "next_state": state[1], "agents": 2, "num_actions": (3, 3)}
    return Dataset.from_arrays(seen[0], action, np.zeros(n), seen[1], ended, **(good | changes))


def test_a_team_is_normalised_alike_for_every_agent_and_its_state_apart() -> None:
    data = team()
    seen = data.normalised()
    for column in range(3):
        values = [float(data.observation[i, g, column]) for i in range(6) for g in range(2)]
        mean = sum(values) / 12
        std = (sum((v - mean) ** 2 for v in values) / 12) ** 0.5
        for raw, shown in ((data.observation, seen.observation), (data.next_observation, seen.next_observation)):
            np.testing.assert_allclose(shown[..., column], (raw[..., column] - mean) / std, rtol=1e-4, atol=1e-5)
    assert abs(seen.observation[:, 0, 0].mean()) > 0.3  # an agent alone is not centred: the column tells agents apart
    values = [float(v) for v in data.state[:, 0]]
    mean = sum(values) / 6
    std = (sum((v - mean) ** 2 for v in values) / 6) ** 0.5
    for raw, shown in ((data.state, seen.state), (data.next_state, seen.next_state)):
        np.testing.assert_allclose(shown[:, 0], (raw[:, 0] - mean) / std, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(shown[:, 1], 0, atol=1e-6)  # constant
    assert seen.state.dtype == np.float32
    np.testing.assert_allclose(jax.jit(lambda d: d.normalised())(data).state, seen.state, rtol=1e-5, atol=1e-6)
    assert same(team(normalise=False).normalised(), team(normalise=False))
    without = team(state=None, next_state=None)
    assert without.normalised().state is None
    assert without.spec.normalisation.state_mean == ()


def test_a_state_of_bytes_stays_as_it_is() -> None:
    pixels = np.zeros((6, 4), np.uint8)
    data = team(state=pixels, next_state=pixels)
    assert data.spec.normalisation.state_mean == ()
    assert data.normalised().state.dtype == np.uint8


def test_a_spec_written_before_states_were_normalised_still_loads() -> None:
    spec = team().spec
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    old = json.loads(json.dumps(spec.to_json()))
    del old["normalisation"]["state_mean"], old["normalisation"]["state_std"]
    loaded = Spec.from_json(old)
    assert loaded.normalisation == replace(spec.normalisation, state_mean=(), state_std=())
    state = np.ones((3, 2), np.float32)
    assert loaded.normalise_state(state) is state


def test_value_scale_is_the_mean_size_of_returns_from_every_row():
    rng = np.random.default_rng(0)
    n = 57
    reward, episode = rng.normal(size=(n, 2)), np.sort(rng.integers(6, size=n))
    ended = np.r_[episode[1:] != episode[:-1], True]
    ahead, sizes = np.zeros(2), []
    for r, last in zip(reward[::-1], ended[::-1]):
        ahead = r + (0 if last else 0.9 * ahead)
        sizes.append(np.abs(ahead))
    data = Dataset.from_arrays(
        np.zeros((n, 1)), np.zeros(n, int), reward, np.zeros((n, 1)), ended, episode=episode, num_actions=2
    )
    assert data.value_scale(0.9) == pytest.approx(np.mean(sizes, 0).max(), rel=1e-6)
    assert data.value_scale(0.0) == pytest.approx(np.abs(reward).mean(0).max(), rel=1e-6)
    nothing = Dataset.from_arrays(np.zeros((3, 1)), [0, 1, 0], np.zeros(3), np.zeros((3, 1)), [0, 0, 1])
    assert nothing.value_scale(0.9) == 1


def test_split_by_whole_episodes() -> None:
    """Ten episodes of 1 to 10 rows, whose rewards say what row they are."""
    episode = np.repeat(np.arange(10), np.arange(1, 11))
    row = np.arange(55)
    data = Dataset.from_arrays(
        row**2.0, row % 3, row, row, np.r_[np.diff(episode) > 0, True], episode=episode, num_actions=3
    ).with_normalisation(reward=True)
    one, other = data.split(0.7, seed=3)
    rows = [set(part.reward[:, 0].astype(int).tolist()) for part in (one, other)]
    assert rows[0] | rows[1] == set(range(55))
    assert not rows[0] & rows[1]
    assert [len(set(part.episode.tolist())) for part in (one, other)] == [7, 3]
    assert not set(one.episode.tolist()) & set(other.episode.tolist())
    for part in (one, other):
        assert (np.diff(part.reward[:, 0]) > 0).all()  # in the order that they had
        assert same(part, replace(data[part.reward[:, 0].astype(int)], spec=one.spec))
    norm = other.spec.normalisation
    seen = one.observation[:, 0].astype(float)
    np.testing.assert_allclose((norm.observation_mean[0], norm.observation_std[0]), (seen.mean(), seen.std()))
    np.testing.assert_allclose(norm.reward_scale[0], np.std(one.reward.astype(float)))
    assert same(one, data.split(0.7, seed=3)[0])
    drawn = {tuple(np.unique(data.split(0.7, seed=seed)[0].episode).tolist()) for seed in range(20)}
    assert len(drawn) > 10  # of 120
    assert {e for episodes in drawn for e in episodes} == set(range(10))


def test_split_keeps_what_was_not_fitted() -> None:
    raw = Dataset.from_arrays(**arrays(40, normalise=False))
    assert [part.spec for part in raw.split()] == [raw.spec, raw.spec]
    longer = replace(raw, preference=None, mask=None, next_mask=None).with_accumulated(0.9)
    assert [part.spec for part in longer.split()] == [longer.spec, longer.spec]


@pytest.mark.parametrize("share", [0, 1, 0.1, 0.9, -1, 2, float("nan")])
def test_a_split_that_leaves_a_part_empty(share: float) -> None:
    data = Dataset.from_arrays(**arrays())  # of three episodes
    for of, count in ((data, 3), (data[:4], 1), (data[:0], 0)):
        with pytest.raises(
            QDFMError, match=rf"^A share of {share} of {count} episode\(s\) leaves one part empty; give"
        ):
            of.split(share)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    Dataset.from_arrays(**arrays())[:0].save(tmp_path / "empty.npz")
    with pytest.raises(QDFMError, match="The data is empty; give at least one transition"):
        Dataset.load(tmp_path / "empty.npz")

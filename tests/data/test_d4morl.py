"""D4MORL's files: trajectories by hand in both layouts, broken files, and pickles that would run code."""

import os
import pickle
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qdfm
from qdfm.data.actions import Bins
from qdfm.data.d4morl import write_trajectories
from qdfm.errors import QDFMError

BINS = partial(qdfm.load_dataset, bins=3)


def trajectory(steps: int, start: float, terminal: bool, share: float) -> defaultdict:
    """Observations start, start + 1, … of two columns; as D4MORL's own script collects them."""
    held: defaultdict = defaultdict(list)
    for t in range(steps):
        held["observations"].append(np.array([start + t, 0.5]))
        held["actions"].append(np.array([t % 3 - 1.0, 1.0 - t % 2]))
        held["next_observations"].append(np.array([start + t + 1, 0.5]))
        held["preference"].append(np.array([share, 1 - share]))
        held["terminals"].append(np.array(terminal and t == steps - 1))
        held["raw_rewards"].append(np.array([t, 10.0 * t]))
    for name, values in held.items():
        held[name] = np.array(values)
    return held


TRAJECTORIES = [trajectory(3, 0, True, 0.25), trajectory(500, 10, True, 0.5), trajectory(4, 600, False, 1.0)]


def write(path: Path, what: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(what, protocol))
    return path


def check(data: qdfm.Dataset) -> None:
    """All rows of the three trajectories."""
    assert len(data) == 507
    step = np.r_[0:3, 0:500, 0:4]
    np.testing.assert_array_equal(data.observation[:, 0], np.r_[0:3, 10:510, 600:604])
    np.testing.assert_array_equal(data.next_observation[:, 0], np.r_[1:4, 11:511, 601:605])
    np.testing.assert_array_equal(data.reward, np.stack([step, 10 * step], 1))
    np.testing.assert_array_equal(data.preference[:, 0], np.repeat(np.float32([0.25, 0.5, 1]), [3, 500, 4]))
    np.testing.assert_array_equal(data.action, np.stack([step % 3, 2 * (1 - step % 2)], 1))  # of −1, 0, 1 and 0, .5, 1
    np.testing.assert_array_equal(data.episode, np.repeat([0, 1, 2], [3, 500, 4]))
    np.testing.assert_array_equal(np.flatnonzero(data.terminated), [2])
    np.testing.assert_array_equal(np.flatnonzero(data.truncated), [502, 506])  # the time limit, and cut off
    assert data.spec.actions == Bins(((-1.0, 0.0, 1.0), (0.0, 0.5, 1.0)))
    np.testing.assert_array_equal(data.returns(), [[3, 30], [124750, 1247500], [6, 60]])


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_pickle(tmp_path, protocol):
    check(BINS(write(tmp_path / "MO-Hopper-v2_3_expert_uniform.pkl", TRAJECTORIES, protocol)))


def test_pickles_of_another_make(tmp_path):
    """By NumPy 1, with lists of arrays and numbers, one preference per trajectory, other entries, other byte orders."""
    odd = [dict(one) for one in TRAJECTORIES]
    odd[0] |= {
        "observations": list(odd[0]["observations"]),
        "preference": odd[0]["preference"][0],
        "terminals": [np.bool_(False), False, np.bool_(True)],
        "rewards": [np.float64(0.5)] * 3,
        "note": ("seed", 1),
    }
    odd[1] |= {"raw_rewards": np.asfortranarray(odd[1]["raw_rewards"]).astype(">f4")}
    check(BINS(write(tmp_path / "a.pkl", odd)))
    new = pickle.dumps(odd, 3)
    assert b"numpy._core.multiarray\n" in new
    (tmp_path / "old.pkl").write_bytes(new.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n"))
    check(BINS(tmp_path / "old.pkl"))


def arrays_of_trajectories() -> dict[str, np.ndarray]:
    return {
        "lengths": np.array([3, 500, 4]),
        "observations": np.concatenate([np.r_[t["observations"], t["next_observations"][-1:]] for t in TRAJECTORIES]),
        "actions": np.concatenate([t["actions"] for t in TRAJECTORIES]),
        "rewards": np.concatenate([t["raw_rewards"] for t in TRAJECTORIES]),
        "terminated": np.array([True, False, False]),
        "preferences": np.array([t["preference"][0] for t in TRAJECTORIES]),
        "policy": np.array([7, 8, 9]),
    }


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays_of_trajectories())
    check(BINS(tmp_path / "a.npz"))
    assert qdfm.load_dataset(tmp_path / "a.npz", codebook=5).spec.choices == (5,)
    raw = qdfm.load_dataset(tmp_path / "a.npz", bins=3, normalise=False)
    assert not raw.spec.normalisation.observation_mean
    names = ("observation", "reward", "next_observation", "terminated", "episode", "preference")
    rows = {name: getattr(raw, name) for name in names}
    write_trajectories(tmp_path / "b.npz", rows | {"action": raw.spec.actions.decode(raw.action)})
    check(BINS(tmp_path / "b.npz"))
    with np.load(tmp_path / "b.npz") as file:
        np.testing.assert_array_equal(file["observations"], arrays_of_trajectories()["observations"])
    with pytest.raises(QDFMError, match="Cannot write"):
        write_trajectories(tmp_path / "none" / "b.npz", rows | {"action": raw.action})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rewards": None}, "lacks rewards; trajectories have lengths, observations"),
        ({"lengths": np.array([3, 500, 5])}, r"observations in .* has 510 rows where lengths need 511"),
        ({"lengths": np.array([3, 504, 0])}, "lengths in .* at least 1"),
        ({"lengths": np.array([3.0, 500, 4])}, "lengths in .* at least 1"),
        ({"lengths": np.zeros(0, int)}, "lengths in .* at least 1"),
        ({"actions": np.zeros((506, 2))}, "actions in .* has 506 rows where lengths need 507"),
        ({"terminated": np.zeros(2, bool)}, "terminated in .* has 2 rows where lengths need 3"),
        ({"terminated": np.array([1, 0, 7])}, "terminated is neither true nor false in row 506"),
        ({"preferences": np.full((3, 2), 0.4)}, "preference does not sum to 1"),
        ({"preferences": np.ones(3)}, r"preferences in .* has shape \(3,\) .* 2 axes"),
        ({"rewards": np.full((507, 2), np.nan)}, "reward is NaN or infinite in row 0"),
        ({"actions": np.full((507, 2), "x")}, "actions in .* type <U1"),
        ({"actions": np.zeros((507, 0))}, r"actions in .* has shape \(507, 0\)"),
    ],
)
def test_broken_arrays(tmp_path, changes, sentence):
    arrays = {name: values for name, values in (arrays_of_trajectories() | changes).items() if values is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(QDFMError, match=sentence):
        BINS(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ({}, "is no list of trajectories"),
        ([], "is no list of trajectories"),
        ([3], "is no list of trajectories"),
        ([{"observations": np.ones((2, 2))}], "Trajectory 0 of .* lacks next_observations, actions"),
        ([TRAJECTORIES[0], TRAJECTORIES[2] | {"actions": np.ones((4, 3))}], r"have actions of \[2, 3\] numbers"),
        ([TRAJECTORIES[0] | {"actions": np.ones((2, 2))}], "has 2 rows of actions but 3 of terminals"),
        ([TRAJECTORIES[0] | {"terminals": np.array([True, False, True])}], "goes on after a terminal at step 0"),
        ([TRAJECTORIES[0] | {"terminals": np.zeros(0)}], "has no steps"),
        ([TRAJECTORIES[0] | {"terminals": 3}], "has no steps"),
        ([TRAJECTORIES[0] | {"preference": np.ones((3, 3)) / 3}], "preference of another size"),
        ([TRAJECTORIES[0] | {"next_observations": np.ones((3, 3))}], "next_observations or a preference"),
        ([TRAJECTORIES[0] | {"actions": [np.ones(2), np.ones(3), 1]}], "actions of trajectory 0 .* type object"),
        ([TRAJECTORIES[0] | {"actions": ["a", "b", "c"]}], "actions of trajectory 0 .* type <U1"),
    ],
)
def test_broken_trajectories(tmp_path, what, sentence):
    with pytest.raises(QDFMError, match=sentence):
        BINS(write(tmp_path / "a.pkl", what))


def test_files_that_are_no_pickles(tmp_path):
    whole = pickle.dumps(TRAJECTORIES)
    path = tmp_path / "a.pkl"
    for text in (
        b"",
        b"hello",
        whole[:-100],
        whole[: len(whole) // 2],
        b"\x80\x04\x95" + b"\xff" * 20,
        b"\x80\x04Pabc\n.",
    ):
        path.write_bytes(text)
        with pytest.raises(QDFMError, match=r"a\.pkl is damaged or no pickle of arrays; fetch it again"):
            BINS(path)
    with pytest.raises(QDFMError, match="no file"):
        BINS(tmp_path / "none.pkl")
    with pytest.raises(QDFMError, match=r"has continuous actions; say how .* bins=21 or codebook=256"):
        qdfm.load_dataset(write(path, TRAJECTORIES))
    np.savez(tmp_path / "a.npz", **arrays_of_trajectories())
    with pytest.raises(QDFMError, match=r"has continuous actions; say how .* bins=21 or codebook=256"):
        qdfm.load_dataset(tmp_path / "a.npz")
    with pytest.raises(QDFMError, match="leave out num_actions and give bins"):
        qdfm.load_dataset(tmp_path / "a.npz", num_actions=3)
    with pytest.raises(QDFMError, match=r"num_actions does not concern .*a\.pkl"):
        qdfm.load_dataset(path, num_actions=3)


class Hostile:
    """Calls something when it is unpickled."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple:
        return self.call


def test_an_error_names_the_file_as_it_is_spelt(tmp_path):
    (tmp_path / "My Data").mkdir()
    with pytest.raises(QDFMError, match=r"actions of trajectory 1 of /.*/My Data/Log\.pkl has shape"):
        BINS(write(tmp_path / "My Data" / "Log.pkl", [TRAJECTORIES[0], TRAJECTORIES[0] | {"actions": ["a", "b"]}]))


def touch(path: str) -> None:
    Path(path).touch()


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("posix.system", lambda path: (os.system, f"touch {path}")),
        ("builtins.eval", lambda path: (eval, f"open({path!r}, 'w')")),
        ("builtins.getattr", lambda path: (getattr, path, "upper")),
        ("io.open", lambda path: (open, path, "w")),
        ("test_d4morl.touch", lambda path: (touch, path)),
        ("numpy.fromfile", lambda path: (np.fromfile, path)),
        ("functools.partial", lambda path: (partial, os.system, f"touch {path}")),
    ],
)
def test_hostile_pickles_run_nothing(tmp_path, named, call):
    mark, path = tmp_path / "was-run", tmp_path / "a.pkl"
    hostile = Hostile(*call(str(mark)))
    inside = np.empty(1, object)
    inside[0] = hostile
    trap = TRAJECTORIES[0] | {"note": hostile}
    for what in (hostile, [trap], [TRAJECTORIES[0] | {"observations": inside}]):
        for protocol in (0, 2, 4, 5):
            with pytest.raises(QDFMError, match=r"a\.pkl asks for .* which may run code; nothing was run") as refused:
                BINS(write(path, what, protocol))
            assert protocol < 3 or named in str(refused.value) or "arrays of" in str(refused.value)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Hostile(touch, str(mark))))  # as such a pickle would
    assert mark.exists()


def by_hand(*opcodes: bytes) -> bytes:
    """A pickle of protocol 2 that NumPy would not write."""
    return b"\x80\x02" + b"".join(opcodes) + b"."


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n"
KIND = b"cnumpy\ndtype\n"
TUPLE_OF = b"X\x01\x00\x00\x00O\x85R"  # a tuple of the text O, and the call with it


@pytest.mark.parametrize(
    "text",
    [
        by_hand(ARRAY, b"N}X\x04\x00\x00\x00makeNs\x86b"),  # sets an attribute of what makes arrays
        by_hand(ARRAY, b"}X\x08\x00\x00\x00__code__Nsb"),
        by_hand(ARRAY, b")R(K\x01)", KIND, TUPLE_OF, b"\x89]tb"),  # an array of objects
        by_hand(ARRAY, b")R(K\x01)", KIND, TUPLE_OF, b"\x89C\x08AAAAAAAAtb"),  # whose addresses are given
        by_hand(ARRAY, b")R(K\x01K\x09\x85NKAC\x01Atb"),  # a type that is none
        by_hand(b"cnumpy.core.numeric\n_frombuffer\n(C\x08AAAAAAAA", KIND, TUPLE_OF, b"K\x01\x85X\x01\x00\x00\x00CtR"),
        by_hand(b"ccollections\ndefaultdict\ncbuiltins\nlist\n\x85R"),  # nothing but an empty dictionary
        by_hand(b"cbuiltins\nlist\n(K\x01K\x02tR"),
        by_hand(b"\x82\x01"),  # an extension
        by_hand(b"K\x01Q"),  # something that is kept elsewhere
    ],
)
def test_pickles_that_numpy_would_not_write(tmp_path, text):
    (tmp_path / "a.pkl").write_bytes(text)
    with pytest.raises(QDFMError, match=r"a\.pkl (asks for|is damaged|is no list)"):
        BINS(tmp_path / "a.pkl")
    check(BINS(write(tmp_path / "b.pkl", TRAJECTORIES)))  # and nothing lasts

"""qdfm data: what inspect shows, what make writes, and one sentence for bad rows and files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import CLONE, refusal, table

import qdfm
from qdfm.cli import main
from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.arrays import read_arrays
from qdfm.data.builtin import GENERATORS, Generator
from qdfm.data.dataset import saved_header

HEAD = "obs,action,reward,terminated"


def test_data_inspect(capsys):
    rows = [f"{i},{i % 2},{i},{int(i % 4 == 3)}" for i in range(8)]
    assert main(["data", "inspect", table("log.csv", "obs,action,reward,terminated", *rows)]) == 0
    out = capsys.readouterr().out
    for name, value in (("transitions", 8), ("episodes", 2), ("objectives", 1), ("terminated", 2)):
        assert re.search(rf"^{name}\s+{value}\s*$", out, re.MULTILINE), name
    assert re.search(r"^1 +14 ", out, re.MULTILINE)  # (0 + … + 7) / 2 episodes
    assert "There are only 8 transitions" in out


def test_data_inspect_with_named_columns(capsys):
    log = table("log.csv", "x_pulse,x_age,move,reward,episode", "0.5,50,0,1,1", "1.5,40,1,2,1")
    words = ["--columns.action", "move", "--num-actions", "4"]
    for names, order in (
        (["x"], "x_pulse, x_age"),
        (["x_age", "x_pulse"], "x_age, x_pulse"),
        (["x_age"], "x_age"),
    ):
        assert main(["data", "inspect", log, "--columns.observation", *names, *words]) == 0
        out = capsys.readouterr().out
        assert re.search(r"tokens × choices\s+1 × 4", out)
        rows = [("observation", order), ("action", "move"), ("next observation", "those of the next row")]
        for field, columns in rows:
            assert re.search(rf"^{field} +{columns} *$", out, re.MULTILINE), out
    assert "Unknown observation column 'age'" in refusal(
        capsys, "data", "inspect", log, "--columns.observation", "x_pulse", "age", *words
    )


def test_data_inspect_tells_what_is_not_used(capsys):
    log = table("log.csv", "obs,action,reward,terminated,ward,done", "0.5,0,1,0,a,0", "1.5,1,2,1,a,1")
    assert main(["data", "inspect", log]) == 0
    assert re.search(r"^not used +ward, done *$", capsys.readouterr().out, re.MULTILINE)
    assert main(["data", "inspect", table("log.csv", HEAD, "0.5,0,1,0", "1.5,1,2,1")]) == 0
    assert "not used" not in capsys.readouterr().out
    log = table("log.csv", "obs,action,reward,next_obs,done", "0.5,0,1,2,1", "1.5,1,2,0,1")
    for command in (["data", "inspect"], ["train"]):
        assert "name it (--columns.terminated done)" in refusal(capsys, *command, log)
    assert main(["data", "inspect", log, "--columns.terminated", "done"]) == 0
    assert re.search(r"^episodes +2 *$", capsys.readouterr().out, re.MULTILINE)


def test_data_inspect_tells_what_reading_did(capsys, recwarn):
    """Three episodes of steps 0, 1, 2, 3, 5 that do not end, whose second column never changes."""
    rows = [f"{e},{t},{e + t},7,{t % 3},{t},0" for e in range(3) for t in (0, 1, 2, 3, 5)]
    log = table("log.csv", "episode,step,x_age,x_ward,action,reward,terminated", *rows)
    assert main(["data", "inspect", log, "--columns.observation", "x", "--bins", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "3 last rows of episodes were left out of log.csv",
        "⚠ step jumps 3 times within episodes, first from 3 to 5 in row 4,",
        "⚠ The actions are whole numbers, 3 different ones, of which bins left 2;",
        "⚠ Constant observation features: x_ward;",
    ):
        assert part in said
    assert not recwarn  # all was said once
    done = table("done.csv", HEAD, *[f"{i % 7},{i % 2},{(i * i) % 5},1" for i in range(8)])
    assert main(["data", "inspect", done]) == 0
    assert capsys.readouterr().out.count("⚠") == 1  # few transitions


def test_a_table_that_does_not_say_where_episodes_end(capsys):
    log = table("log.csv", "obs,action,reward,patient", "0.5,0,1,a", "1.5,1,2,a", "1.5,1,2,b")
    for command in (["data", "inspect"], ["train"]):
        said = refusal(capsys, *command, log)
        assert "log.csv does not say where episodes end; name the column" in said
        assert "(--columns.episode NAME)" in said
        assert "terminated of ones if every row stands alone" in said
    assert main(["data", "inspect", log, "--columns.episode", "patient"]) == 0
    assert re.search(r"^episodes +2 *$", capsys.readouterr().out, re.MULTILINE)


def test_data_make_and_load(capsys):
    assert main(["data", "make", "multigoal-2"]) == 0
    # Two goals at distance 4 + 10, 250 walks to each.
    assert capsys.readouterr().out == "Wrote 7000 transitions, mean return [10.0], to multigoal-2.npz.\n"
    made, built_in = qdfm.load_dataset("multigoal-2.npz"), qdfm.load_dataset("multigoal-2")
    assert made.spec == built_in.spec
    np.testing.assert_array_equal(made.observation, built_in.observation)
    np.testing.assert_array_equal(made.action, built_in.action)


def test_data_make_leaves_what_is_there_unless_told(capsys):
    assert main(["data", "make", "matrix", "--steps", "50"]) == 0
    for words in ([], ["--out", "matrix.npz"]):
        said = refusal(capsys, "data", "make", "matrix", "--steps", "60", *words)
        assert "matrix.npz is already there; renew it with --replace, or give another --out." in said
    assert len(qdfm.load_dataset("matrix.npz")) == 50
    assert main(["data", "make", "matrix", "--steps", "60", "--replace"]) == 0
    assert len(qdfm.load_dataset("matrix.npz")) == 60


def test_data_make_writes_npz_only(capsys, monkeypatch):
    for place in ("qdfm.cli.data._made", "qdfm.collect.mo_hopper.collect_mo_hopper"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("collected"))
    for name in ("multigoal-2", "mo-hopper-expert"):
        for out in ("c.csv", "c", ".."):
            said = refusal(capsys, "data", "make", name, "--out", out)
            assert f"{out} is not the name of a file of arrays; give one that ends in .npz." in said
    assert not list(Path().iterdir())


def test_data_make_in_an_id(capsys):
    assert main(["data", "make", "CartPole-v1", "--steps", "50", "--seed", "3"]) == 0
    assert "Wrote 50 transitions, mean return [" in capsys.readouterr().out
    made, same = qdfm.load_dataset("CartPole-v1.npz"), collect_gymnasium("CartPole-v1", 50, seed=3)
    np.testing.assert_array_equal(made.observation, same.observation)
    assert main(["train", "CartPole-v1", *CLONE, "--episodes", "2"]) == 0
    played = json.loads(capsys.readouterr().out.splitlines()[2])
    assert played["return_mean"] == [played["length_mean"]]  # +1 per step
    for option in ("--steps", "--seed"):
        said = refusal(capsys, "data", "make", "multigoal-2", option, "3")
        assert f"{option} does not concern the built-in multigoal-2; leave it out." in said


def test_data_make_of_a_built_in_that_takes_options(capsys):
    assert main(["data", "make", "matrix", "--steps", "50", "--seed", "3"]) == 0
    assert "Wrote 50 transitions, mean return [" in capsys.readouterr().out
    made, same = qdfm.load_dataset("matrix.npz"), qdfm.load_dataset("matrix", transitions=50, seed=3)
    np.testing.assert_array_equal(made.action, same.action)
    assert (made.action != qdfm.load_dataset("matrix", transitions=50).action).any()


def test_data_make_of_battles(capsys):
    assert main(["data", "make", "smax-3m-poor", "--steps", "400", "--seed", "2"]) == 0
    made, same = qdfm.load_dataset("smax-3m-poor.npz"), qdfm.load_dataset("smax-3m-poor", transitions=400, seed=2)
    np.testing.assert_array_equal(made.state, same.state)
    assert made.spec == same.spec
    about = saved_header(read_arrays("smax-3m-poor.npz"))["about"]
    episodes, won = int(same.episode[-1]) + 1, float((same.reward > 10).sum())
    assert about == {
        "task": "smax-3m-poor", "seed": 2, "episodes": episodes, "win_rate": won / episodes,
        "return_mean": pytest.approx(same.reward.sum() / episodes, rel=1e-5),
    }  # fmt: skip
    mean, rate = round(about["return_mean"], 4), about["win_rate"]
    said = (
        f"Wrote 400 transitions, mean return [{mean}], {episodes} episodes, win rate {rate:.3f}, to smax-3m-poor.npz.\n"
    )
    assert capsys.readouterr().out == said


def test_an_entry_says_what_the_commands_do_with_its_data(capsys, monkeypatch):
    row, asked = np.arange(8.0), []

    def collect(transitions: int = 8) -> qdfm.Dataset:
        asked.append(transitions)
        return qdfm.Dataset.from_arrays(row, row % 2, row, row + 1, row % 4 == 3)

    def written(*given: object) -> str:
        asked.append(given)
        return "what was asked"

    kinds = {
        "told": {"facts": lambda data: (f"{len(data)} rows", {"rows": len(data)})},
        "quick": {"quick": lambda: 5}, "written": {"write": written}, "kept": {"keep": written},
    }  # fmt: skip
    for name, fields in kinds.items():
        monkeypatch.setitem(GENERATORS, name, Generator(collect, "my own", ("transitions",), **fields))
    assert main(["data", "make", "told"]) == 0
    assert capsys.readouterr().out == "Wrote 8 transitions, mean return [14.0], 8 rows, to told.npz.\n"
    assert saved_header(read_arrays("told.npz"))["about"] == {"task": "told", "seed": 0, "rows": 8}
    for name in ("quick", "told"):
        assert main(["train", name, "--quick", *CLONE]) == 0
    assert "The data: 8 transitions, mean return [14.0], 8 rows.\n" in capsys.readouterr().out
    for words in (["written", "--steps", "3"], ["kept", "--seed", "2"]):
        assert main(["data", "make", *words]) == 0
    assert capsys.readouterr().out == "Wrote what was asked, to written.npz.\nWrote what was asked.\n"
    assert asked == [8, 5, 8, (Path("written.npz"), 3, 0), (None, 2, False)]
    assert "--out does not concern kept, which becomes" in refusal(capsys, "data", "make", "kept", "--out", "x.npz")


def test_a_file_that_cannot_be_written(capsys, monkeypatch):
    """And that is said before anything is collected."""
    Path("file").touch()
    for place in ("qdfm.cli.data._made", "qdfm.collect.mo_hopper.collect_mo_hopper"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("collected"))
    for name in ("multigoal-2", "CartPole-v1", "mo-hopper-expert"):
        said = refusal(capsys, "data", "make", name, "--out", "file/x.npz")
        assert "Cannot write file/x.npz (Not a directory)" in said


@pytest.mark.parametrize("command", [["train"], ["data", "inspect"]])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (("1,0,0,0", "NaN,1,0,1"), "Column 'obs' is NaN or infinite in row 1"),
        (("1,0,0,0", "nan,1,0,1"), "'nan' in row 1; give numbers"),
        (("1,0,0,0", "2,1,NaN,1"), "Column 'reward' is NaN or infinite in row 1"),
        (("1,0,0,0", "2,1,,1"), "Column 'reward' is empty in row 1"),
        (("1,0,0,0", "2,1,0,0", "3,-1,0,1"), "action is -1 in row 2, outside 0..1"),
        (("1,0,0,0", "2,0.5,0,1"), "action is not a whole number in row 1"),
        (("1,0,0,0", "2,0,0,1"), "action has a single choice"),
        (("1,0,0,0", "2,1,0,2"), "Column 'terminated' is neither true nor false in row 1"),
        (("1,0,0,0", "two,1,0,1"), "'two' in row 1; give numbers"),
        ((), "has no rows"),
    ],
)
def test_bad_rows(command, rows, says, capsys):
    assert says in refusal(capsys, *command, table("log.csv", HEAD, *rows))


def test_bad_files(capsys):
    for name in ("log.csv", "log.parquet", "log.npz"):
        Path(name).touch()
        assert name in refusal(capsys, "train", name)
    assert "is empty" in refusal(capsys, "data", "inspect", "log.csv")
    Path("notes.txt").touch()
    assert "of no known kind" in refusal(capsys, "train", "notes.txt")
    assert "There is no file nothing.csv" in refusal(capsys, "train", "nothing.csv")


def test_actions_beyond_the_number_given(capsys):
    log = table("log.csv", HEAD, "1,0,0,0", "2,3,0,1")
    assert "action is 3 in row 1, outside 0..2" in refusal(capsys, "train", log, "--num-actions", "3")


def test_preferences_in_the_data_of_another_length_than_the_reward(capsys):
    head = "obs,action,reward,terminated,preference_0,preference_1"
    log = table("log.csv", head, "1,0,0,0,1,0", "2,1,0,1,0,1")
    assert "preference has shape (2,) per row but (1,) is needed" in refusal(capsys, "data", "inspect", log)


def test_unknown_columns_name_the_nearest(capsys):
    log = table("log.csv", "state,actions,reward,terminated", "1,0,0,0", "2,1,0,1")
    words = ["data", "inspect", log, "--columns.observation"]
    assert "Unknown observation column 'stat'; did you mean 'state'?" in refusal(capsys, *words, "stat")
    assert "Unknown action column 'action'; did you mean 'actions'?" in refusal(capsys, *words, "state")


def test_continuous_actions_of_ones_own(capsys):
    rows = [f"{i},{i / 4 - 1},{i},{int(i == 8)}" for i in range(9)]
    log = table("log.csv", HEAD, *rows)
    assert "--bins 21" in refusal(capsys, "train", log, *CLONE)
    assert main(["train", log, *CLONE, "--bins", "3"]) == 0
    assert qdfm.load("runs/log-bc/agent-0.safetensors").spec.actions.values == ((-1.0, 0.0, 1.0),)

"""The training loop: killed and resumed runs, interrupted and diverged ones."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest

import qdfm
from qdfm.errors import Diverged, Interrupted, interrupted, remembered_interrupts
from qdfm.train import Options, _Loop, compiled_phase, train
from small_runs import CONFIG, OFTEN, rows, small_data

RUN = """
import sys
sys.path[:0] = {path!r}
from small_runs import CONFIG, OFTEN, small_data
from qdfm.train import train
train(CONFIG, small_data(), seeds=(0, 1), out={out!r}, resume={resume!r}, progress=False, options=OFTEN)
"""


def run_in_process(out, resume: bool) -> subprocess.Popen:
    here = [os.path.dirname(os.path.abspath(__file__))]
    return subprocess.Popen([sys.executable, "-c", RUN.format(path=here, out=str(out), resume=resume)])


def test_a_killed_run_resumes_and_ends_bit_identical(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(CONFIG, small_data(), seeds=(0, 1), out=whole, progress=False, options=OFTEN)
    expected = rows(whole)
    assert len(expected) == 2 * 18  # two seeds, three phases of six chunks
    kills = 0
    # Kill as soon as the log has grown past a few marks, wherever the process then is; each time from the last state.
    for mark in (1, 9, 21, 33):
        process = run_in_process(killed, resume=(killed / "config.json").exists())
        log = killed / "metrics.jsonl"
        while process.poll() is None:
            if log.exists() and len(log.read_text().splitlines()) >= mark:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 3
    assert run_in_process(killed, resume=True).wait() == 0
    for seed in (0, 1):
        name = f"agent-{seed}.safetensors"
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    assert rows(killed) == expected


def test_rewards_of_a_diverged_run_are_named_in_their_own_units():
    data = small_data()
    wild = dataclasses.replace(data, reward=np.full_like(data.reward, 1e30))
    scaled = dataclasses.replace(
        wild.spec, normalisation=dataclasses.replace(wild.spec.normalisation, reward_scale=(1e-4,))
    )
    with pytest.raises(Diverged, match=r"largest reward 1e\+30"):
        train(CONFIG, dataclasses.replace(wild, spec=scaled), progress=False, options=OFTEN)


def test_a_diverged_run_says_where_and_keeps_the_last_good_state(tmp_path):
    data = small_data()
    wild = dataclasses.replace(data, reward=np.full_like(data.reward, 1e30))
    with pytest.raises(Diverged, match=r"phase critic, step \d+, seed 0.*learning rate.*largest reward 1e\+30"):
        train(CONFIG, wild, out=tmp_path / "run", progress=False, options=OFTEN)
    state = tmp_path / "run/state.safetensors"
    header = qdfm.checkpoint.read_header(state, "state")
    assert (header["phase"], header["step"]) == (0, 60)
    like = jax.eval_shape(lambda: jax.vmap(CONFIG.build(data.spec).init)(jax.random.split(jax.random.key(0), 1)))
    kept = qdfm.checkpoint.read_tree(state, "state", like)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept))


@pytest.mark.parametrize("most", [2**27, 2**14])
def test_steps_that_are_drawn_in_blocks_are_those_of_one_after_the_other(monkeypatch, most):
    """Chunks of 250 steps: two whole blocks and a rest, which a loop of single updates must agree with; and blocks of
    a few steps, where the memory allows no more."""
    monkeypatch.setattr(sys.modules["qdfm.train"], "DRAWN_BYTES", most)
    compiled_phase.cache_clear()
    data, config = small_data(), dataclasses.replace(CONFIG, warmup_steps=250, critic_steps=110, improve_steps=30)
    agent = train(config, data, progress=False, options=Options(chunk=250))[0]
    algorithm, normal = config.build(data.spec), jax.device_put(data.normalised())
    key = jax.random.key(0, impl="threefry2x32")
    state = algorithm.init(jax.random.fold_in(key, 0))
    for number, phase in enumerate(algorithm.phases, 1):
        own = jax.random.fold_in(key, number)
        if phase.prepare is not None:
            state = phase.prepare(state, normal, jax.random.fold_in(own, 2**31 - 1))
        cache = phase.cache and phase.cache(state, normal, jax.random.fold_in(own, 2**31 - 2))
        update = jax.jit(phase.update)
        for k in range(phase.steps):
            state, _ = update(state, normal, cache, jax.random.fold_in(own, k))
    for ours, theirs in zip(jax.tree.leaves(agent.policy), jax.tree.leaves(algorithm.policy(state)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


class Poisoned(qdfm.BC):
    """Cloning whose averaged weights, which no loss looks at, are lost after 20 steps."""

    def build(self, spec):
        algorithm = super().build(spec)
        phase = algorithm.phases[0]

        def step(state, drawn):
            new, metrics = phase.step(state, drawn)
            lost = jax.tree.map(lambda x: jax.numpy.where(new.optimiser[0].count >= 20, jax.numpy.nan, x), new.average)
            return dataclasses.replace(new, average=lost), metrics

        return algorithm._replace(phases=(phase._replace(step=step),))


def test_weights_that_no_metric_tells_of_are_looked_at(tmp_path):
    config = Poisoned(batch_size=16, hidden=(8,), clone_steps=40)
    with pytest.raises(Diverged, match="weights became non-finite in phase clone, step 19, seed 0"):
        train(config, small_data(), out=tmp_path / "run", progress=False, options=OFTEN)
    assert qdfm.checkpoint.read_header(tmp_path / "run/state.safetensors", "state")["step"] == 10


@pytest.fixture
def interrupt_at(monkeypatch):
    """Raise KeyboardInterrupt once a phase has done so many steps; undone by calling the result."""

    def arrange(phase: str, step: int):
        record = _Loop._record

        def interrupt(self, name, index, done, *rest):
            record(self, name, index, done, *rest)
            if (name, done) == (phase, step):
                raise KeyboardInterrupt

        monkeypatch.setattr(_Loop, "_record", interrupt)
        return monkeypatch.undo

    return arrange


def assert_same_policy(one: qdfm.Agent, other: qdfm.Agent) -> None:
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_interrupted_run_is_saved_and_says_how_to_go_on(tmp_path, interrupt_at, capsys):
    undo = interrupt_at("critic", 30)
    rarely = Options(chunk=10, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=rarely, task="noted")
    assert "--resume" in capsys.readouterr().err
    header = qdfm.checkpoint.read_header(tmp_path / "run/state.safetensors", "state")
    assert (header["phase"], header["step"]) == (1, 30)
    undo()
    resumed = train(CONFIG, small_data(), out=tmp_path / "run", resume=True, progress=False, options=rarely)[0]
    assert_same_policy(resumed, train(CONFIG, small_data(), progress=False, options=rarely)[0])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in the foreground; jobs in the background are begun with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_was_lost_is_raised_at_the_next_border(tmp_path, monkeypatch, capsys, interruptible):
    """As when it falls into a callback of JAX, which drops what is raised there."""

    class Callback:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    record = _Loop._record

    def lose(self, name, index, done, *rest):
        record(self, name, index, done, *rest)
        if (name, done) == ("critic", 30):
            Callback()

    monkeypatch.setattr(_Loop, "_record", lose)
    with pytest.raises(Interrupted), remembered_interrupts():
        train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=Options(chunk=10))
    assert capsys.readouterr().err.startswith("Interrupted; saved in ")  # and not a word of the callback
    header = qdfm.checkpoint.read_header(tmp_path / "run/state.safetensors", "state")
    assert (header["phase"], header["step"]) == (1, 30)
    assert not interrupted()  # it is forgotten with its command
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_phase_without_steps_is_still_prepared():
    """Without a critic phase and at β = 0 the improved flow stays at the frozen warm-up flow's law."""
    config = dataclasses.replace(
        CONFIG, warmup_steps=400, critic_steps=0, improve_steps=0, beta=0.0, beta_scale="none", support_share=0.0
    )
    data = small_data()
    warm = train(config, data, progress=False)[0]
    kept = train(dataclasses.replace(config, improve_steps=200), data, progress=False)[0]
    obs = np.asarray(data.observation)
    p, q = warm.action_probabilities(obs), kept.action_probabilities(obs)
    uniform = np.abs(p - 0.25).sum(1).mean()
    assert np.abs(p - q).sum(1).mean() < 0.5 * uniform  # at the untrained flow it would be about 1


def test_chunks_do_not_change_what_is_learnt():
    fine = train(CONFIG, small_data(), progress=False, options=OFTEN)[0]
    coarse = train(CONFIG, small_data(), progress=False, options=Options(chunk=25))[0]  # the last is of 10
    for a, b in zip(jax.tree.leaves(coarse.policy), jax.tree.leaves(fine.policy), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_several_tokens_resume_with_their_cached_support(tmp_path, interrupt_at):
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(50, 2)), rng.integers(3, size=(50, 2))
    data = qdfm.Dataset.from_arrays(obs, action, rng.normal(size=50), np.roll(obs, -1, 0), np.ones(50) > 2)
    straight = train(CONFIG, data, progress=False, options=OFTEN)[0]
    undo = interrupt_at("improve", 20)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, data, out=tmp_path / "run", progress=False, options=OFTEN)
    undo()
    assert_same_policy(
        train(CONFIG, data, out=tmp_path / "run", resume=True, progress=False, options=OFTEN)[0], straight
    )


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    train(CONFIG, small_data(), seeds=(0, 1), options=OFTEN)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines if "60/60" in line] == ["warmup", "critic", "improve"]
    once = [line for line in lines if line.endswith("going through all rows once")]
    assert [line.split()[2] for line in once] == ["critic:", "improve:"]
    assert all("steps/s" in line and "loss" in line for line in lines if line not in once)


def test_data_that_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    with pytest.raises(qdfm.QDFMError, match="are free on"):
        train(CONFIG, small_data(), progress=False)


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        ((1, 1), "different integers"),
        ((), "different integers"),
        (3, r"as seeds=\[0, 1, 2\]"),
        ((0, -1), "The seed is -1; give a whole number from 0"),
        ((2**32,), "below 4,294,967,296"),
        ((0.5,), "The seed is 0.5"),
    ],
)
def test_seeds_that_cannot_be_are_refused_before_training(seeds, says):
    with pytest.raises(qdfm.QDFMError, match=says):
        train(CONFIG, small_data(), seeds=seeds, progress=False)


def test_seeds_may_come_in_an_array():
    (one,), (same,) = (train(CONFIG, small_data(), seeds, progress=False) for seeds in ((3,), np.array([3])))
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(same.policy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_no_data_is_refused():
    with pytest.raises(qdfm.QDFMError, match="The data is a str; give a Dataset"):
        train(CONFIG, "multigoal-4", progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (qdfm.BC, r"The algorithm is the class BC; give an instance of it, BC\(\)"),
        ("bc", "The algorithm is a str; give a config"),
        (small_data(), "The algorithm is a Dataset; give a config"),
    ],
)
def test_what_is_no_config_is_refused(config, says):
    with pytest.raises(qdfm.QDFMError, match=says):
        train(config, small_data(), progress=False)


def test_settings_that_are_none_get_the_nearest_name():
    with pytest.raises(qdfm.QDFMError, match="Unknown setting of QDFM 'betta'; did you mean 'beta'"):
        qdfm.QDFM(betta=3)
    with pytest.raises(qdfm.QDFMError, match="Unknown setting of BC 'clone_step'; did you mean 'clone_steps'"):
        dataclasses.replace(qdfm.BC(), clone_step=3)
    assert pickle.loads(pickle.dumps(CONFIG)) == CONFIG


def noisy(episodes: int = 40, length: int = 5) -> qdfm.Dataset:
    """Choices that have nothing to do with what is seen."""
    rng = np.random.default_rng(3)
    n = episodes * length
    obs = rng.normal(size=(n, 3))
    return qdfm.Dataset.from_arrays(obs, rng.integers(4, size=n), np.zeros(n), obs, np.arange(n) % length == length - 1)


def two_objectives() -> qdfm.Dataset:
    data = noisy()
    rewards = np.random.default_rng(4).normal(size=(len(data), 2)).astype(np.float32)
    spec = dataclasses.replace(data.spec, objectives=2)
    return dataclasses.replace(data, reward=rewards, spec=spec)


def test_held_out_episodes_are_not_learned_from_and_their_loss_is_told(tmp_path):
    data = noisy()
    config = qdfm.BC(clone_steps=30, batch_size=2_000, hidden=(16,), ema=0.0)
    agent = config.fit(data, out=tmp_path / "run", holdout=0.25, progress=False)
    first, second = data.split(0.75)
    alone = config.fit(first, progress=False)
    for mine, its in zip(jax.tree.leaves(agent.policy), jax.tree.leaves(alone.policy), strict=True):
        np.testing.assert_array_equal(mine, its)
    told = rows(tmp_path / "run")[-1]["held_out_loss"]
    own = agent.log_prob(second.observation, second.action[:, 0])
    assert told == pytest.approx(-own.mean(), abs=5 * own.std() / np.sqrt(8 * 2_000))
    with pytest.raises(qdfm.QDFMError, match=r"holdout is 0\.9 of 3 episode\(s\), which leaves none on one side"):
        config.fit(data[:15], holdout=0.9)
    with pytest.raises(qdfm.QDFMError, match="qdfm makes rows of its own"):
        qdfm.QDFM(utility="chebyshev").fit(two_objectives(), holdout=0.3)
    with pytest.raises(qdfm.QDFMError, match=r"holdout is 1\.5; give a share"):
        config.fit(data, holdout=1.5)


def test_learning_noise_by_heart_is_said(capsys):
    config, often = qdfm.BC(clone_steps=400, batch_size=64), Options(chunk=40, holdout=0.25)
    train(config, noisy(), options=often)
    said = capsys.readouterr().err
    assert "In phase clone the loss on held-out episodes was least after 40 of 400 steps" in said
    assert "fewer steps (--clone-steps 40)" in said
    train(config, noisy())
    assert "128 passes over 200 rows: with --holdout 0.1" in capsys.readouterr().err
    train(config, noisy(), task="multigoal-4")
    assert "passes" not in capsys.readouterr().err


def test_a_resumed_run_judges_by_what_was_told_before_it_was_interrupted(tmp_path, interrupt_at, capsys):
    config, often = qdfm.BC(clone_steps=400, batch_size=64), Options(chunk=40, holdout=0.25)
    train(config, noisy(), (0, 1), progress=False, options=often)
    said = capsys.readouterr().err
    undo = interrupt_at("clone", 320)
    with pytest.raises(Interrupted):
        train(config, noisy(), (0, 1), out=tmp_path / "run", progress=False, options=often)
    undo()
    capsys.readouterr()
    train(config, noisy(), (0, 1), out=tmp_path / "run", resume=True, progress=False, options=often)
    assert "was least after 40 of 400 steps" in said
    assert capsys.readouterr().err == said


def test_every_phase_can_tell_a_held_out_loss(tmp_path):
    train(CONFIG, small_data(), seeds=(0, 1), out=tmp_path / "run", progress=False, options=Options(holdout=0.3))
    assert all(np.isfinite(row["held_out_loss"]) for row in rows(tmp_path / "run"))
    with pytest.raises(qdfm.QDFMError, match=r"holdout=0\.3 but is resumed with holdout=0\.0"):
        train(CONFIG, small_data(), seeds=(0, 1), out=tmp_path / "run", resume=True, progress=False)

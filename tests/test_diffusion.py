"""The diffusion against closed forms: its schedule, its sampler on a Gaussian law, what a clamp does."""

import jax.numpy as jnp
import numpy as np
from scipy import integrate, stats

from qdfm.diffusion import FIRST, ddim, noised, normals, schedule


def test_the_schedule_integrates_its_rate():
    """d log α / dt = −β(t) / 2 with β from .1 to 20."""
    t = np.array([FIRST, 0.1, 0.5, 1.0])
    alpha, sigma = schedule(jnp.asarray(t))
    spent = [integrate.quad(lambda s: 0.1 + 19.9 * s, 0, end)[0] for end in t]
    np.testing.assert_allclose(alpha, np.exp(-np.asarray(spent) / 2), rtol=1e-5)
    np.testing.assert_allclose(sigma, np.sqrt(1 - np.exp(-np.asarray(spent))), rtol=1e-4)


def test_noise_is_added_at_each_row_s_time():
    x0, noise, t = np.ones((2, 3, 1)), np.full((2, 3, 1), 2.0), np.array([0.2, 0.9])
    alpha = np.exp(-19.9 * t**2 / 4 - 0.1 * t / 2)
    expected = alpha + 2 * np.sqrt(1 - alpha**2)
    np.testing.assert_allclose(
        noised(jnp.asarray(x0), jnp.asarray(t), jnp.asarray(noise))[:, 1, 0], expected, rtol=1e-5
    )


def test_normals_are_the_quantiles_of_uniforms():
    u = np.array([0.0, 0.025, 0.5, 0.9, 1.0], np.float32)
    z = np.asarray(normals(jnp.asarray(u)))
    np.testing.assert_allclose(z[1:4], stats.norm.ppf(u[1:4]), atol=1e-4)
    np.testing.assert_allclose(z[[0, -1]], [-4.75, 4.75], atol=0.1)  # cut off, not infinite


def test_ddim_by_the_exact_denoiser_gives_the_gaussian_law(x64):
    """Everything is affine then, so that three starts tell the whole law."""
    mean, covariance = np.array([1.0, -2.0]), np.array([[1.0, 0.6], [0.6, 0.5]])

    def denoise(x, t):
        alpha, sigma = schedule(t)
        gain = alpha * covariance @ jnp.linalg.inv(alpha**2 * covariance + sigma**2 * jnp.eye(2))
        return mean + (x - alpha * mean) @ gain.T

    starts = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    out = np.asarray(ddim(denoise, starts, 500))
    linear = (out[1:] - out[0]).T
    np.testing.assert_allclose(out[0], mean, atol=0.03)
    np.testing.assert_allclose(linear @ linear.T, covariance, atol=0.02)


def test_ten_steps_of_ddim_multiply_their_factors(x64):
    """Of a centred normal of variance v, a step takes x to (α α' v + σ σ') / (α² v + σ²) times it."""
    v = 0.3
    t = np.linspace(1, FIRST, 11)
    alpha = np.exp(-19.9 * t**2 / 4 - 0.1 * t / 2)
    sigma = np.sqrt(1 - alpha**2)
    factors = (alpha[:-1] * alpha[1:] * v + sigma[:-1] * sigma[1:]) / (alpha[:-1] ** 2 * v + sigma[:-1] ** 2)

    def denoise(x, t):
        a, s = schedule(t)
        return a * v / (a**2 * v + s**2) * x

    np.testing.assert_allclose(ddim(denoise, jnp.ones((1, 1)), 10), [[factors.prod()]], rtol=1e-6)


def test_every_step_sees_what_is_clamped():
    """A denoiser that repeats the first entry ends at the clamped one, whatever the noise."""
    x = jnp.array([[9.0, -3.0, 3.0]])
    out = ddim(lambda x, t: jnp.broadcast_to(x[:, :1], x.shape), x, 10, lambda x: x.at[:, 0].set(0.5))
    assert out[0, 0] == 0.5
    np.testing.assert_allclose(out[0, 1:], 0.5, atol=0.05)

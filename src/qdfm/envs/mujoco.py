"""Gymnasium's environments as they are, MuJoCo's without their warnings."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from qdfm.errors import QDFMError

if TYPE_CHECKING:
    import gymnasium


MO_HOPPER = "mo-hopper-d4morl"  # the environment in envs/mo_hopper.py


def make_plain(name: str, **options: Any) -> "gymnasium.Env":
    """The environment of a registered Gymnasium id, MuJoCo's or not, as it is; without what it needs, a sentence.

    The options are those of `gymnasium.make`.
    """
    import gymnasium

    try:
        with quiet() if "mujoco" in str(gymnasium.spec(name).entry_point) else nullcontext():
            # The checker takes a vector of rewards for a mistake; MO-Gymnasium's own make leaves it out too.
            return gymnasium.make(name, disable_env_checker=True, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        # Gymnasium's own error about a missing package mostly comes from the one that names the module.
        cause = error if isinstance(error, ImportError) else error.__cause__
        module = getattr(cause, "name", None)
        if module == "mujoco":
            raise QDFMError(f'{name} needs MuJoCo; install it with pip install "qdfm[mujoco]".') from None
        needs = f"needs the module {module}, which is not installed" if module else f"cannot be made ({error})"
        raise QDFMError(f"{name} {needs}; install it first.") from None


@contextmanager
def quiet() -> Iterator[None]:
    """MuJoCo's warnings about Gymnasium's model files, which no user can mend, neither shown nor written to a file."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)

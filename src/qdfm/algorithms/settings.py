"""The values of a config's fields: what a field's type asks for, or one sentence that says why a value is none."""

import math
from types import NoneType
from typing import Any, get_args, get_origin

import numpy as np

from qdfm.errors import QDFMError

WANTED = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a word"}


def settled(owner: str, field: str, kind: Any, value: Any) -> Any:
    """The value as the field keeps it: lists and single numbers become tuples where it has several, whole numbers of
    any type integers."""
    kinds = tuple(k for k in get_args(kind) if k is not NoneType) if NoneType in get_args(kind) else (kind,)
    if value is None and kinds != (kind,):
        return None
    (only,) = kinds
    if get_origin(only) is not tuple:
        return _one(owner, field, only, value)
    entry = get_args(only)[0]
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    return _each(owner, field, entry, plain if isinstance(plain, list | tuple) else (plain,))


def _each(owner: str, field: str, kind: type, values: Any) -> tuple[Any, ...]:
    return tuple(
        _each(owner, field, kind, v) if isinstance(v, list | tuple) else _one(owner, field, kind, v) for v in values
    )


def _one(owner: str, field: str, kind: type, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if kind is int and number and math.isfinite(plain) and plain == int(plain):
        return int(plain)
    if (kind is float and number and math.isfinite(plain)) or (kind in (bool, str) and isinstance(plain, kind)):
        return plain
    raise QDFMError(f"{owner}: {field} is {value!r}; give {WANTED[kind]}.")

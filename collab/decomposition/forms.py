"""The forms by name."""

from __future__ import annotations

from ..errors import ConfigurationError
from .concat import Concat, RotaryConcat
from .cp import CP, RotaryCP
from .factors import Factors
from .options import FORMS
from .rotary_factors import RotaryFactors
from .tucker import RotaryTucker, Tucker

_PLAIN: dict[str, type[Factors]] = {form.form: form for form in (Concat, CP, Tucker)}
_ROTARY: dict[str, type[RotaryFactors]] = {form.form: form for form in (RotaryConcat, RotaryCP, RotaryTucker)}


def form_named(name: str) -> type[Factors]:
    """The form of a name in `FORMS`: a class of factors.

    Raises:
        ConfigurationError: if there is none.
    """
    return _PLAIN[_known(name)]


def rotary_form_named(name: str) -> type[RotaryFactors]:
    """The same for layers with rotary positions."""
    return _ROTARY[_known(name)]


def _known(name: str) -> str:
    if name not in FORMS:
        raise ConfigurationError(f"Unknown form {name!r}; choose one of {', '.join(FORMS)}.")
    return name

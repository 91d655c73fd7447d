"""The forms by name."""

from __future__ import annotations

from ..errors import ConfigurationError
from .concat import CONCAT
from .cp import CP
from .form import Form
from .options import FORMS
from .tucker import TUCKER

_BY_NAME = {form.name: form for form in (CONCAT, CP, TUCKER)}


def form_named(name: str) -> Form:
    """The form of a name in `FORMS`.

    Raises:
        ConfigurationError: if there is none.
    """
    if name not in _BY_NAME:
        raise ConfigurationError(f"Unknown form {name!r}; choose one of {', '.join(FORMS)}.")
    return _BY_NAME[name]

"""Whatever JSON a config or a report holds, reading it ends in a value or in a CollabError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import BERT, tiny_model
from transformers import BertConfig

from collab.errors import CollabError
from collab.io.history import REPORT_FILE, read_history
from collab.io.load import config_of, model_class_of
from collab.io.read import Source, read_config
from collab.io.write import expanded_card

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_a_message(error: CollabError) -> None:
    assert 0 < len(str(error).splitlines()) < 10


def ends_well(folder: Path, content: Any) -> None:
    """Reads the config and the report that a folder holds."""
    (folder / "config.json").write_text(json.dumps(content))
    try:
        assert model_class_of(read_config(folder), "model") is not None
        assert config_of(Source("model", folder)).model_type
    except CollabError as error:
        is_a_message(error)


@often
@given(content=ANY_JSON)
def test_any_json_for_a_config(content: Any, tmp_path: Path) -> None:
    ends_well(tmp_path, content)


@often
@given(name=st.sampled_from(sorted(BertConfig().to_dict())), value=ANY_JSON)
def test_any_value_in_a_config(name: str, value: Any, tmp_path: Path) -> None:
    ends_well(tmp_path, {"architectures": ["BertModel"], **tiny_model(BERT).config.to_dict(), name: value})


@often
@given(value=ANY_JSON)
def test_any_json_for_the_layers_of_a_converted_model(value: Any, bases: Path, tmp_path: Path) -> None:
    ends_well(tmp_path, json.loads((bases / "converted" / "config.json").read_text()) | {"collab_layers": value})


def card_of(folder: Path) -> None:
    """Reads a report and writes the card that says most of it."""
    try:
        history = read_history(folder)
    except CollabError as error:
        is_a_message(error)
    else:
        given = {"native_class": "BertModel", "auto_class": "AutoModel", "library": "transformers"}
        assert expanded_card(history, {}, "model", **given).startswith("---")


@often
@given(content=ANY_JSON)
def test_any_json_for_a_report(content: Any, tmp_path: Path) -> None:
    (tmp_path / REPORT_FILE).write_text(json.dumps(content))
    card_of(tmp_path)


@often
@given(data=st.data())
def test_any_value_in_a_report(data: st.DataObject, bases: Path, tmp_path: Path) -> None:
    report = json.loads((bases / "converted" / REPORT_FILE).read_text())
    name = data.draw(st.sampled_from([*sorted(report), "history", "original_history"]))
    (tmp_path / REPORT_FILE).write_text(json.dumps(report | {name: data.draw(ANY_JSON)}))
    card_of(tmp_path)

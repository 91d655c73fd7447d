"""Inputs that no file of rows gives: videos, tables, and markup."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import BY_TYPE, batches, save_tokenizer, tiny_model
from transformers import TapasTokenizer

import collab
from collab.errors import DataError


@pytest.mark.parametrize("model_type", ["videomae", pytest.param("vivit", marks=pytest.mark.exhaustive)])
class TestVideos:
    def test_calibrate_on_batches(self, model_type: str) -> None:
        native = tiny_model(BY_TYPE[model_type])
        videos = batches(native)
        assert videos[0]["pixel_values"].shape == (2, 4, 3, 16, 16)
        calibration = collab.calibrate(native, videos)
        report = collab.convert(
            native, collab.ConversionConfig(rank=8, refine="none", compare=False), calibration=calibration
        ).report
        assert report.calibration is not None

    @pytest.mark.parametrize("data", ["synthetic", "folder"])
    def test_are_not_read_from_files(self, model_type: str, data: str, tmp_path: Path) -> None:
        native = tiny_model(BY_TYPE[model_type])
        source = data if data == "synthetic" else collab.DataSource(str(tmp_path))
        with pytest.raises(DataError, match=r"Videos are not read from files\. Decode them, and pass batches"):
            collab.calibrate(native, source)

    def test_convert_from_folder_to_folder_by_the_weights_alone(self, model_type: str, tmp_path: Path) -> None:
        tiny_model(BY_TYPE[model_type]).save_pretrained(tmp_path / "native")
        (tmp_path / "native" / "preprocessor_config.json").write_text(
            '{"image_processor_type": "VideoMAEImageProcessor"}'
        )
        collab.checkpoints.convert(
            str(tmp_path / "native"), tmp_path / "out", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        assert (tmp_path / "out" / "preprocessor_config.json").is_file()
        with pytest.raises(DataError, match="Videos are not read from files"):
            collab.checkpoints.convert(
                str(tmp_path / "native"),
                tmp_path / "other",
                collab.ConversionConfig(rank=8, refine="none", compare=False),
                calibration=collab.CalibrationRequest(collab.DataSource(str(tmp_path))),
            )


def test_a_tokenizer_of_tables_is_copied_but_not_used_on_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    native = tmp_path / "native"
    tiny_model(BY_TYPE["tapas"]).save_pretrained(native)
    save_tokenizer(tmp_path / "words")
    with (tmp_path / "words" / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("\n[EMPTY]")
    TapasTokenizer(str(tmp_path / "words" / "vocab.txt")).save_pretrained(native)
    collab.checkpoints.convert(
        str(native), tmp_path / "out", collab.ConversionConfig(rank=8, refine="none", compare=False)
    )
    assert "The tokenizer needs table, so it was not used on text." in caplog.text
    assert (tmp_path / "out" / "vocab.txt").read_text() == (native / "vocab.txt").read_text()
    (tmp_path / "rows.txt").write_text("one row\nanother row\n")
    with pytest.raises(DataError, match="needs the model's tokenizer"):
        collab.checkpoints.convert(
            str(native),
            tmp_path / "other",
            collab.ConversionConfig(rank=8, refine="none", compare=False),
            calibration=collab.CalibrationRequest(collab.DataSource(str(tmp_path / "rows.txt"))),
        )


def test_a_spectrogram_has_one_size() -> None:
    native = tiny_model(BY_TYPE["audio-spectrogram-transformer"])
    with torch.no_grad():
        assert native(**batches(native, 1)[0]).last_hidden_state.shape == (2, 6, 32)

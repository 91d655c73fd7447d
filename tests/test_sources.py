"""Several sources of rows: mixed by tokens, judged one by one, and refused where they cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run
from tiny import BERT, BY_TYPE, LETTERS, save_with_tokenizer, tiny_model
from transformers import BertForMaskedLM, BertForSequenceClassification, MarianMTModel

import collab
from collab.data import targets
from collab.data.mixture import Rows, rows_of
from collab.errors import ConfigurationError, DataError
from collab.steps.agreement import sources_text, weak_sources

SHORT = [LETTERS[i % 26] for i in range(400)]
LONG = [" ".join(LETTERS[(i + j) % 26] for j in range(8)) for i in range(400)]


@pytest.fixture
def checkpoint(tokenizer: object) -> collab.Checkpoint:
    return collab.Checkpoint(tiny_model(BERT), tokenizer)


def tokens(rows: Rows, name: str) -> int:
    return next(own["tokens"] for own in rows.summary["sources"] if own["source"] == name)


def mixed(checkpoint: collab.Checkpoint, mixture: collab.Mixture, samples: int = 200, **more: bool) -> object:
    return rows_of(checkpoint.model, checkpoint.processor, mixture, samples=samples, held_out=lambda count: 8, **more)


class TestMixing:
    def test_even_by_tokens(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, collab.Mixture({"short": SHORT, "long": LONG}))
        assert tokens(rows, "short") == pytest.approx(tokens(rows, "long"), rel=0.05)
        assert 190 <= rows.summary["rows"] <= 200
        assert {name: len(held) > 0 for name, held in rows.held_out.items()} == {"short": True, "long": True}

    def test_weights(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, collab.Mixture({"short": SHORT, "long": LONG}, {"long": 3}))
        assert tokens(rows, "long") == pytest.approx(3 * tokens(rows, "short"), rel=0.1)

    @pytest.mark.parametrize("weight", [2, 4])
    def test_weights_hold_where_all_rows_are_used(self, checkpoint: collab.Checkpoint, weight: float) -> None:
        mixture = collab.Mixture({"short": SHORT[:26], "long": LONG[:26]}, {"long": weight})
        rows = mixed(checkpoint, mixture, 2000, repeats=True)
        lengths = [len(row["input_ids"]) for row in rows.train]
        of_long = sum(length for length in lengths if length > 3)
        assert of_long == pytest.approx(weight * (sum(lengths) - of_long), rel=0.25)

    def test_weights_that_cannot_be_kept_are_said(
        self, checkpoint: collab.Checkpoint, caplog: pytest.LogCaptureFixture
    ) -> None:
        mixed(checkpoint, collab.Mixture({"short": SHORT, "long": LONG}, {"long": 3}))
        assert "could not be kept" not in caplog.text
        mixed(checkpoint, collab.Mixture({"short": SHORT, "long": LONG}, {"long": 1000}), 5000)
        assert "long gives 77 %" in caplog.text

    def test_no_row_is_repeated_where_none_are_to_be(self, checkpoint: collab.Checkpoint) -> None:
        """Though the others are held out in another source."""
        mixture = collab.Mixture({"same": [*SHORT[:1] * 100, *SHORT[1:4]], "again": SHORT[:2]})
        for seed in range(6):
            rows = mixed(checkpoint, mixture, seed=seed)
            others = [tuple(row["input_ids"]) for row in rows.train]
            same = max(set(others), key=others.count)
            assert others.count(same) in (1, 2, 100, 101)

    @pytest.mark.parametrize("repeats", [1, 4])
    def test_a_masked_model_learns_no_row_that_is_held_out(self, checkpoint: collab.Checkpoint, repeats: int) -> None:
        model = tiny_model(BERT, BertForMaskedLM)
        rows = rows_of(model, checkpoint.processor, LONG[:26] * repeats, samples=200, held_out=lambda count: 4)
        train, held = ({tuple(row["input_ids"]) for row in part} for part in (rows.train, rows.all_held_out))
        assert held
        assert not train & held

    def test_rows_without_text_are_omitted(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, [*SHORT[:10], "", " ", ("",)])
        assert rows.summary["rows"] == 10
        with pytest.raises(DataError, match="At least 2 rows"):
            mixed(checkpoint, collab.Mixture({"blank": ["", ""], "long": LONG}))

    def test_many_rows_are_sampled_as_those_of_a_file_are(self, checkpoint: collab.Checkpoint, tmp_path: Path) -> None:
        texts = [" ".join(LETTERS[place] for place in (row // 26, row % 26)) for row in range(400)]
        file = tmp_path / "texts.txt"
        file.write_text("\n".join(texts))

        def used(data: Any) -> set[tuple[int, ...]]:
            rows = mixed(checkpoint, data, 40)
            return {tuple(row["input_ids"]) for row in (*rows.train, *rows.all_held_out)}

        assert used(texts) == used(collab.DataSource(str(file)))
        assert used(iter(texts)) == used(texts[:40])  # which may have no end
        assert len(used(texts) & used(texts[:40])) < 20

    def test_what_one_lacks_the_others_give(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, collab.Mixture({"few": SHORT[:10], "many": LONG}))
        assert rows.summary["rows"] >= 190

    def test_few_rows_are_repeated_for_training_alone(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, collab.Mixture({"few": SHORT[:16], "many": LONG}), repeats=True)
        texts = [tuple(row["input_ids"]) for row in rows.train]
        held = {tuple(row["input_ids"]) for row in rows.held_out["few"]}
        few = [text for text in texts if len(text) == 3]
        assert len(few) > len(set(few)) == 14
        assert not held & set(few)

    @pytest.mark.parametrize("sources", [1, 2])
    def test_rows_that_are_held_out_are_not_learned(self, checkpoint: collab.Checkpoint, sources: int) -> None:
        """Though there are many like them, in the same source and in another."""
        same = [*SHORT[:20]] * 8
        data = collab.Mixture({"same": same, "again": [*same, *LONG]}) if sources > 1 else same
        rows = rows_of(checkpoint.model, checkpoint.processor, data, samples=400, held_out=lambda count: 8)
        train, held = ({tuple(row["input_ids"]) for row in part} for part in (rows.train, rows.all_held_out))
        assert len(held) >= 2
        assert len(train) >= 16
        assert not train & held

    def test_only_rows_that_are_used_are_answered(
        self, checkpoint: collab.Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tiny_model(BY_TYPE["marian"], MarianMTModel)
        written = []
        own = targets.own_targets

        def counted(model: Any, batch: Any, beams: int = 1) -> Any:
            written.extend(batch["input_ids"])
            return own(model, batch, beams)

        monkeypatch.setattr(targets, "own_targets", counted)
        mixture = collab.Mixture({"short": SHORT[:16], "long": LONG[:16]})
        rows = rows_of(model, checkpoint.processor, mixture, samples=16, held_out=lambda count: 4, repeats=True)
        assert all("decoder_input_ids" in row for row in [*rows.train, *rows.all_held_out])
        assert len(written) <= 16

    def test_random_words_beside_text(self, checkpoint: collab.Checkpoint) -> None:
        calibration = collab.calibrate(checkpoint, collab.Mixture({"synthetic": "synthetic", "long": LONG[:32]}))
        assert set(calibration.sources) == {"synthetic", "long"}
        assert len(calibration.sources) == len(calibration.held_out)

    def test_one_source_is_as_before(self, checkpoint: collab.Checkpoint) -> None:
        alone = collab.calibrate(checkpoint, LONG[:64])
        mixture = collab.calibrate(checkpoint, collab.Mixture({"rows": LONG[:64]}))
        name = next(iter(alone.moments))
        assert alone.moments[name].tokens == mixture.moments[name].tokens
        assert mixture.sources == ()


class TestReports:
    def test_healing_by_source(self, checkpoint: collab.Checkpoint) -> None:
        mixture = collab.Mixture({"short": SHORT, "long": LONG})
        calibration = collab.calibrate(checkpoint, mixture)
        small = collab.compress(checkpoint, collab.CompressionConfig(flops=0.5), calibration)
        assert set(small.report.agreement_by_source) == {"short", "long"}
        run = collab.RunOptions(steps=8, batch_size=8, evaluations=1, device="cpu", learning_rate=1e-3)
        healed = collab.heal(small, checkpoint, mixture, options=collab.HealOptions("layers", run=run)).report
        assert set(healed.before_by_source) == set(healed.after_by_source) == {"short", "long"}
        rows = sum(agreed["rows"] for agreed in healed.after_by_source.values())
        assert rows == healed.after["rows"] == healed.data["held_out"]
        assert "`short`" in healed.summary()

    def test_a_weak_source_is_named(self) -> None:
        by_source = {
            "news": {"rows": 64, "embedding_cosine": 0.97},
            "chat": {"rows": 64, "embedding_cosine": 0.90},
            "few": {"rows": 3, "embedding_cosine": 0.5},
            "wiki": {"rows": 64, "embedding_cosine": 0.96},
        }
        assert weak_sources(by_source) == ["chat"]
        assert "clearly lower on `chat`" in sources_text(by_source)
        assert weak_sources({name: by_source[name] for name in ("news", "wiki")}) == []
        assert weak_sources({"a": {"rows": 64, "kl": 0.01}, "b": {"rows": 64, "kl": 0.2}}) == ["b"]

    def test_command(self, tmp_path: Path) -> None:
        folder = save_with_tokenizer(tiny_model(BERT, BertForSequenceClassification), tmp_path / "model")
        (tmp_path / "text.txt").write_text("\n".join(LONG))
        (tmp_path / "table.csv").write_text("text,label\n" + "\n".join(f"{text},1" for text in SHORT))
        done = run(
            *("compress", str(folder), str(tmp_path / "out"), "--flops", "0.5", "--no-speed", "--heal-steps", "4"),
            *("--calibration", str(tmp_path / "text.txt"), "--calibration", f"{tmp_path / 'table.csv'}=2"),
            *("--text-column", "text"),
        )
        assert done.exit_code == 0, done.output
        assert "table.csv" in done.stdout
        report = json.loads((tmp_path / "out" / "collab_report.json").read_text())
        assert set(report["agreement_by_source"]) == {"text.txt", "table.csv"}
        assert [own.get("weight") for own in report["calibration"]["sources"]] == [None, 2]
        assert "By source of the rows" in (tmp_path / "out" / "README.md").read_text()


class TestBadInput:
    @pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "2", True])
    def test_weight(self, weight: object) -> None:
        with pytest.raises(ConfigurationError, match="number above 0"):
            collab.Mixture({"a": SHORT}, {"a": weight})  # type: ignore[dict-item]

    def test_weight_of_nothing(self) -> None:
        with pytest.raises(ConfigurationError, match="no such source"):
            collab.Mixture({"a": SHORT}, {"b": 2})

    def test_none(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one"):
            collab.Mixture({})

    def test_twice(self, tmp_path: Path) -> None:
        (tmp_path / "text.txt").write_text("a\nb\n")
        (tmp_path / "link.txt").symlink_to(tmp_path / "text.txt")
        with pytest.raises(ConfigurationError, match="twice"):
            collab.Mixture({name: collab.DataSource(str(tmp_path / name)) for name in ("text.txt", "link.txt")})

    def test_too_few_rows(self, checkpoint: collab.Checkpoint) -> None:
        with pytest.raises(DataError, match="At least 2 rows"):
            mixed(checkpoint, collab.Mixture({"one": SHORT[:1], "many": LONG}))

    def test_texts_and_pairs(self, checkpoint: collab.Checkpoint) -> None:
        with pytest.raises(DataError, match="Some rows are single texts and others pairs"):
            collab.calibrate(checkpoint, [("a b", "c d"), "e f g", ("h", "i")])

    def test_three_rows(self, checkpoint: collab.Checkpoint) -> None:
        rows = mixed(checkpoint, collab.Mixture({"three": SHORT[:3], "many": LONG}))
        assert len(rows.held_out["three"]) == 1

    def test_another_script(self, checkpoint: collab.Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
        strange = ["日本語 の 文 です"] * 20
        mixed(checkpoint, collab.Mixture({"english": LONG, "japanese": strange}))
        assert "unknown to the tokenizer" in caplog.text

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["a.txt", "a.txt"], "twice"),
            (["a.txt=x", "b.txt"], "must be a number, not 'x'"),
            (["a.txt", "a.txt=2"], "twice"),
            (["a.txt", "empty.txt"], "no rows"),
            (["a.txt", "b.txt=0"], "number above 0"),
            (["a.txt", "b.txt=-1"], "number above 0"),
            (["a.txt", "none"], "cannot be combined"),
            (["a.txt", "missing.txt"], "missing.txt"),
            (["a.txt", "table.csv"], "several columns"),
        ],
    )
    def test_command(self, tmp_path: Path, options: list[str], message: str) -> None:
        folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
        for name, rows in (("a.txt", LONG[:32]), ("b.txt", SHORT[:32]), ("empty.txt", [])):
            (tmp_path / name).write_text("\n".join(rows))
        (tmp_path / "table.csv").write_text("one,two\na,b\n")
        sources = [f"--calibration={tmp_path / name if name != 'none' else name}" for name in options]
        done = run("convert", str(folder), str(tmp_path / "out"), "--rank", "8", *sources)
        assert done.exit_code in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()

"""Scoring heads and removing them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import run
from reload import outputs_without_collab
from tiny import (
    BERT,
    BY_TYPE,
    FEW_KINDS,
    FORMS,
    OWN_VALUES,
    PAIRS,
    SENTENCES,
    SEQ2SEQ,
    SPECIAL,
    Row,
    by_layers,
    converted,
    every_kind,
    few_kinds,
    few_kinds_with_own_values,
    in_turn,
    largest_difference,
    often,
    outputs,
    save_tokenizer,
    save_with_tokenizer,
    self_attentions,
    taking_turns,
    tiny_model,
)
from transformers import (
    AutoModel,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertTokenizerFast,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import collab
from collab.heads.ablation import ablation
from collab.heads.gates import closed
from collab.heads.gradient import gradient_importance
from collab.heads.objective import OwnOutputs
from collab.heads.options import SCORES
from collab.heads.redundancy import product_likeness, sharing
from collab.heads.rows import HeadRows
from collab.heads.statistics import attention_statistics
from collab.modeling.collab_attention import CollaborativeAttention
from collab.models.inputs import probe_inputs
from collab.models.layers import attention_layers, parameters

WORDS = [f"word{number}" for number in range(55)]
CONVERSIONS: dict[str, dict[str, Any] | None] = {
    "original": None,
    "concat": {"rank": 13, "form": "concat"},
    "cp": {"rank": 16, "form": "cp"},
    "cp-folded": {"rank": 10, "form": "cp", "content": "folded"},
    "tucker": {"rank": 8, "form": "tucker"},
}
every_conversion = pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)


def changed(model: PreTrainedModel, conversion: dict[str, Any] | None) -> PreTrainedModel:
    if conversion is not None and any(layer.rotary for layer in attention_layers(model)):
        conversion = {name: value for name, value in conversion.items() if name != "content"}  # which they do not have
    return model if conversion is None else converted(model, **conversion)


def some_gone(model: PreTrainedModel) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Two heads of the first layer and all of the second: those that go, and those that stay."""
    first, second = attention_layers(model)[:2]
    gone = {first.name: [0, 2], second.name: list(second.heads)}
    return gone, {first.name: [1, 3], second.name: []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny classifier with a tokenizer, and labelled text."""
    torch.manual_seed(0)
    model = tiny_model(BERT, BertForSequenceClassification, num_labels=2, id2label={0: "no", 1: "yes"})
    save_with_tokenizer(model, tmp_path / "model", (*SPECIAL, *WORDS))
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS, size=generator.integers(3, 9))) for _ in range(40)]
    rows = [f"{line}\t{number % 2}" for number, line in enumerate(lines)]
    (tmp_path / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def tokenizer(tmp_path: Path) -> BertTokenizerFast:
    save_tokenizer(tmp_path)
    return BertTokenizerFast.from_pretrained(tmp_path)


class TestRemoval:
    @taking_turns(by_layers(OWN_VALUES), "conversion", CONVERSIONS, FEW_KINDS)
    def test_is_a_closed_gate(self, row: Row, conversion: dict[str, Any] | None) -> None:
        model = changed(tiny_model(row), conversion)
        gone, keep = some_gone(model)
        inputs = probe_inputs(model)
        with torch.no_grad(), closed(attention_layers(model), gone):
            expected = model(**inputs)
        whole, pruned = outputs(model), collab.prune(model, keep).model
        assert largest_difference(outputs(pruned), expected) < 1e-5
        assert largest_difference(outputs(model), whole) == 0  # the model itself is as it was
        assert largest_difference(expected, whole) > 1e-3
        assert [layer.heads for layer in attention_layers(pruned)[:2]] == [(1, 3), ()]
        assert parameters(pruned)["attention"] < parameters(model)["attention"]

    @pytest.mark.slow
    @in_turn(OWN_VALUES)
    def test_reloads_in_three_ways(self, rows: list[Row], tmp_path: Path) -> None:
        jobs, expected = [], []
        for row in rows:
            pruned = collab.prune(tiny_model(row), some_gone(tiny_model(row))[1]).model
            folder = tmp_path / row.model_type
            pruned.save_pretrained(folder)
            expected.append(outputs(pruned))
            assert largest_difference(outputs(AutoModel.from_pretrained(folder)), expected[-1]) < 1e-5, row.model_type
            jobs.append({"folder": folder, "auto_class": "AutoModel", "inputs": probe_inputs(pruned)})
            # Where neither collab nor its code may be used: a message, not a native model with random queries.
            extra = CONFIG_MAPPING._extra_content.pop(pruned.config.model_type)
            try:
                with pytest.raises(ValueError, match="trust_remote_code=True"):
                    AutoModel.from_pretrained(folder, trust_remote_code=False)
            finally:
                CONFIG_MAPPING._extra_content[pruned.config.model_type] = extra
        for job, elsewhere, wanted in zip(jobs, outputs_without_collab(jobs, tmp_path), expected, strict=True):
            for name, value in wanted.items():
                message = f"{job['folder'].name}: {name}"
                torch.testing.assert_close(elsewhere[name], value, atol=1e-5, rtol=0, msg=message)

    @few_kinds_with_own_values
    def test_attentions_have_the_heads_that_are_left(self, row: Row) -> None:
        model = tiny_model(row)
        pruned = collab.prune(model, some_gone(model)[1]).model
        assert [weights.shape[1] for weights in self_attentions(pruned)[:2]] == [2, 0]

    def test_a_removed_head_predicts_no_contacts(self) -> None:
        """ESM's regression on the weights of all heads goes on without those that were removed."""
        model = tiny_model(BY_TYPE["esm"])
        model.set_attn_implementation("eager")  # the native model shows its attention weights with no other
        *_, last = attention_layers(model)
        pruned = collab.prune(model, {last.name: [1, 3]}).model
        weight = model.contact_head.regression.weight.data.view(-1, len(last.heads))  # (layers, H)
        weight[-1, [0, 2]] = 0.0
        inputs = probe_inputs(model)
        contacts = [each.predict_contacts(inputs["input_ids"], inputs["attention_mask"]) for each in (model, pruned)]
        torch.testing.assert_close(*contacts)
        without = collab.prune(model, some_gone(model)[1]).model
        assert without.predict_contacts(inputs["input_ids"], inputs["attention_mask"]).isfinite().all()

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @every_conversion
    def test_trains(self, implementation: str, conversion: dict[str, Any] | None) -> None:
        model = changed(tiny_model(BERT, BertForSequenceClassification), conversion)
        pruned = collab.prune(model, some_gone(model)[1]).model
        pruned.set_attn_implementation(implementation)
        pruned(**probe_inputs(pruned), labels=torch.tensor([0, 1])).loss.backward()
        missing = [name for name, parameter in pruned.named_parameters() if parameter.grad is None]
        assert missing == []

    @taking_turns(
        by_layers(OWN_VALUES),
        "conversion",
        {"original": None, "concat": {"rank": 12, "form": "concat", "content": "folded"}},
        FEW_KINDS,
    )
    def test_expands(self, row: Row, conversion: dict[str, Any] | None) -> None:
        """To the native class, where heads that are gone are zeros."""
        model = changed(tiny_model(row), conversion)
        pruned = collab.prune(model, some_gone(model)[1]).model
        native = collab.expand(pruned).model
        assert type(native) is row.family.base.native_class()
        assert largest_difference(outputs(native), outputs(pruned)) < 1e-5

    def test_in_steps_is_the_same(self) -> None:
        model = tiny_model(BERT)
        first = attention_layers(model)[0].name
        for conversion in CONVERSIONS.values():
            start = changed(model, conversion)
            twice = collab.prune(collab.prune(start, {first: [0, 1, 3]}).model, {first: [1, 3]}).model
            assert largest_difference(outputs(twice), outputs(collab.prune(start, {first: [1, 3]}).model)) < 1e-5

    def test_a_decoder_generates(self) -> None:
        """With a first layer that has no heads, by which a cache counts its tokens."""
        model = tiny_model(BERT, BertLMHeadModel, is_decoder=True)
        first = attention_layers(model)[0].name
        pruned = collab.prune(model, {first: []}).model
        ids = torch.tensor([[5, 6, 7, 8, 9]])
        with torch.no_grad():
            whole = pruned(input_ids=ids).logits[:, -1]
            cache = pruned(input_ids=ids[:, :4], use_cache=True).past_key_values
            last = pruned(input_ids=ids[:, 4:], past_key_values=cache).logits[:, -1]
        assert float((whole - last).abs().max()) < 1e-4

    def test_fresh_models_initialize(self) -> None:
        pruned = collab.prune(tiny_model(BERT), some_gone(tiny_model(BERT))[1]).model
        fresh = type(pruned)(pruned.config)
        assert all(weight.isfinite().all() for weight in fresh.state_dict().values())

    @pytest.mark.parametrize(
        ("keep", "message"),
        [
            ({"encoder.layer.0.attention.self": [4]}, "no head 4"),
            ({"encoder.layer.7.attention.self": [0]}, "no attention layer encoder.layer.7"),
            ({"encoder.layer.0.attention.self": [1, 0, 1]}, "names head 1 of encoder.layer.0.attention.self twice"),
            ({f"encoder.layer.{number}.attention.self": [] for number in (0, 1)}, "without a single head"),
        ],
    )
    def test_what_is_not_there(self, keep: dict[str, list[int]], message: str) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match=message):
            collab.prune(tiny_model(BERT), keep)


class TestScores:
    def test_gradient_is_the_derivative(self) -> None:
        """Against a difference of losses with the gate a little closed."""
        model = tiny_model(BERT, BertForSequenceClassification)
        batch = {name: value[:1] for name, value in probe_inputs(model).items()}
        layers = attention_layers(model)
        scores = gradient_importance(OwnOutputs(model, [batch], seed=3), layers)
        for layer in layers:
            output = layer.output
            for head in (0, 3):
                columns = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
                losses = []
                for step in (1e-2, -1e-2):
                    weight = output.weight.detach().clone()
                    with torch.no_grad():
                        output.weight[:, columns] *= 1 + step
                        losses.append(float(OwnOutputs(model, [batch], seed=3).losses()[0]()))
                        output.weight.copy_(weight)
                expected = abs(losses[0] - losses[1]) / 2e-2
                assert float(scores[layer.name][head]) == pytest.approx(expected, rel=2e-2, abs=1e-4)

    def test_gradient_of_choices_is_summed_over_them(self) -> None:
        """With choices that are all alike a head changes no answer: what it does to one it does to the others."""
        model = tiny_model(BERT, BertForMultipleChoice)
        batch = {name: value.repeat(1, 3, 1) for name, value in probe_inputs(model).items()}
        gradient = gradient_importance(OwnOutputs(model, [batch]), attention_layers(model))
        assert max(float(values.max()) for values in gradient.values()) < 1e-6

    @few_kinds
    @pytest.mark.parametrize("conversion", [None, {"rank": 8, "form": "tucker"}], ids=["original", "tucker"])
    def test_statistics(self, row: Row, conversion: dict[str, Any] | None) -> None:
        model = changed(tiny_model(row), conversion)
        layers = attention_layers(model)
        inputs = probe_inputs(model)
        statistics = attention_statistics(model, layers, [inputs])
        weights = self_attentions(model)
        mask = inputs.get("attention_mask", torch.ones(weights[0].shape[0], weights[0].shape[2]))
        passes = 1 if row in SEQ2SEQ else len(weights) // len(layers)
        if passes == 1:
            rows = weights[0].detach().transpose(1, 2)[mask.bool()]  # (N, H, S)
            scores = statistics[layers[0].name].scores()
            entropy = -(rows * rows.clamp(min=1e-30).log()).sum(-1).mean(0)
            torch.testing.assert_close(scores["entropy"].float(), entropy, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(scores["confidence"].float(), rows.amax(-1).mean(0), atol=1e-4, rtol=1e-4)
        for layer in layers:
            scores = statistics[layer.name].scores()
            assert all(score.isfinite().all() for score in scores.values())
            assert float(statistics[layer.name].likeness().diagonal().sub(1).abs().max()) < 1e-4

    @pytest.mark.parametrize("conversion", [None, {"rank": 8, "form": "cp"}], ids=["original", "cp"])
    def test_uniform_attention_to_a_source_has_no_variance(
        self, conversion: dict[str, Any] | None, tokenizer: BertTokenizerFast
    ) -> None:
        """Whatever the lengths of source and target, and their padding."""
        native = tiny_model(BY_TYPE["bart"])
        with torch.no_grad():
            for layer in attention_layers(native):
                if layer.kind == "cross":
                    for parameter in layer.projection("query").parameters():
                        parameter.zero_()
        model = collab.Checkpoint(changed(native, conversion), tokenizer)
        scores = collab.score_heads(model, PAIRS[:8], options=collab.ScoreOptions(("attention_variance",)))
        cross = [layer.name for layer in attention_layers(model.model) if layer.kind == "cross"]
        for name, values in scores.scores["attention_variance"].items():
            assert (np.abs(values).max() < 1e-5) == (name in cross)

    @pytest.mark.parametrize("model_type", ["llama", "mistral", "clip_text_model", "modernbert"])
    def test_uniform_attention_to_what_a_token_sees_has_no_variance(
        self, model_type: str, tokenizer: BertTokenizerFast
    ) -> None:
        """Those before it, those within a window."""
        model = tiny_model(BY_TYPE[model_type])
        with torch.no_grad():
            for layer in attention_layers(model):
                for parameter in layer.projection("query").parameters():
                    parameter.zero_()
        rows = ["a b c d e f g h i j k l", "g h"]
        options = collab.ScoreOptions(("attention_variance",))
        scores = collab.score_heads(collab.Checkpoint(model, tokenizer), rows, options=options)
        assert max(np.abs(values).max() for values in scores.scores["attention_variance"].values()) < 1e-5

    def test_layers_with_different_numbers_of_heads(self, tokenizer: BertTokenizerFast) -> None:
        model = collab.Checkpoint(tiny_model(BY_TYPE["bart"], decoder_attention_heads=8), tokenizer)
        scores = collab.score_heads(model, PAIRS[:8], options=collab.ScoreOptions(("confidence",)))
        there = ~np.isnan(scores.grid("confidence"))  # (layers, 8)
        totals = [layer.total for layer in attention_layers(model.model)]
        assert [int(row.sum()) for row in there] == totals
        assert set(totals) == {4, 8}
        assert list(scores.to_dict()["heads_before_pruning"].values()) == totals

    @pytest.mark.parametrize(("score", "which"), [("entropy", "greatest"), ("confidence", "least")])
    def test_the_card_says_which_heads_were_removed(self, tokenizer: BertTokenizerFast, score: str, which: str) -> None:
        model = collab.Checkpoint(tiny_model(BERT), tokenizer)
        options = collab.PruneOptions(heads=0.5, scoring=collab.ScoreOptions((score,)))
        report = collab.prune(model, options, collab.head_rows(model, SENTENCES[:8], None)).report
        assert f"The heads of {which} {score} were removed" in report.summary()

    def test_recordings_are_not_padded(self) -> None:
        """A model without a mask would hear the padding."""
        model = tiny_model(BY_TYPE["wav2vec2"])
        features = [{"input_values": torch.randn(count)} for count in (400, 900, 500)]
        batches = HeadRows(None, features).batches(collab.Checkpoint(model, None))
        assert [batch["input_values"].shape[0] for batch in batches] == [1, 1, 1]

    def test_padding_of_numbers_by_token_does_not_count(self) -> None:
        model = tiny_model(BERT, BertForTokenClassification, num_labels=1).eval()
        ids = torch.randint(5, 60, (3, 7))
        padded = torch.cat([ids, torch.zeros(3, 5, dtype=torch.long)], dim=1)
        mask = torch.tensor([[1] * 7 + [0] * 5] * 3)
        batches = (
            [{"input_ids": ids, "attention_mask": torch.ones(3, 7)}],
            [{"input_ids": padded, "attention_mask": mask}],
        )
        layers = attention_layers(model)
        changes = [lambda: closed(layers, {layers[0].name: [0]})]
        short, long = (OwnOutputs(model, part).degradation(changes)[0] for part in batches)
        assert long == pytest.approx(short, rel=1e-4)

    @pytest.mark.parametrize("conversion", [None, {"rank": 16, "form": "cp"}], ids=["original", "cp"])
    def test_the_model_stays_in_its_mode(self, conversion: dict[str, Any] | None, tokenizer: BertTokenizerFast) -> None:
        model = collab.Checkpoint(changed(tiny_model(BERT), conversion), tokenizer)
        model.model.train().get_submodule("encoder.layer.0").eval()
        modes = [module.training for module in model.model.modules()]
        collab.score_heads(model, SENTENCES[:8])
        assert [module.training for module in model.model.modules()] == modes
        pruned = collab.prune(model, collab.PruneOptions(heads=0.5), collab.head_rows(model, SENTENCES[:8], None))
        assert [module.training for module in model.model.modules()] == modes
        assert pruned.model.training

    @every_conversion
    def test_likeness_of_weights(self, conversion: dict[str, Any] | None) -> None:
        model = changed(tiny_model(BERT), conversion)
        layer = attention_layers(model)[0]
        scores = _products(model)
        expected = torch.nn.functional.normalize(scores.flatten(1), dim=1)
        torch.testing.assert_close(product_likeness(layer).float(), expected @ expected.T, atol=1e-4, rtol=0)
        shared = sharing(layer)
        assert (shared is None) == (conversion is None)
        if shared is not None and conversion is not None and conversion["form"] == "concat":
            assert ((shared > 1e-9).sum(0) <= 1).all()

    @few_kinds
    def test_a_head_that_does_nothing_scores_nothing(self, row: Row) -> None:
        model = tiny_model(row)
        layers = attention_layers(model)
        width = layers[0].head_dim
        with torch.no_grad():
            output = layers[0].output
            weight = output.weight if isinstance(output, torch.nn.Linear) else output.weight.T  # of GPT-2's Conv1D
            weight[:, width : 2 * width] = 0
        objective = OwnOutputs(model, [probe_inputs(model)])
        gradient = gradient_importance(objective, layers)[layers[0].name]
        without, _ = ablation(objective, layers)
        assert float(gradient[1]) == 0
        assert float(without[layers[0].name][1]) == 0
        assert float(gradient[0]) > 0
        assert float(without[layers[0].name][0]) > 0


def _products(model: PreTrainedModel) -> torch.Tensor:
    """A_h of the first layer, (H, D, D), from its modules."""
    layer = attention_layers(model)[0].module
    if not isinstance(layer, CollaborativeAttention):
        query, key = (projection.weight.unflatten(0, (4, -1)) for projection in (layer.query, layer.key))  # (H, d, D)
        return (query.mT @ key).detach()
    eye = torch.eye(model.config.hidden_size).unsqueeze(0)
    offset, layer.query_offset = layer.query_offset, None
    query, key = layer.queries(eye)[0], layer.keys(eye)[0]  # (H, D, R)
    layer.query_offset = offset
    return (query @ key.mT).detach()


# datasets leaves a file open that is not read to its end.
unfinished = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


class TestHeadsCommand:
    @pytest.mark.slow
    @unfinished
    def test_everything_with_figures(self, folder: Path) -> None:
        done = run(
            *("heads", folder / "model", "--data", folder / "rows.tsv", "--task", "classification", "--samples", 24),
            *("--ablation-samples", 8, "--figures", folder / "figures", "--sentence", "word1 word2 word3", "--json"),
            *("--data2", folder / "rows.tsv"),
        )
        assert done.exit_code == 0, done.stderr
        printed = json.loads(done.stdout)
        assert set(printed["scores"]) == set(SCORES)
        assert all(len(row) == 4 for score in printed["scores"].values() for row in score.values())
        assert printed["degradation"] == "loss of accuracy"
        assert printed["data"]["task"] == "classification"
        assert printed["scores"] == printed["data2"]["scores"]  # the same rows and seed
        names = {path.name for path in (folder / "figures").iterdir()}
        assert {"scores.png", "correlations.png", "ablation.png", "like-weights.png", "like-maps.png"} <= names
        assert {"two-data-sets.png", "attention-1-layer-0.png", "attention-1-layer-1.png"} <= names

    def test_of_a_conversion_without_labels(self, folder: Path) -> None:
        collab.checkpoints.convert(
            str(folder / "model"), folder / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        arguments = ("--data", folder / "rows.txt", "--samples", 16, "--score", "gradient", "--score", "like_weights")
        done = run("heads", folder / "converted", *arguments, "--normalize", "--figures", folder / "figures")
        assert done.exit_code == 0, done.stderr
        assert "gradient" in done.stdout
        assert (folder / "figures" / "sharing.png").is_file()

    def test_of_a_pruned_model(self, folder: Path) -> None:
        assert run("prune", folder / "model", folder / "pruned", "--keep", "0:1,3;1:").exit_code == 0
        done = run("heads", folder / "pruned", "--data", folder / "rows.txt", "--ablation-samples", 8, "--json")
        assert done.exit_code == 0, done.stderr
        printed = json.loads(done.stdout)
        assert list(printed["heads"].values()) == [[1, 3], []]
        assert [len(row) for row in printed["scores"]["gradient"].values()] == [2, 0]

    @unfinished
    @pytest.mark.parametrize(
        ("native_class", "task", "data", "degradation"),
        [
            (BertForMaskedLM, "masked-lm", "rows.txt", "rise of loss"),
            (BertForTokenClassification, "token-classification", "tags.jsonl", "loss of accuracy"),
        ],
    )
    def test_other_tasks(self, folder: Path, native_class: Any, task: str, data: str, degradation: str) -> None:
        model = tiny_model(BERT, native_class, id2label={0: "O", 1: "B-A"})
        model.save_pretrained(folder / "model")
        tags = [{"tokens": WORDS[start : start + 4], "tags": ["O", "B-A", "O", "B-A"]} for start in range(20)]
        (folder / "tags.jsonl").write_text("\n".join(map(json.dumps, tags)))
        scores = collab.checkpoints.score_heads(
            str(folder / "model"),
            collab.DataSource(str(folder / data)),
            task=collab.task_named(task, "accuracy" if task != "masked-lm" else None),
            rows=collab.RowOptions(samples=12),
            options=collab.ScoreOptions(("gradient", "ablation"), ablation_samples=4),
        ).scores
        assert scores.degradation_name == degradation
        assert (scores.grid("gradient") > 0).all()

    def test_those_that_matter_least_may_have_most_of_a_score(self, folder: Path) -> None:
        arguments = ("--data", folder / "rows.txt", "--score", "entropy")
        entropy = json.loads(run("heads", folder / "model", *arguments, "--json").stdout)["scores"]["entropy"]
        values = {(layer, head): own[head] for layer, own in enumerate(entropy.values()) for head in range(len(own))}
        layer, head = max(values, key=lambda place: values[place])
        said = " ".join(run("heads", folder / "model", *arguments).stdout.split())
        assert "Least important by entropy, as layer:head: " in said
        first = said.partition("Least important by entropy, as layer:head: ")[2].split()[0].strip(",")
        assert first.rpartition(":")[2] == str(head)
        assert str(layer) in first

    def test_a_task_brings_its_rows(self, folder: Path) -> None:
        """Which cannot be reached from here."""
        for line in (("heads", folder / "model"), ("prune", folder / "model", folder / "pruned", "--heads", 0.4)):
            assert "nyu-mll/glue" in run(*line, "--task", "glue/sst2").stderr
            assert "give --data" in " ".join(run(*line).stderr.split())

    @pytest.mark.exhaustive
    def test_long_sentences_are_cut_in_figures(self, folder: Path) -> None:
        arguments = ("--data", folder / "rows.txt", "--score", "entropy", "--figures", folder / "figures")
        done = run("heads", folder / "model", *arguments, "--layer", 1, "--sentence", " ".join(WORDS[:35]))
        assert done.exit_code == 0, done.stderr
        assert "its maps show the first 32" in done.stderr
        assert (folder / "figures" / "attention-1-layer-1.png").is_file()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--data", "rows.txt", "--task", "classification"), "scored by the model's own answers"),
            (("--data", "rows.txt", "--score", "beauty"), "Unknown score"),
            (("--data", "nowhere.txt"), "nowhere.txt"),
            (("--data", "rows.txt", "--sentence", "a"), "--figures"),
            (("--data", "rows.txt", "--figures", "figures", "--sentence", "a", "--layer", "9"), "no attention layer 9"),
            (("--data", "synthetic", "--task", "classification"), "Labels come from a file"),
        ],
    )
    def test_bad_input(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
    ) -> None:
        monkeypatch.chdir(folder)
        done = run("heads", "model", *arguments, "--score", "entropy")
        assert done.exit_code != 0
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


class TestPruneCommand:
    @unfinished
    @pytest.mark.parametrize("start", ["model", "converted"])
    def test_by_scores(self, folder: Path, start: str) -> None:
        collab.checkpoints.convert(
            str(folder / "model"), folder / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        done = run(
            *("prune", folder / start, folder / "pruned", "--heads", 0.5, "--data", folder / "rows.tsv"),
            *("--task", "classification", "--steps", 2, "--samples", 16, "--json"),
        )
        assert done.exit_code == 0, done.stderr
        step = json.loads(done.stdout)
        assert (step["heads_before"], step["heads_after"]) == (8, 4)
        report = json.loads((folder / "pruned" / "collab_report.json").read_text())
        assert [step["step"] for step in report["history"]] == ["prune"]
        assert "## Pruning" in (folder / "pruned" / "README.md").read_text()
        model = BertForSequenceClassification.from_pretrained(folder / "model")
        assert step["parameters"]["after"]["attention"] < parameters(model)["attention"]

    def test_per_layer(self, folder: Path) -> None:
        arguments = ("--per-layer", 1, "--data", folder / "rows.txt", "--steps", 2, "--samples", 16)
        done = run("prune", folder / "model", folder / "pruned", *arguments)
        assert done.exit_code == 0, done.stderr
        entries = json.loads((folder / "pruned" / "config.json").read_text())["collab_layers"]
        assert [len(entry["heads"]) for entry in entries] == [1, 1]

    def test_rows_and_scores_are_those_of_collab_heads(self, folder: Path) -> None:
        """So that a long row is cut, and the ablation takes as many rows as it is told."""
        options = ("--data", folder / "rows.txt", "--samples", 16, "--max-length", 4, "--ablation-samples", 4)
        scored = run("heads", folder / "model", *options, "--score", "ablation", "--json")
        assert scored.exit_code == 0, scored.stderr
        pruned = run("prune", folder / "model", folder / "pruned", *options, "--score", "ablation", "--heads", 0.25)
        assert pruned.exit_code == 0, pruned.stderr
        values = json.loads(scored.stdout)["scores"]["ablation"]
        order = sorted((value, layer, head) for layer, row in values.items() for head, value in enumerate(row))
        kept = json.loads((folder / "pruned" / "collab_report.json").read_text())["history"][0]["heads"]
        gone = {(layer, head) for layer, heads in kept.items() for head in range(4) if head not in heads}
        assert gone == {(layer, head) for _, layer, head in order[: len(gone)]}
        assert len(gone) == 2

    @pytest.mark.slow
    def test_then_heals_trains_and_converts(self, folder: Path) -> None:
        done = run(
            *("prune", folder / "model", folder / "pruned", "--keep", "0:1,3;1:0,1,2", "--heal", folder / "rows.txt"),
            *("--heal-steps", 4),
        )
        assert done.exit_code == 0, done.stderr
        assert "were trained for 4 steps" in " ".join(done.stdout.split())
        assert not (folder / "pruned.training").exists()
        tuned = run(
            *("finetune", folder / "pruned", folder / "tuned", "--task", "classification", "--steps", 2),
            *("--train", folder / "rows.tsv", "--eval", folder / "rows.tsv"),
        )
        assert tuned.exit_code == 0, tuned.stderr
        report = json.loads((folder / "tuned" / "collab_report.json").read_text())
        assert [step["step"] for step in report["history"]] == ["prune", "heal", "finetune"]
        healing = ("--heal", folder / "rows.txt", "--heal-steps", 4, "--refine", "none", "--no-speed")
        smaller = run("convert", folder / "tuned", folder / "smaller", "--rank", 8, *healing)
        assert smaller.exit_code == 0, smaller.stderr
        after = json.loads((folder / "smaller" / "collab_report.json").read_text())
        assert [step["step"] for step in after["original_history"]] == ["prune", "heal", "finetune"]
        assert [step["step"] for step in after["history"]] == ["heal"]
        assert after["parameters"]["query_key"]["after"] < after["parameters"]["query_key"]["before"]
        entries = json.loads((folder / "smaller" / "config.json").read_text())["collab_layers"]
        assert [(entry["form"], entry["heads"]) for entry in entries] == [("cp", [1, 3]), ("cp", [0, 1, 2])]

    @pytest.mark.parametrize(
        ("form", "keep"),
        often(product(FORMS, ("0:0,2", "0:;1:1,2")), {"cp-0:0,2", "concat-0:;1:1,2", "tucker-0:;1:1,2"}),
    )
    def test_converts_at_full_rank(self, folder: Path, form: str, keep: str) -> None:
        assert run("prune", folder / "model", folder / "pruned", "--keep", keep).exit_code == 0
        done = run("convert", folder / "pruned", folder / "again", "--rank", "1.0", "--form", form)
        assert done.exit_code == 0, done.stderr
        pruned, again = (AutoModel.from_pretrained(folder / name).eval() for name in ("pruned", "again"))
        assert [layer.heads for layer in attention_layers(again)] == [layer.heads for layer in attention_layers(pruned)]
        assert largest_difference(outputs(again), outputs(pruned)) < 1e-4

    def test_what_was_converted_is_not_converted_again(self, folder: Path) -> None:
        collab.checkpoints.convert(
            str(folder / "model"), folder / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        assert run("prune", folder / "converted", folder / "pruned", "--keep", "0:0").exit_code == 0
        done = run("convert", folder / "pruned", folder / "again", "--rank", "0.5")
        assert done.exit_code == 1
        assert "collaborative already" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--heads", "1.0", "--data", "rows.txt"), "between 0 and 1"),
            (("--heads", "0.01", "--data", "rows.txt"), "at least one must be removed"),
            (("--heads", "0.5"), "--data"),
            (("--heads", "0.5", "--per-layer", "1", "--data", "rows.txt"), "exactly one of"),
            ((), "exactly one of"),
            (("--keep", "0:9"), "no head 9"),
            (("--keep", "7:1"), "no attention layer 7"),
            (("--keep", "0:;1:"), "without a single head"),
            (("--keep", "all"), "does not name heads"),
            (("--keep", "0:1;0:2"), "names layer 0 twice"),
            (("--heads", "0.5", "--data", "rows.txt", "--max-length", "2"), "at least 3 tokens"),
            (("--heads", "0.5", "--data", "rows.txt", "--score", "beauty"), "Unknown score"),
            (("--per-layer", "0", "--data", "rows.txt"), "at least 1 head"),
            (("--heads", "0.5", "--data", "rows.txt", "--task", "classification"), "need no labels"),
        ],
    )
    def test_bad_input(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
    ) -> None:
        monkeypatch.chdir(folder)
        done = run("prune", "model", "pruned", *arguments)
        assert done.exit_code != 0
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert not (folder / "pruned").exists()

    def test_tied_layers(self, tmp_path: Path) -> None:
        """ALBERT's heads are shared by all passes; the command says so."""
        model = tiny_model(BY_TYPE["albert"])
        model.save_pretrained(tmp_path / "albert")
        done = run("heads", tmp_path / "albert", "--data", "synthetic", "--samples", 8, "--score", "gradient")
        assert done.exit_code == 0, done.stderr
        assert "is the same in all of its passes" in " ".join(done.stdout.split())


class TestInspect:
    def test_heads_do_not_change_parameters(self, folder: Path) -> None:
        printed = {}
        for heads in (2, 4):
            done = run("inspect", folder / "model", "--num-heads", heads, "--json")
            assert done.exit_code == 0, done.stderr
            printed[heads] = json.loads(done.stdout)
        assert printed[2]["parameters"] == printed[4]["parameters"]
        assert [printed[heads]["layers"][0]["head_dim"] for heads in (2, 4)] == [16, 8]
        assert "parameters stay the same" in printed[4]["explanation"][0]
        model = BertForSequenceClassification.from_pretrained(folder / "model")
        assert printed[4]["parameters"] == parameters(model)

    def test_heads_of_models_that_say_them_twice(self, tmp_path: Path) -> None:
        for kind, changes in (
            ("llama", {"num_key_value_heads": 4}),
            ("marian", {}),
            ("llama", {"num_key_value_heads": 2}),
        ):
            model = tiny_model(BY_TYPE[kind], **{"num_attention_heads": 4} | changes if kind == "llama" else changes)
            model.save_pretrained(tmp_path / kind)
            done = run("inspect", tmp_path / kind, "--num-heads", 2, "--json")
            if changes.get("num_key_value_heads") == 2:
                assert done.exit_code == 2
                assert "the same number of heads" in done.stderr
            else:
                assert done.exit_code == 0, done.stderr
                widths = {layer["head_dim"] for layer in json.loads(done.stdout)["layers"]}
                assert widths == {model.config.hidden_size // 2}

    def test_a_conversion_and_a_pruned_one(self, folder: Path) -> None:
        collab.checkpoints.convert(
            str(folder / "model"), folder / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        assert run("prune", folder / "converted", folder / "pruned", "--keep", "0:1;1:").exit_code == 0
        for name, said in (("converted", "mixing matrix"), ("pruned", "heads were pruned")):
            done = run("inspect", folder / name, "--length", 16)
            assert done.exit_code == 0, done.stderr
            assert said in " ".join(done.stdout.split())

    def test_layers_with_different_numbers_of_heads_are_described_apart(self) -> None:
        native = tiny_model(BY_TYPE["bart"], decoder_attention_heads=8)
        layers = attention_layers(native)
        for model in (native, converted(native, rank=8)):
            splits, products, *rest = collab.inspect(model).explanation
            for heads in (4, 8):
                count = sum(layer.total == heads for layer in layers)
                assert f"in {count} of {len(layers)} layers one 32×32 matrix" in splits
                assert f"into {heads} heads of d = 32/{heads}" in splits
                assert f"T² scores for each of {heads} heads" in products
            if model is not native:
                assert "instead of 4 to 8" in " ".join(rest)

    @every_kind
    def test_every_family(self, row: Row) -> None:
        model = tiny_model(row)
        inspection = collab.inspect(model)
        assert inspection.parameters["model"] == sum(parameter.numel() for parameter in model.parameters())
        assert all(layer.flops == layer.flops_original for layer in inspection.layers)

    def test_other_numbers_of_heads_keep_the_width_of_queries(self, tmp_path: Path) -> None:
        """Where it is not the hidden size: 4 heads of 6 in a model of width 32."""
        tiny_model(BY_TYPE["t5"]).save_pretrained(tmp_path / "t5")
        before, after = (
            json.loads(run("inspect", tmp_path / "t5", *arguments, "--json").stdout)["parameters"]
            for arguments in ((), ("--num-heads", 2))
        )
        assert before["query_key"] == after["query_key"]
        assert (
            "Queries of 24 cannot be divided among 5 heads" in run("inspect", tmp_path / "t5", "--num-heads", 5).stderr
        )

    @pytest.mark.parametrize(
        ("arguments", "message"), [(("--num-heads", "5"), "cannot be divided"), (("--length", "0"), "at least 1 token")]
    )
    def test_bad_input(self, folder: Path, arguments: tuple[str, ...], message: str) -> None:
        done = run("inspect", folder / "model", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr

    def test_no_model(self, tmp_path: Path) -> None:
        assert "no folder" in run("inspect", tmp_path / "nothing").stderr

"""What kind of answer an output is: in calibration, in agreement, in healing and where heads are judged."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from tiny import BY_TYPE, converted, random_model
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    ElectraForPreTraining,
    PreTrainedModel,
)

import collab
from collab.evaluation.compare import agreement
from collab.heads.objective import OwnOutputs

HALF = collab.CalibrationOptions(held_out=0.5)


def head(native_class: type[PreTrainedModel], **changes: object) -> PreTrainedModel:
    return random_model(native_class, BY_TYPE[native_class.config_class.model_type].config(**changes))


def both(native_class: type[PreTrainedModel], **changes: object) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model and its conversion."""
    model = head(native_class, **changes)
    return model, converted(model, 6)


def tokens(rows: int = 2, length: int = 6, padding: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(2, 60, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    return {
        "input_ids": functional.pad(ids, (0, padding), value=1),
        "attention_mask": functional.pad(mask, (0, padding)),
    }


def logits(models: tuple[PreTrainedModel, PreTrainedModel], batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        first, second = (model(**batch).logits for model in models)
    return first, second


class TestAgreement:
    @pytest.mark.parametrize("outputs", [1, 3])
    def test_numbers(self, outputs: int) -> None:
        models = both(BertForSequenceClassification, num_labels=outputs, problem_type="regression")
        first, second = logits(models, tokens())
        measured = agreement(*models, [tokens()])
        assert measured == {"rows": 2, "absolute_difference": pytest.approx(float((first - second).abs().mean()))}

    def test_several_labels_at_once(self) -> None:
        models = both(BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification")
        first, second = logits(models, tokens())
        expected = torch.distributions.kl_divergence(
            *(torch.distributions.Bernoulli(logits=each.double()) for each in (first, second))
        )
        measured = agreement(*models, [tokens()])
        assert measured["kl"] == pytest.approx(float(expected.sum(-1).mean()), rel=1e-4)
        assert measured["top1"] == pytest.approx(float(((first > 0) == (second > 0)).float().mean()))

    def test_a_label_of_every_token(self) -> None:
        """ELECTRA's discriminator says of each token by itself whether it was replaced."""
        models, batch = both(ElectraForPreTraining), tokens(padding=3)
        first, second = (each[:, :6] for each in logits(models, batch))
        expected = torch.distributions.kl_divergence(
            *(torch.distributions.Bernoulli(logits=each.double()) for each in (first, second))
        )
        measured = agreement(*models, [batch])
        assert measured["kl"] == pytest.approx(float(expected.mean()), rel=1e-4)
        assert measured["top1"] == pytest.approx(float(((first > 0) == (second > 0)).float().mean()))

    @pytest.mark.parametrize(
        "native_class", [BertForQuestionAnswering, BertForTokenClassification, ElectraForPreTraining]
    )
    def test_padding_does_not_count(self, native_class: type[PreTrainedModel]) -> None:
        models = both(native_class)
        plain, padded = (agreement(*models, [tokens(padding=padding)]) for padding in (0, 5))
        assert padded == pytest.approx(plain, rel=1e-4)

    @pytest.mark.parametrize("native_class", [BertForQuestionAnswering, ElectraForPreTraining])
    def test_degradation_of_a_models_own_answers(self, native_class: type[PreTrainedModel]) -> None:
        """The same question for heads: by how much its answers change, padding left out."""
        model, conversion = both(native_class)
        degradations = []
        for padding in (0, 5):
            objective = OwnOutputs(model, [tokens(padding=padding)])

            def change(objective: OwnOutputs = objective) -> nullcontext:
                objective.model = conversion
                return nullcontext()

            degradations += objective.degradation([change])
            assert all(loss().shape == (2,) for loss in objective.losses())
        assert degradations[1] == pytest.approx(degradations[0], rel=1e-4)
        measured = agreement(model, conversion, [tokens()])
        answers = 2 if native_class is BertForQuestionAnswering else 6
        assert degradations[0] == pytest.approx(measured["kl"] * answers, rel=1e-4)


class TestHealing:
    @pytest.mark.parametrize("native_class", [BertForQuestionAnswering, ElectraForPreTraining])
    def test_padding_does_not_count(self, native_class: type[PreTrainedModel]) -> None:
        from collab.training.distillation import Distillation

        model, conversion = both(native_class)
        distillation = Distillation(model)
        with torch.no_grad():
            plain, padded = (
                distillation.loss(conversion, distillation.expected(batch), batch)[0]
                for batch in (tokens(), tokens(padding=5))
            )
        torch.testing.assert_close(padded, plain, rtol=1e-4, atol=1e-6)


class TestCalibration:
    @pytest.mark.parametrize("labels", [2, 3])
    def test_every_row_of_a_sure_classifier_counts(self, labels: int) -> None:
        """The draw decides the direction of the answers' change and not its size: of two classes, nothing."""
        model = head(BertForSequenceClassification, num_labels=labels)
        with torch.no_grad():
            model.classifier.bias[0] += 6
        weights = []
        for seed in range(8):
            options = collab.CalibrationOptions(held_out=0.5, seed=seed)
            moments = collab.calibrate(model, [tokens(8)] * 2, options=options).moments
            weights.append(torch.stack([layer.head_weight.sum() for layer in moments.values()]))
        spread = torch.stack(weights).std(0) / torch.stack(weights).mean(0)
        assert (spread < (1e-4 if labels == 2 else 0.5)).all(), spread

    @pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
    def test_logits_that_are_no_distribution(self, problem_type: str) -> None:
        """As one softmax, they would leave no doubt, and nothing to learn from."""
        model = head(BertForSequenceClassification, num_labels=3, problem_type=problem_type)
        with torch.no_grad():
            model.classifier.bias[0] += 1000
        calibration = collab.calibrate(model, [tokens()] * 2, options=HALF)
        assert not any("identity" in note for note in calibration.notes)
        for moments in calibration.moments.values():
            identity = torch.eye(32, dtype=torch.float64)
            assert not torch.equal(moments.key_covariance, identity)

    def test_nothing_to_learn_from_is_said(self) -> None:
        model = head(BertForSequenceClassification, num_labels=3)
        with torch.no_grad():
            model.classifier.bias[0] += 1000
        calibration = collab.calibrate(model, [tokens()] * 2, options=HALF)
        note = next(note for note in calibration.notes if "identity" in note)
        assert "encoder.layer.0.attention.self" in note
        report = collab.convert(model, collab.ConversionConfig(rank=6, refine="none"), calibration=calibration).report
        assert note in report.notes

    def test_as_many_classes_as_tokens(self) -> None:
        """Only the last class depends on the input, and a mask of tokens of the same shape would hide it."""
        model = head(BertForSequenceClassification, num_labels=9)
        with torch.no_grad():
            model.classifier.weight[:-1] = 0
        calibration = collab.calibrate(model, [tokens(padding=3)] * 2, options=HALF)
        identity = torch.eye(32, dtype=torch.float64)
        assert not any(torch.equal(moments.key_covariance, identity) for moments in calibration.moments.values())

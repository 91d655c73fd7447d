"""Layers with disentangled positions (DeBERTa): every term is exact, what moments mean, and every command on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reload import check_reloads
from tiny import (
    BY_TYPE,
    LETTERS,
    batches,
    converted,
    every_form,
    in_pairs,
    largest_difference,
    of_seen,
    often,
    random_text,
    save_with_tokenizer,
    tensors,
    tiny_model,
)
from torch import Tensor
from transformers import DebertaV2Config, DebertaV2Model, PreTrainedModel

import collab
from collab.decomposition import FORMS
from collab.errors import UnsupportedArchitectureError
from collab.modeling.collab_disentangled import (
    CollaborativeDisentangledAttention,
    PositionTerms,
    RelativePositions,
)
from collab.models.families import collaborative_layers, require_family
from collab.models.inputs import probe_inputs
from collab.reparametrization.layer import factors_of
from collab.reparametrization.model import LayerProblems
from collab.reparametrization.moments import DisentangledAccumulator

DEBERTA = BY_TYPE["deberta-v2"]
TERMS = {"c2p": (True, False), "p2c": (False, True), "p2c|c2p": (True, True)}
QUICK = {"compare": False, "refine": "none"}
every_choice_of_terms = pytest.mark.parametrize("terms", TERMS)


def text(batch: int = 3, length: int = 24) -> dict[str, Tensor]:
    """Tokens, the last row padded. At 24 tokens most offsets share a bucket with others, and the last ones are cut."""
    return random_text(batch, length)


def difference(native: PreTrainedModel, model: PreTrainedModel, inputs: dict[str, Tensor]) -> float:
    with torch.no_grad():
        return largest_difference(*(of_seen(each(**inputs), inputs) for each in (native, model)))


@pytest.fixture(scope="module")
def v3() -> DebertaV2Model:
    """The shape of DeBERTa-v3-base but for two layers and few words; biases and positions as large as the rest."""
    config = DebertaV2Config(
        vocab_size=200,
        hidden_size=768,
        num_hidden_layers=2,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        type_vocab_size=0,
        relative_attention=True,
        max_relative_positions=-1,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type="p2c|c2p",
        position_biased_input=False,
    )
    torch.manual_seed(0)
    model = DebertaV2Model(config).eval()
    with torch.no_grad():
        model.encoder.rel_embeddings.weight.normal_()
        model.encoder.LayerNorm.weight.uniform_(0.5, 1.5)
        model.encoder.LayerNorm.bias.normal_()
        for name, parameter in model.named_parameters():
            if "_proj." in name:
                parameter.normal_(0, 1.0 if name.endswith("bias") else 0.04)
    return model


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("concat", "exact"),
        ("cp", "folded"),
        *(pytest.param(form, "exact", marks=pytest.mark.exhaustive) for form in ("cp", "tucker")),
        *(pytest.param(form, "folded", marks=pytest.mark.exhaustive) for form in ("concat", "tucker")),
    ],
)
def test_deberta_v3_is_exact_at_full_rank(v3: DebertaV2Model, form: str, content: str) -> None:
    model = converted(v3, 768, form, content=content)
    inputs = text(2, 40)
    assert difference(v3, model, inputs) < 2e-5


WITHOUT: dict[str, Callable[[Any], Any]] = {
    "c2p": lambda layer: setattr(layer, "terms", layer.terms._replace(c2p=False)),
    "p2c": lambda layer: setattr(layer, "position_content", None),
    "e": lambda layer: layer.position_content.weight.data.zero_(),
    "c": lambda layer: layer.content_bias.weight.data.zero_(),
    "c in p2c": lambda layer: setattr(layer, "terms", layer.terms._replace(p2c=False)),
    "scale": lambda layer: setattr(layer, "scaling", layer.attention_head_size**-0.5),
}


@pytest.mark.parametrize("part", often([*WITHOUT], {"c2p"}))
def test_every_term_matters(v3: DebertaV2Model, part: str) -> None:
    """Without any one of them the model that is exact above is far off."""
    model = converted(v3, 768, "concat")
    for layer in collaborative_layers(model).values():
        WITHOUT[part](layer)
    assert difference(v3, model, text(2, 40)) > 0.02


@in_pairs("terms", TERMS, "form", FORMS)
@pytest.mark.parametrize("content", ["exact", "folded"])
def test_exact_with_any_terms(terms: str, form: str, content: str) -> None:
    for changes in ({}, {"position_buckets": -1, "max_relative_positions": 5}, {"norm_rel_ebd": "none"}):
        native = tiny_model(DEBERTA, pos_att_type=terms, **changes)
        model = converted(native, 32, form, content=content)
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            assert difference(native, model, text()) < 2e-5


@pytest.mark.parametrize("changes", [{"relative_attention": False}, {"pos_att_type": []}])
def test_exact_without_relative_positions(changes: dict[str, Any]) -> None:
    native = tiny_model(DEBERTA, **changes)
    assert difference(native, converted(native, 32), text()) < 2e-5


def test_long_sequences_need_all_rows_and_short_ones_few() -> None:
    model = converted(tiny_model(DEBERTA, position_buckets=8), 32)
    layer = next(iter(collaborative_layers(model).values()))
    assert isinstance(layer, CollaborativeDisentangledAttention)
    seen: list[int] = []
    layer.position_content.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[1]))
    for length in (1, 3, 30):
        with torch.no_grad():
            model(**text(2, length))
    assert seen == [1, 5, 16]


@in_pairs("terms", TERMS, "form", FORMS)
def test_calibration_lowers_the_error_of_outputs(terms: str, form: str) -> None:
    native = tiny_model(DEBERTA, pos_att_type=terms)
    data = [random_text(8, 16) for _ in range(10)]
    calibration = collab.calibrate(native, data)
    settings = collab.ConversionConfig(rank=14, form=form, **QUICK)
    plain = collab.convert(native, settings)
    fitted = collab.convert(native, settings, calibration=calibration)
    errors = [collab.score_errors(native, each.model, calibration.moments) for each in (plain, fitted)]
    assert sum(errors[1].values()) < sum(errors[0].values())
    for layer in fitted.report.layers:
        assert layer.score_error == pytest.approx(errors[1][layer.name], rel=1e-3)
    inputs = random_text(32, 16)
    distances = []
    for each in (plain, fitted):
        with torch.no_grad():
            expected, actual = (of_seen(model(**inputs), inputs)["last_hidden_state"] for model in (native, each.model))
        distances.append(float((actual - expected).square().sum()))
    assert distances[1] < distances[0]


class TestMoments:
    """The moments of the first layer, from the gradient of the scores computed in another way."""

    @staticmethod
    def passes(native: PreTrainedModel, data: list[dict[str, Tensor]]) -> LayerProblems:
        calibration = collab.calibrate(native, data)
        return LayerProblems(native, calibration.moments, torch.device("cpu"))

    def test_rows_of_positions_are_among_queries_and_keys(self) -> None:
        """A relative embedding in a direction that no token has appears in both covariances, as far as terms use it."""
        for terms, (as_key, as_query) in TERMS.items():
            native = tiny_model(DEBERTA, pos_att_type=terms, norm_rel_ebd="none")
            with torch.no_grad():
                native.encoder.rel_embeddings.weight.zero_()
                native.encoder.rel_embeddings.weight[:, 3] = torch.linspace(-9, 9, 8)
            with_rows = self.passes(native, batches(native))
            with torch.no_grad():
                native.encoder.rel_embeddings.weight.zero_()
            without = self.passes(native, batches(native))
            name = next(iter(with_rows))
            first, second = (problems[name].moments for problems in (with_rows, without))
            share = [
                float(getattr(each, side)[3, 3] / getattr(each, side).trace())
                for side in ("query_covariance", "key_covariance")
                for each in (first, second)
            ]
            assert (share[0] > 2 * share[1]) == as_query
            assert (share[2] > 2 * share[3]) == as_key

    @every_choice_of_terms
    def test_moments_are_those_of_both_sums(self, terms: str) -> None:
        """Tokens as queries, and positions as queries, written out token by token for one head."""
        generator = torch.Generator().manual_seed(0)
        tokens, width, span = 5, 3, 4
        states, rows, gradients = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((tokens, width), (2 * span, width), (tokens, tokens))
        )
        places = torch.arange(tokens)
        index = (places[:, None] - places + span).clamp(max=2 * span - 1)
        chosen = PositionTerms(*TERMS[terms], span)
        sums = DisentangledAccumulator(width, width, 1, torch.device("cpu"), chosen)
        positions = RelativePositions(rows, index)
        sums.add(states[None], states[None], gradients[None, None], tokens, generator, positions)
        moments = sums.finish()

        seen = states.expand(tokens, -1, -1) + chosen.c2p * rows[index]  # (T, S, D)
        effects = (gradients.unsqueeze(-1) * seen).sum(dim=1)  # u, (T, D)
        mean, spread, second = self.weighted(states, effects)
        torch.testing.assert_close(moments.query_mean[0], mean)
        if not chosen.p2c:
            torch.testing.assert_close(moments.query_covariance, spread)
            torch.testing.assert_close(moments.key_covariance, second)
            return
        effects = (gradients.unsqueeze(-1) * rows[index]).sum(dim=0)  # v, (S, D)
        mean, other_spread, other_second = self.weighted(states, effects)
        torch.testing.assert_close(moments.key_mean[0], mean)
        energy = spread.trace() * second.trace() + other_spread.trace() * other_second.trace()
        product = moments.query_covariance.trace() * moments.key_covariance.trace()
        torch.testing.assert_close(product, energy)
        for actual, expected in (
            (moments.query_covariance, spread * second.trace() + other_second * other_spread.trace()),
            (moments.key_covariance, second * spread.trace() + other_spread * other_second.trace()),
        ):
            torch.testing.assert_close(actual / actual.trace(), expected / energy)

    @staticmethod
    def weighted(states: Tensor, effects: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and covariance of states with weights ‖effect‖², and the second moment of the effects."""
        weight = effects.square().sum(dim=1, keepdim=True)  # (T, 1)
        mean = (weight * states).sum(dim=0) / weight.sum()
        centred = states - mean
        return mean, (weight * centred).mT @ centred / weight.sum(), effects.mT @ effects / len(states)

    def test_moments_are_kept_in_a_cache(self, tmp_path: Path) -> None:
        native, file = tiny_model(DEBERTA), tmp_path / "moments.safetensors"
        written, read = (collab.calibrate(native, batches(native), cache=file).moments for _ in range(2))
        for name, moments in written.items():
            torch.testing.assert_close(read[name].tensors(), moments.tensors(), rtol=0, atol=0)
            assert "key_mean" in moments.tensors()


@every_choice_of_terms
def test_means_are_taken_out_exactly(terms: str) -> None:
    """A token with the mean query, and a position with the mean key, have their exact scores at any rank."""
    native = tiny_model(DEBERTA, pos_att_type=terms)
    calibration = collab.calibrate(native, batches(native))
    problem = next(iter(LayerProblems(native, calibration.moments, torch.device("cpu")).values()))
    as_key, as_query = TERMS[terms]
    factors = problem.solve("cp", 9, "exact", collab.SolverOptions()).factors
    moments = problem.moments
    assert moments is not None
    head = [problem.tensor.query[:, h * 8 : h * 8 + 8] @ problem.tensor.key[:, h * 8 : h * 8 + 8].T for h in range(4)]
    exact = torch.stack(head)  # (H, D, D)
    change = exact - torch.stack([factors.head(h) for h in range(4)])
    content = torch.stack([matrix @ problem.query_bias[h * 8 : h * 8 + 8] for h, matrix in by_head(problem.tensor.key)])
    position = torch.stack(
        [matrix @ problem.key_bias[h * 8 : h * 8 + 8] for h, matrix in by_head(problem.tensor.query)]
    )
    at_query = torch.einsum("hd,hde->he", moments.query_mean, change)
    times = 2 if as_query else 1
    torch.testing.assert_close(times * factors.content_bias, times * content + at_query)
    if as_query:
        at_key = torch.einsum("hde,he->hd", change, moments.key_mean)
        stored = factors.position_content + as_key * factors.content_bias
        torch.testing.assert_close(stored, position + at_key + as_key * (content + at_query))


def by_head(projection: Tensor) -> list[tuple[int, Tensor]]:
    return list(enumerate(projection.split(8, dim=1)))


@pytest.mark.parametrize("form", often(FORMS, {"cp"}))
def test_refinement_lowers_the_error_of_outputs(form: str) -> None:
    native = tiny_model(DEBERTA)
    model = converted(native, 12, form)
    before = {name: factors_of(layer).position_content.clone() for name, layer in collaborative_layers(model).items()}
    refinement = collab.refine(model, native, batches(native, 16), options=collab.RefineOptions(steps=30))
    assert refinement.report.improved
    for name, layer in refinement.report.layers.items():
        trained = factors_of(collaborative_layers(model)[name]).position_content
        assert layer.kept == (not torch.equal(trained, before[name]))
        assert not layer.kept or layer.after < layer.before


def test_budgets_hold_and_parameters_are_counted() -> None:
    native = tiny_model(DEBERTA)
    for form in ("cp", "tucker", "concat"):
        conversion = collab.convert(native, collab.ConversionConfig(params=0.6, form=form, **QUICK))
        assert conversion.report.query_key.ratio <= 0.6
        layer = collab.inspect(conversion.model).layers[0]
        assert layer.query_key == conversion.report.layers[0].query_key.after
        assert layer.shapes["position_content"] == (4, 32)
        assert form != "concat" or layer.flops[32] < layer.flops_original[32]
    assert {option.form for option in collab.plan(native, fractions=(0.5,)).options} == {"concat", "cp", "tucker"}


def test_arithmetic_of_positions_is_counted() -> None:
    """The original projects all 2·4 rows for both terms and scores T tokens against each."""
    length, width, rows = 32, 32, 2 * 4
    with_rows, without = (
        collab.inspect(tiny_model(DEBERTA, **changes), lengths=(length,)).layers[0].flops[length]
        for changes in ({}, {"relative_attention": False})
    )
    assert with_rows - without == 2 * 2 * rows * (width * width + length * width)


@every_form
def test_expands_to_the_native_class(form: str) -> None:
    for terms in TERMS:
        native = tiny_model(DEBERTA, pos_att_type=terms)
        model = converted(native, 32, form)
        expansion = collab.expand(model)
        assert type(expansion.model) is type(native)
        assert difference(native, expansion.model, text()) < 1e-4


def test_heads_are_pruned_as_if_they_were_silent() -> None:
    native = tiny_model(DEBERTA)
    for model in (native, converted(native, 32, "cp"), converted(native, 32, "tucker", content="folded")):
        names = [layer.name for layer in collab.inspect(model).layers]
        pruned = collab.prune(model, {names[0]: [0, 2], names[1]: []}).model
        silent = tiny_model(DEBERTA)
        with torch.no_grad():
            for layer, gone in zip(silent.encoder.layer, ([1, 3], range(4)), strict=True):
                for head in gone:
                    layer.attention.self.value_proj.weight[head * 8 : head * 8 + 8] = 0
                    layer.attention.self.value_proj.bias[head * 8 : head * 8 + 8] = 0
        assert difference(silent, pruned, text()) < 2e-5
        attentions = pruned(**text(), output_attentions=True).attentions
        assert [weights.shape[1] for weights in attentions] == [2, 0]


def test_reloads_in_every_way(tmp_path: Path) -> None:
    native = tiny_model(DEBERTA)
    save_with_tokenizer(native, tmp_path / "in")
    for form in FORMS:
        collab.checkpoints.convert(
            str(tmp_path / "in"),
            tmp_path / form,
            collab.ConversionConfig(rank=12, form=form, **QUICK),
            calibration=collab.CalibrationRequest("synthetic"),
        )
    check_reloads({tmp_path / form: probe_inputs(native) for form in FORMS}, tmp_path)


class TestRefusals:
    def test_projections_of_their_own(self, tmp_path: Path) -> None:
        for changes in ({"share_att_key": False}, {"share_att_key": False, "pos_att_type": ["c2p"]}):
            config = DEBERTA.config(**changes)
            with pytest.raises(UnsupportedArchitectureError, match="share_att_key=false"):
                require_family(config)
        save_with_tokenizer(DebertaV2Model(config), tmp_path / "in")
        with pytest.raises(UnsupportedArchitectureError, match="share_att_key=false"):
            collab.checkpoints.convert(
                str(tmp_path / "in"), tmp_path / "out", collab.ConversionConfig(rank=8, compare=False)
            )

    def test_no_projections_to_share(self) -> None:
        """Without relative positions there is nothing that could have projections of its own."""
        native = tiny_model(DEBERTA, share_att_key=False, relative_attention=False)
        assert difference(native, converted(native, 32), text()) < 2e-5


def test_compression(tmp_path: Path) -> None:
    native = tiny_model(DEBERTA)
    rows = [" ".join(LETTERS[(i + j) % 26] for j in range(6)) for i in range(48)]
    save_with_tokenizer(native, tmp_path)
    checkpoint = collab.load(str(tmp_path))
    calibration = collab.calibrate(collab.Checkpoint(checkpoint.model, checkpoint.tokenizer), rows)
    compressed = collab.compress(checkpoint.model, collab.CompressionConfig(flops=0.6), calibration=calibration)
    with torch.no_grad():
        assert all(value.isfinite().all() for value in tensors(compressed.model(**probe_inputs(native))).values())

"""Healing: it makes a conversion better or leaves it alone, goes on after an interruption, and refuses bad input."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from processes import command, kill_midway, run
from tiny import (
    BERT,
    BY_TYPE,
    FORMS,
    LETTERS,
    WORDS,
    Row,
    changed,
    converted,
    few_kinds,
    largest_difference,
    often,
    outputs,
    save_with_tokenizer,
    state,
    tiny_model,
)
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BeitForSemanticSegmentation,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedModel,
    ViTImageProcessor,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import collab
from collab.data.lengths import with_fragments, with_joined
from collab.models.inputs import probe_inputs
from collab.training.arguments import accumulation_steps_of
from collab.training.learning_rate import find_learning_rate
from collab.training.muon import Muon, input_scales

pytest.importorskip("accelerate", reason="the train extra is not installed")

RUN = collab.RunOptions(learning_rate=3e-3, batch_size=8, steps=24, evaluations=3, device="cpu")
FEW = collab.HealOptions(samples=96, run=RUN)
_DRAWN = random.Random(0)
TEXT = [" ".join(_DRAWN.choices(LETTERS, k=2 + i % 9)) for i in range(512)]


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A tiny classifier with its tokenizer, and text beside it."""
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    return original


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


class TestHeal:
    @few_kinds
    def test_comes_closer_in_every_layer(self, row: Row) -> None:
        teacher = tiny_model(row)
        model = converted(teacher)
        if model.main_input_name != "input_ids":
            pytest.skip("there is no random data for images and recordings")
        before = state(model)
        healing = collab.heal(model, teacher, options=FEW)
        assert healing.report.improved
        assert healing.report.after["loss"] < healing.report.before["loss"]
        trained = changed(model, before)
        assert trained
        assert all(
            any(part in name for part in (".query.", ".key.", "mixing", "content", "q_lin", "k_lin"))
            for name in trained
        )
        trainable = {name for name, parameter in teacher.named_parameters() if parameter.requires_grad}
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        assert not frozen & trainable  # positions that are computed were not trainable before, either
        assert not model.training

    @pytest.mark.parametrize(
        ("form", "content"), often(product(FORMS, ("exact", "folded")), {"cp-folded", "tucker-exact", "concat-folded"})
    )
    def test_every_form(self, form: str, content: str) -> None:
        teacher = tiny_model(BERT)
        model = converted(teacher, 8, form, content=content)
        assert collab.heal(model, teacher, options=FEW).report.improved

    def test_modes_stay(self) -> None:
        """A module that the caller has set apart stays apart."""
        teacher = tiny_model(BERT)
        model = converted(teacher)
        networks = torch.nn.ModuleList([teacher.train(), model.train()])
        for network in networks:
            network.embeddings.eval()
        before = [module.training for module in networks.modules()]
        collab.heal(model, teacher, options=replace(FEW, run=replace(RUN, learning_rate=None, steps=2)))
        assert [module.training for module in networks.modules()] == before

    @pytest.mark.parametrize("trainable", ["attention", "all"])
    def test_more_can_be_trained(self, trainable: str) -> None:
        teacher = tiny_model(BERT)
        model = converted(teacher, 4)
        before = state(model)
        assert collab.heal(model, teacher, options=replace(FEW, trainable=trainable)).report.improved
        trained = changed(model, before)
        assert any(".value." in name for name in trained)
        assert any("attention.output.dense" in name for name in trained)
        assert any("intermediate" in name for name in trained) == (trainable == "all")

    def test_never_worse(self, caplog: pytest.LogCaptureFixture) -> None:
        """An exact conversion cannot get better, and steps far too large make any worse."""
        teacher = tiny_model(BERT)
        for rank, rate in ((32, 1e-3), (8, 10.0)):
            model = converted(teacher, rank)
            before = outputs(model)
            healing = collab.heal(model, teacher, options=replace(FEW, run=replace(RUN, learning_rate=rate)))
            assert not healing.report.improved
            assert largest_difference(before, outputs(model)) == 0
            assert "loss" in caplog.messages[-1]
            assert "left unchanged" in caplog.messages[-1]

    def test_never_answers_worse(self, caplog: pytest.LogCaptureFixture) -> None:
        """A head that was fitted to a conversion's states fits no longer when those come closer to the original's."""
        teacher = tiny_model(BERT, BertForSequenceClassification)
        with torch.no_grad():
            teacher.classifier.weight += 3  # of both logits alike: most of their error, and none of the divergence
        model = converted(teacher)
        inputs = {"input_ids": torch.randint(60, (512, 12), generator=torch.Generator().manual_seed(0))}
        with torch.no_grad():
            states = torch.nn.functional.pad(model.base_model(**inputs).pooler_output, (0, 1), value=1.0)  # (N, D + 1)
            missing = (teacher(**inputs).logits - model(**inputs).logits).diff(dim=1)  # (N, 1)
            half = torch.linalg.lstsq(states, missing).solution.squeeze(1) / 2  # (D + 1,)
            model.classifier.weight += torch.stack([-half[:-1], half[:-1]])
            model.classifier.bias += torch.stack([-half[-1], half[-1]])
            before = model(**inputs).logits
        healing = collab.heal(model, teacher, options=FEW)
        assert not healing.report.improved
        record = healing.report.to_dict()
        assert record["after"] == record["before"]
        with torch.no_grad():
            assert torch.equal(model(**inputs).logits, before)
        assert "it is left unchanged" in caplog.messages[-1]

    @pytest.mark.parametrize("shape", [(12, 20), (20, 12), (16, 16), (24,), (3, 4, 5)])
    def test_muon_changes_all_directions_alike(self, shape: tuple[int, ...]) -> None:
        """Singular values from 1 to 10 become about equal, and a step has a fifth of the rate as its size."""
        weight = torch.nn.Parameter(torch.zeros(shape))
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        if len(shape) == 2:
            left, values, right = torch.linalg.svd(gradient, full_matrices=False)
            gradient = left @ torch.diag(torch.linspace(1, 10, len(values))) @ right
        weight.grad = gradient.clone()
        muon = Muon([weight], lr=0.1, weight_decay=0.5)
        muon.step()
        change = -weight.detach()
        assert 0.5 < float(change.square().mean().sqrt()) / 0.02 < 1.5
        assert float((change * gradient).sum()) > 0
        if len(shape) == 2:
            values = torch.linalg.svdvals(change)
            assert values[0] < 4 * values[-1]
        before = weight.detach().clone()
        weight.grad = torch.zeros(shape)
        muon.param_groups[0]["momentum"] = 0.0
        muon.step()
        assert torch.allclose(weight, 0.95 * before)  # weight decay alone

    @pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
    @pytest.mark.parametrize("whole", [True, False])
    def test_muon_changes_outputs_alike(self, shape: tuple[int, ...], whole: bool) -> None:
        """With scales S of the inputs, a change is orthogonal(G S) S."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape, generator=generator)
        states = torch.randn(200, shape[1], generator=generator) * torch.linspace(0.2, 3, shape[1])
        diagonal = states.square().mean(0)
        moment = states.T @ states / len(states) if whole else diagonal
        values, vectors = torch.linalg.eigh(moment if whole else moment.diag())
        root = vectors @ (values.sqrt().reciprocal().diag()) @ vectors.T
        Muon([weight], lr=1.0, scales={weight: root if whole else diagonal.rsqrt()}).step()
        scaled = -weight.detach() @ torch.linalg.inv(root)
        values = torch.linalg.svdvals(scaled)
        assert values[0] < 4 * values[-1]
        assert float((scaled * (weight.grad @ root)).sum()) > 0

    def test_scales_follow_from_the_inputs(self) -> None:
        """Whole matrices of them, but for wide layers; none for layers that are not trained, not called or given 0."""
        inner = torch.nn.ModuleDict(
            {name: torch.nn.Linear(6, 3) for name in ("whole", "frozen", "zeros", "idle")}
            | {"twice": torch.nn.Linear(6, 6), "wide": torch.nn.Linear(7, 3)}
        )

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, states: torch.Tensor) -> None:
                assert not self.training
                inner["twice"](inner["twice"](inner["whole"](states).repeat(1, 1, 2)))
                inner["frozen"](states)
                inner["zeros"](0 * states)
                inner["wide"](torch.nn.functional.pad(states, (0, 1), value=2.0))

        inner["frozen"].requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        size = torch.tensor([30.0, 1, 1, 1, 1, 0.01])
        batches = [{"states": size * torch.randn(2, 50, 6, generator=generator)} for _ in range(3)]
        scales = input_scales(Model(), batches)
        assert scales.keys() == {inner[name].weight for name in ("whole", "twice", "wide")}
        rows = torch.cat([batch["states"].flatten(0, 1) for batch in batches])
        moment = rows.T @ rows
        moment = moment / moment.diagonal().mean() + 0.1 * torch.eye(6)
        logarithm = torch.linalg.eigvalsh(scales[inner["whole"].weight]).log().sum()
        assert float(logarithm) == pytest.approx(-0.35 * float(moment.logdet()), abs=1e-4)
        assert torch.allclose(scales[inner["whole"].weight] @ moment, moment @ scales[inner["whole"].weight], atol=1e-3)
        assert scales[inner["twice"].weight].shape == (6, 6)
        wide = scales[inner["wide"].weight]
        assert wide.shape == (7,)
        squares = torch.cat([rows.square().mean(0), torch.tensor([4.0])])
        assert torch.allclose(wide, (squares / squares.mean() + 0.1) ** -0.35, rtol=1e-4)

    def test_optimizers_differ(self) -> None:
        teacher = tiny_model(BERT)
        losses = set()
        for optimizer in ("adamw", "muon"):
            options = replace(FEW, trainable="layers", optimizer=optimizer)
            report = collab.heal(converted(teacher, 4), teacher, options=options).report
            assert report.improved
            assert report.settings["optimizer"] == optimizer
            losses.add(report.to_dict()["after"]["loss"])
        assert len(losses) == 2

    @pytest.mark.slow
    def test_finds_a_learning_rate(self) -> None:
        """A model that is nearly its original learns in smaller steps. The same rate by name does the same."""
        rates = {}
        for rank in (4, 32):
            teacher = tiny_model(BERT)
            model, again = (converted(teacher, rank) for _ in range(2))
            if rank == 32:
                noise = 3e-4 * torch.randn(32, 32)
                for each in (model, again):
                    with torch.no_grad():
                        each.encoder.layer[0].attention.self.query.weight += noise
            settings = replace(RUN, learning_rate=None)
            healing = collab.heal(model, teacher, options=replace(FEW, run=settings))
            assert healing.report.improved
            rates[rank] = healing.report.settings["run"]["learning_rate"]
            options = replace(FEW, run=replace(settings, learning_rate=rates[rank]))
            assert collab.heal(again, teacher, options=options).report.after == healing.report.after
        assert rates[32] < rates[4] <= 1e-3

    @pytest.mark.parametrize(
        ("native_class", "limits"),
        [(BertForSequenceClassification, (0.0, 3e-5)), (BertForMaskedLM, (1e-4, 5e-4)), (None, (0.0, 5e-4))],
    )
    def test_limits_of_the_learning_rate_of_layers(
        self, native_class: type[PreTrainedModel] | None, limits: tuple[float, float]
    ) -> None:
        """A model that is nearly its original: of the outputs that every token has, many are seen in a step."""
        teacher = tiny_model(BERT, native_class)
        model = converted(teacher, 32)
        with torch.no_grad():
            model.get_submodule("bert" if native_class else "").encoder.layer[0].output.dense.weight.add_(1e-4)
        run = replace(RUN, learning_rate=None, steps=12, evaluations=1)
        report = collab.heal(model, teacher, options=replace(FEW, trainable="layers", run=run)).report
        assert limits[0] <= report.settings["run"]["learning_rate"] <= limits[1]

    @pytest.mark.parametrize("optimizer", often(["adamw", "muon"], {"muon"}))
    def test_a_resumed_run_does_not_search_its_learning_rate_again(
        self, optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With Muon, the inputs are scaled by the states before the first step, not by those of the checkpoint."""
        teacher, calls = tiny_model(BERT), []
        model = converted(teacher)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        monkeypatch.setattr(
            "collab.training.heal.find_learning_rate",
            lambda *of, **named: calls.append(1) or find_learning_rate(*of, **named),
        )
        options = replace(FEW, optimizer=optimizer, run=replace(RUN, learning_rate=None))

        def stop(what: str, done: int, total: int | None) -> None:
            if done == RUN.steps:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collab.heal(model, teacher, options=options, work=tmp_path / "work", progress=stop)
        model.load_state_dict(start)
        resumed = collab.heal(model, teacher, options=options, work=tmp_path / "work").report
        assert len(calls) == 1
        model.load_state_dict(start)
        whole = collab.heal(model, teacher, options=options).report
        assert resumed.settings == whole.settings
        assert resumed.after == pytest.approx(whole.after, rel=1e-5)

    def test_another_teacher_is_another_run(self, tmp_path: Path) -> None:
        """Though neither has a name."""
        teacher = tiny_model(BERT)
        model = converted(teacher)

        def stop(what: str, done: int, total: int | None) -> None:
            if done == RUN.steps:
                raise KeyboardInterrupt

        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(KeyboardInterrupt):
            collab.heal(model, teacher, options=FEW, work=tmp_path / "work", progress=stop)
        model.load_state_dict(start)
        with torch.no_grad():
            teacher.encoder.layer[0].output.dense.bias += 0.1
        with pytest.raises(collab.errors.TrainingError, match="another model"):
            collab.heal(model, teacher, options=FEW, work=tmp_path / "work")

    def test_another_config_is_another_run(self, tmp_path: Path) -> None:
        """Blocks of other lengths leave the weights as they are."""
        teacher = tiny_model(BERT)
        models = [
            collab.lengthen(converted(teacher), collab.LongOptions(block=block, dense_below=4)).model
            for block in (4, 16)
        ]

        def stop(what: str, done: int, total: int | None) -> None:
            if done == RUN.steps:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collab.heal(models[0], teacher, options=FEW, work=tmp_path / "work", progress=stop)
        with pytest.raises(collab.errors.TrainingError, match="another model"):
            collab.heal(models[1], teacher, options=FEW, work=tmp_path / "work")

    @pytest.mark.parametrize("losses", [(4.0, 3.0, 5.0, 2.0), (4.0, 2.0, 5.0, 3.0)], ids=["last", "first"])
    def test_the_best_weights_stay_where_weights_are_shared(
        self, losses: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The losses before the first step and of three evaluations, of which the last or the first is the best."""
        teacher = tiny_model(BERT)
        models = {shard: converted(teacher) for shard in (False, True)}
        reports = {}
        for shard, model in models.items():
            measured = iter(losses)
            monkeypatch.setattr(
                "collab.training.distillation.DistillationTrainer.measured",
                lambda trainer, measured=measured: {"loss": next(measured)},
            )
            options = replace(FEW, run=replace(RUN, steps=6, shard=shard))
            reports[shard] = collab.heal(model, teacher, options=options).report
        assert reports[True].best_step == reports[False].best_step == 2 * (losses.index(2.0))
        for name, tensor in models[False].state_dict().items():
            assert torch.equal(models[True].state_dict()[name], tensor), name

    def test_an_interrupted_model_is_left_unchanged_and_resumes(self, tmp_path: Path) -> None:
        teacher = tiny_model(BERT)
        model, whole = converted(teacher), converted(teacher)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        options = replace(FEW, run=replace(RUN, steps=24, evaluations=3, learning_rate=1e-3))

        def stop(what: str, done: int, total: int | None) -> None:
            if what.startswith("training") and done == 12:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collab.heal(model, teacher, options=options, work=tmp_path / "work", progress=stop)
        assert all(torch.equal(tensor, start[name]) for name, tensor in model.state_dict().items())
        assert list((tmp_path / "work").glob("checkpoint-8"))
        collab.heal(model, teacher, options=options, work=tmp_path / "work")
        collab.heal(whole, teacher, options=options)
        assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in model.state_dict().items())

    def test_a_work_folder_may_be_moved_and_keeps_its_precision(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though the run was interrupted after its last step, when only its best weights are to be read."""
        teacher = tiny_model(BERT)
        model = converted(teacher)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        options = replace(FEW, run=replace(RUN, precision="auto"))
        trained: dict[str, torch.Tensor] = {}

        def stopped_at_the_end(*_: object) -> None:
            trained.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
            raise KeyboardInterrupt

        with monkeypatch.context() as interrupted:
            interrupted.setattr("collab.training.heal._what_got_worse", stopped_at_the_end)
            interrupted.setattr("collab.training.arguments.fastest_precision", lambda device: "bfloat16")
            with pytest.raises(KeyboardInterrupt):
                collab.heal(model, teacher, options=options, work=tmp_path / "work")
        assert all(torch.equal(tensor, start[name]) for name, tensor in model.state_dict().items())
        (tmp_path / "work").rename(tmp_path / "moved")
        monkeypatch.setattr("collab.training.arguments.fastest_precision", lambda device: "float32")
        report = collab.heal(model, teacher, options=options, work=tmp_path / "moved").report
        assert report.improved
        assert report.settings["run"]["precision"] == "bfloat16"
        assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())

    def test_few_rows_held_out(self) -> None:
        """Fewer than a batch, and all of them count."""
        teacher = tiny_model(BERT)
        model = converted(teacher)
        options = replace(FEW, samples=44, held_out=3, run=replace(RUN, batch_size=16, steps=4))
        record = collab.heal(model, teacher, options=options).report.to_dict()
        assert 1 <= record["data"]["held_out"] <= 3
        assert record["after"]["loss"] <= record["before"]["loss"]

    @pytest.mark.parametrize(("steps", "count"), [(10, 3), (24, 3), (2, 2)])
    def test_so_many_evaluations(self, steps: int, count: int) -> None:
        teacher = tiny_model(BERT)
        options = replace(FEW, run=replace(RUN, steps=steps))
        evaluations = collab.heal(converted(teacher), teacher, options=options).report.evaluations
        assert len(evaluations) == count
        assert evaluations[-1]["step"] == steps

    @pytest.mark.parametrize("close", [1.0, 1.002])
    def test_numbers_that_are_alike_have_no_spread_to_be_relative_to(self, close: float) -> None:
        from collab.training.distillation import output_errors

        teacher = tiny_model(BERT, BertForSequenceClassification, num_labels=1, problem_type="regression")
        rows = torch.tensor([[0.5], [0.5 * close]])
        expected, actual = (SequenceClassifierOutput(logits=values) for values in (rows, 1.1 * rows))
        (error,) = output_errors(teacher, actual, expected, probe_inputs(teacher, 2), 1.0)
        assert float(error) == pytest.approx(0.01, rel=0.1)

    def test_answers_that_are_farther_apart_are_worse(self) -> None:
        from collab.training.heal import _what_got_worse

        before, after = ({"loss": 1.0, "absolute_difference": 0.1}, {"loss": 0.5, "absolute_difference": 0.2})
        assert _what_got_worse(before, after) == ("difference of the answers", 0.1, 0.2)
        assert _what_got_worse(before, after | {"absolute_difference": 0.05}) is None

    def test_padding_does_not_count(self) -> None:
        from collab.training.distillation import relative_errors

        teacher = tiny_model(BERT)
        model = converted(teacher)
        inputs = probe_inputs(model)
        with torch.no_grad():
            answers = [network(**inputs, output_hidden_states=True) for network in (model, teacher)]
            errors = relative_errors(*answers, inputs)
            for states in answers[0].hidden_states:
                states[inputs["attention_mask"] == 0] = 1e6
            assert torch.equal(errors, relative_errors(*answers, inputs))
        assert errors.shape == (2,)

    @pytest.mark.slow
    def test_gradient_accumulation_gives_the_same_result(self) -> None:
        teacher = tiny_model(BERT)
        losses = []
        for pieces in (1, 4):
            model = converted(teacher)
            settings = replace(RUN, gradient_accumulation_steps=pieces, gradient_checkpointing=pieces == 4)
            options = replace(FEW, run=settings)
            losses.append(collab.heal(model, teacher, options=options).report.after["loss"])
        assert losses[0] == pytest.approx(losses[1], rel=0.05)  # a piece's errors are relative to its own rows

    @pytest.mark.parametrize(
        ("longest", "passes"), [(8, 2), (64, 2), (128, 2), (130, 4), (512, 8), (100_000, 128), (None, 4)]
    )
    def test_a_pass_has_so_many_tokens(self, longest: int | None, passes: int) -> None:
        rows = [{"input_ids": [1] * length} for length in (2, longest)] if longest else [{"pixel_values": []}]
        run = collab.RunOptions(batch_size=128, gradient_accumulation_steps=None)
        assert accumulation_steps_of(run, rows) == passes
        assert accumulation_steps_of(replace(run, gradient_accumulation_steps=4), rows) == 4

    @pytest.mark.parametrize(("size", "passes"), [(97, 1), (12, 1), (48, 2)])
    def test_small_batches_are_one_pass(self, size: int, passes: int) -> None:
        run = collab.RunOptions(batch_size=size, gradient_accumulation_steps=None)
        assert accumulation_steps_of(run, [{"input_ids": [1] * 8}]) == passes


class TestHealCommand:
    def test_heals_a_conversion(self, folder: Path, tmp_path: Path) -> None:
        collab.checkpoints.convert(
            str(folder), tmp_path / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        arguments = ("--steps", 60, "--batch-size", 8, "--evaluations", 2, "--learning-rate", 3e-3)
        text = ("--data", tmp_path / "text.txt", "--json")
        done = run("heal", tmp_path / "converted", tmp_path / "healed", *text, *arguments)
        assert done.exit_code == 0, done.stderr
        printed = json.loads(done.stdout)
        assert printed["after"]["loss"] < printed["before"]["loss"]
        assert {path.name for path in tmp_path.iterdir()} == {"original", "converted", "healed", "text.txt"}
        report = json.loads((tmp_path / "healed" / "collab_report.json").read_text())
        assert [step["step"] for step in report["history"]] == ["heal"]
        assert report["settings"]["rank"] == 8
        assert "## Healing" in (tmp_path / "healed" / "README.md").read_text()
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "healed")
        assert type(model).__name__ == "CollabBertForSequenceClassification"
        assert (tmp_path / "healed" / "modeling_collab_bert.py").exists() or list(
            (tmp_path / "healed").glob("collab_*.py")
        )

    def test_the_original_is_known_from_any_folder(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though it was named from where the conversion ran; a report that names the model itself is refused."""
        monkeypatch.chdir(folder.parent)
        assert run("convert", folder.name, "converted", "--rank", 8, "--refine", "none").exit_code == 0
        monkeypatch.chdir(tmp_path / "converted")
        arguments = ("--data", tmp_path / "text.txt", "--steps", 2, "--learning-rate", 1e-3, "--json")
        done = run("heal", ".", tmp_path / "healed", *arguments)
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["before"]["loss"] > 0
        report = json.loads(Path("collab_report.json").read_text())
        assert report["source"] == str(folder)
        Path("collab_report.json").write_text(json.dumps(report | {"source": "."}))
        assert "is the folder of this model" in " ".join(
            run("heal", ".", tmp_path / "again", *arguments).stderr.split()
        )

    def test_the_precision_is_the_one_that_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever a user's configuration of accelerate says."""
        losses = []
        for environment in ("no", "bf16"):
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", environment)
            teacher = tiny_model(BERT)
            options = replace(FEW, run=replace(RUN, steps=2, evaluations=1, precision="float32"))
            losses.append(collab.heal(converted(teacher), teacher, options=options).report.after["loss"])
        assert losses[0] == losses[1]

    def test_convert_and_heal(self, folder: Path, tmp_path: Path) -> None:
        request = collab.HealRequest(collab.DataSource(str(tmp_path / "text.txt")), replace(FEW, samples=512))
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        made = collab.checkpoints.convert(str(folder), tmp_path / "healed", config, heal=request)
        assert made.step(collab.Conversion).calibration["source"] == "text.txt"
        assert made.report.after["loss"] < made.report.before["loss"]
        assert json.loads((tmp_path / "healed" / "collab_report.json").read_text())["history"]
        assert "## Healing" in (tmp_path / "healed" / "README.md").read_text()
        assert {path.name for path in tmp_path.iterdir()} == {"original", "healed", "text.txt"}

    def test_an_original_in_half_precision_in_bfloat16(self, folder: Path, tmp_path: Path) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(folder).half()
        model.save_pretrained(folder)
        run = replace(RUN, steps=4, evaluations=1, precision="bfloat16")
        request = collab.HealRequest(collab.DataSource(str(tmp_path / "text.txt")), replace(FEW, run=run))
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        made = collab.checkpoints.convert(str(folder), tmp_path / "healed", config, heal=request)
        assert made.report.after["loss"] <= made.report.before["loss"]
        assert made.model.dtype == torch.float16

    @pytest.mark.slow
    def test_killed_and_resumed(self, folder: Path, tmp_path: Path) -> None:
        collab.checkpoints.convert(
            str(folder), tmp_path / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        arguments = ["--data", tmp_path / "text.txt", "--steps", 40, "--batch-size", 8, "--evaluations", 4, "--json"]

        def heal(output: str) -> list[object]:
            return ["heal", tmp_path / "converted", tmp_path / output, *arguments]

        whole = run(*heal("whole"))
        work = tmp_path / "killed.training"
        checkpoint = kill_midway(command(*heal("killed")), work)
        assert not (tmp_path / "killed").exists()
        AutoModel.from_pretrained(checkpoint)
        refused = run(*heal("killed"), "--seed", 1)
        assert refused.exit_code == 1
        assert "--restart" in refused.stderr
        resumed = run(*heal("killed"))
        assert "Resuming from" in resumed.stderr
        first, second = (json.loads(done.stdout) for done in (whole, resumed))
        for when in ("before", "after"):
            assert first[when] == pytest.approx(second[when], rel=1e-6)
        assert first["evaluations"] == [pytest.approx(evaluation) for evaluation in second["evaluations"]]
        states = [AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "killed")]
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-6) for name in states[0])
        assert not work.exists()


class TestBadInput:
    def test_a_teacher_that_does_not_fit(self) -> None:
        teacher = tiny_model(BERT)
        model = converted(teacher)
        with pytest.raises(collab.errors.ConfigurationError, match="hidden states of width 16, this one 32"):
            collab.heal(model, tiny_model(BERT, hidden_size=16), options=FEW)
        with pytest.raises(collab.errors.ConfigurationError, match="a vocabulary of 61"):
            collab.heal(model, tiny_model(BERT, vocab_size=61), options=FEW)

    def test_another_tokenizer(self, folder: Path, tmp_path: Path) -> None:
        collab.checkpoints.convert(
            str(folder), tmp_path / "converted", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        other = save_with_tokenizer(AutoModel.from_pretrained(folder), tmp_path / "other", reversed(WORDS))
        done = run("heal", tmp_path / "converted", tmp_path / "out", "--teacher", other)
        assert done.exit_code == 2
        assert "different tokenizers" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_loss_that_is_no_number(self, tmp_path: Path) -> None:
        teacher = tiny_model(BERT)
        model = converted(teacher)
        settings = replace(RUN, learning_rate=1e30, warmup=0.0)
        with pytest.raises(
            collab.errors.TrainingError, match=r"The loss is not a number .* at step \d+\..* restart=True \(--restart\)"
        ):
            collab.heal(model, teacher, options=replace(FEW, run=settings), work=tmp_path / "work")

    def test_too_little_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from collab.training.distillation import DistillationTrainer

        def fail(*arguments: object, **named: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(DistillationTrainer, "compute_loss", fail)
        teacher = tiny_model(BERT)
        model = converted(teacher)
        helps = r"gradient_accumulation_steps=4 .* gradient_checkpointing"
        with pytest.raises(collab.errors.TrainingError, match=helps):
            collab.heal(model, teacher, options=FEW)

    def test_nothing_to_heal(self) -> None:
        teacher = tiny_model(BERT)
        with pytest.raises(collab.errors.ConfigurationError, match="no collaborative attention"):
            collab.heal(tiny_model(BERT), teacher, options=FEW)

    @pytest.mark.parametrize(
        "values",
        [
            {"batch_size": 0},
            {"learning_rate": 0.0},
            {"gradient_accumulation_steps": 3},
            {"gradient_accumulation_steps": 0},
            {"precision": "fp8"},
            {"steps": 0},
            {"warmup": 1.0},
        ],
    )
    def test_options(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            replace(RUN, **values)

    def test_options_of_healing(self) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="held_out must be a whole number"):
            replace(FEW, held_out=0)
        with pytest.raises(collab.errors.ConfigurationError, match="fragments must be from 0 to 1"):
            replace(FEW, fragments=1.5)
        with pytest.raises(collab.errors.ConfigurationError, match="joined must be from 0 to 1"):
            replace(FEW, joined=-0.1)

    def test_statistics_of_a_head_stay_as_they_are(self) -> None:
        """Those of batch normalization, which training changes."""
        teacher = tiny_model(BY_TYPE["beit"], BeitForSemanticSegmentation)
        model = converted(teacher)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        assert any("running_var" in name for name in before)
        pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
        student = collab.Checkpoint(model, ViTImageProcessor(size={"height": 16, "width": 16}))
        options = replace(FEW, run=replace(RUN, steps=2, evaluations=1))
        collab.heal(student, teacher, list(map(Image.fromarray, pixels)), options=options)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, before[name]), name

    def test_float16_without_a_gpu(self) -> None:
        teacher = tiny_model(BERT)
        model = converted(teacher)
        with pytest.raises(collab.errors.ConfigurationError, match="float16 trains on a GPU"):
            collab.heal(model, teacher, options=replace(FEW, run=replace(RUN, precision="float16")))

    def test_an_original(self, folder: Path, tmp_path: Path) -> None:
        done = run("heal", folder, tmp_path / "healed", "--data", "synthetic")
        assert done.exit_code == 2
        assert "is not converted, so there is nothing to heal" in " ".join(done.stderr.split())

    def test_without_a_report(self, folder: Path, tmp_path: Path) -> None:
        converted(AutoModel.from_pretrained(folder)).save_pretrained(tmp_path / "bare")
        done = run("heal", tmp_path / "bare", tmp_path / "out")
        assert done.exit_code == 2
        assert "--teacher" in done.stderr


class TestFragments:
    def test_an_embedder_is_healed_on_fragments_and_joined_rows_too(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        teacher = collab.load(str(save_with_tokenizer(tiny_model(BERT).base_model, tmp_path / "embedder")))
        model = converted(teacher.model)
        seen: list[int] = []
        teacher.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        options = replace(FEW, fragments=0.5, joined=0.5)
        healing = collab.heal(collab.Checkpoint(model, teacher.processor), teacher, TEXT, options=options)
        assert healing.report.improved
        assert (healing.report.settings["fragments"], healing.report.settings["joined"]) == (0.5, 0.5)
        assert max(seen) > max(len(teacher.processor(text)["input_ids"]) for text in TEXT)

    @given(part=st.floats(0, 1), seed=st.integers(0, 9))
    def test_a_fragment_is_a_run_of_a_row(self, part: float, seed: int) -> None:
        rows = [{"input_ids": [1, *range(10, 10 + n), 2], "attention_mask": [1] * (n + 2)} for n in range(40)]
        rows.append({"input_ids": [1, *range(10, 30), 2, *range(30, 50), 2], "attention_mask": [1] * 43})
        tokenizer = SimpleNamespace(all_special_ids=[1, 2, 3], unk_token_id=3)
        cut = with_fragments(rows, part, tokenizer, seed)
        assert cut[-1] is rows[-1]
        for row, fragment in zip(rows, cut, strict=True):
            ids = fragment["input_ids"]
            assert (ids[0], ids[-1]) == (1, 2)
            assert fragment["attention_mask"] == [1] * len(ids)
            assert fragment is row or (2 <= len(ids) - 2 <= 12 and ids[1:-1] == list(range(ids[1], ids[-2] + 1)))
        if part == 0:
            assert all(fragment is row for row, fragment in zip(rows, cut, strict=True))

    @given(part=st.floats(0, 1), longest=st.integers(2, 300), seed=st.integers(0, 9))
    def test_a_joined_row_goes_on_with_other_rows(self, part: float, longest: int, seed: int) -> None:
        rows = [
            {"input_ids": [1, *range(10, 10 + n), 2], "attention_mask": [1] * (n + 2), "decoder_input_ids": [7]}
            for n in range(1, 60)
        ]
        tokenizer = SimpleNamespace(all_special_ids=[1, 2, 3], unk_token_id=3)
        joined = with_joined(rows, part, longest, tokenizer, seed)
        for row, longer in zip(rows, joined, strict=True):
            ids, before = longer["input_ids"], row["input_ids"]
            assert ids[: len(before) - 1] == before[:-1]
            assert ids[-1] == 2
            assert not {1, 2} & {*ids[1:-1]}
            assert longer["attention_mask"] == [1] * len(ids)
            assert longer["decoder_input_ids"] == [7]
            assert longer is row or max(24, len(before)) <= len(ids) <= longest
        if part == 0 or longest < 24:
            assert all(longer is row for row, longer in zip(rows, joined, strict=True))
        if part == 1 and longest >= 100:
            assert sum(longer is not row for row, longer in zip(rows, joined, strict=True)) > 10

    def test_pairs_are_not_joined(self) -> None:
        pair = {"input_ids": [1, 10, 2, 11, 2], "attention_mask": [1] * 5}
        row = {"input_ids": [1, 10, 2], "attention_mask": [1] * 3}
        tokenizer = SimpleNamespace(all_special_ids=[1, 2], unk_token_id=3)
        assert with_joined([pair], 1.0, 64, tokenizer, 0) == [pair]
        assert with_joined([row, *[pair] * 9], 1.0, 64, tokenizer, 0)[1:] == [pair] * 9

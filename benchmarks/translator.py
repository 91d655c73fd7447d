"""Small translation models for benchmarks: the data, a shared vocabulary, resumable training, beam search and BLEU."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import both_sides, kept, shared_data
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback

from collab.evaluation.translation import bleu
from collab.io.staging import atomic_write
from collab.io.unfinished import WHOLE, drop_other_checkpoints, newest_checkpoint
from collab.modeling.collab_marian import CollabMarianConfig, CollabMarianMTModel
from collab.models.states import evaluating

WORK = Path(__file__).parent / "work"
JUDGED = ("test_2017", "val")
FILES = {"train": "train", "val": "val", "test_2017": "test_2017_flickr"}
PAD, END = "<pad>", "</s>"
HEADS = 8
RESAMPLES = 1000


@dataclass(frozen=True)
class Setting:
    """The size of everything.

    Attributes:
        name: of the results and of the work folder.
        rows: pairs to train on, and to judge on of each set; None for all.
        width: D of the model.
        units: size of the vocabulary.
        widths: R of the models that are compared with the one of width D, the largest first.
        seeds: of the reference; the first is that of everything else.
        steps: of training from scratch.
        longer: steps of training the reference, with more dropout, to see what its shape can reach.
        again: steps of training a second time.
        heal_steps: steps of healing.
        refine_steps: steps of refining every layer.
        batch_size: pairs in a step of training; half as many in one of healing.
        beams: of beam search.
        ablated_rows: validation rows that are translated without a head.
    """

    name: str
    rows: int | None
    width: int
    units: int
    widths: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    longer: int
    again: int
    heal_steps: int
    refine_steps: int
    batch_size: int
    beams: int
    ablated_rows: int


class Keeper(TrainerCallback):
    """Marks the complete checkpoints of a training, with the CPU seconds that led to each; see `training.work`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        last = newest_checkpoint(folder)
        self._before = float((last / WHOLE).read_text()) if last else 0.0
        self._start = time.process_time()

    @property
    def seconds(self) -> float:
        """The CPU seconds of this training, without those of steps that were lost."""
        return self._before + time.process_time() - self._start

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Marks the checkpoint, and deletes the one before it."""
        name = f"checkpoint-{state.global_step}"
        (self.folder / name / WHOLE).write_text(str(self.seconds))
        drop_other_checkpoints(self.folder, name)


class Training(Seq2SeqTrainer):
    """With label smoothing on the tokens of targets alone, because the vocabulary is a third of the work."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross entropy with smoothed labels, the mean over the tokens of a step."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")  # (B, T)
        with self.accelerator.autocast():  # of itself, Accelerate wraps no call but that of the whole model
            states = model.model(**inputs).last_hidden_state[labels >= 0]  # (N, D)
            scores = model.lm_head(states) + model.final_logits_bias  # (N, V)
        smoothing = self.args.label_smoothing_factor
        return functional.cross_entropy(scores.float(), labels[labels >= 0], label_smoothing=smoothing)


class Translator:
    """Multi30k, English to German, and what is done with it in one setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.folder = WORK / setting.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_setting()

    def _check_setting(self) -> None:
        """Stops if the work folder or the results are of another setting."""
        file, now = self.folder / "setting.json", json.loads(json.dumps(asdict(self.setting)))
        of_work = json.loads(file.read_text()) if file.exists() else now
        if not of_work == kept(self.setting.name).get("setting", now) == now:
            results = f"benchmarks/results/{self.setting.name}.*"
            raise SystemExit(f"{self.folder} or {results} is of another setting. Move both away.")
        with atomic_write(file) as partial:
            partial.write_text(json.dumps(now, indent=2))

    def pairs(self, split: str) -> list[tuple[str, str]]:
        """The sentences of ``train``, ``val`` or ``test_2017``, in both languages."""
        texts = []
        for language in ("en", "de"):
            file = shared_data() / "data" / "multi30k" / f"{FILES[split]}.{language}.gz"
            texts.append(gzip.decompress(file.read_bytes()).decode().splitlines()[: self.setting.rows])
        return list(zip(*texts, strict=True))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Byte pairs of both languages, learned from the training rows once."""
        output = self.folder / "tokenizer"
        with FileLock(self.folder / "tokenizer.lock"):
            if not output.exists():
                partial = output.with_name("tokenizer.partial")
                self._learn_tokenizer().save_pretrained(partial)
                partial.rename(output)
        return PreTrainedTokenizerFast.from_pretrained(output)

    def _learn_tokenizer(self) -> PreTrainedTokenizerFast:
        learned = Tokenizer(models.BPE())
        learned.normalizer = normalizers.NFC()
        learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        learned.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=self.setting.units, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
        )
        learned.train_from_iterator((text for pair in self.pairs("train") for text in pair), trainer)
        end = learned.token_to_id(END)
        learned.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
        return PreTrainedTokenizerFast(tokenizer_object=learned, pad_token=PAD, eos_token=END)

    def shape(self) -> dict[str, Any]:
        """A config's values: 3 + 3 layers."""
        width, pad = self.setting.width, self.tokenizer.pad_token_id
        return {
            **both_sides(layers=3, attention_heads=HEADS, ffn_dim=4 * width),
            "d_model": width,
            "vocab_size": len(self.tokenizer),
            "max_position_embeddings": 128,
            "activation_function": "relu",
            "scale_embedding": True,
            "dropout": 0.1,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "eos_token_id": self.tokenizer.eos_token_id,
            "forced_eos_token_id": None,
        }

    def native(self, seed: int, **changes: Any) -> PreTrainedModel:
        """An untrained Marian model."""
        set_seed(seed)
        return MarianMTModel(MarianConfig(**self.shape() | changes))

    def collaborative(self, form: str, rank: int, seed: int) -> PreTrainedModel:
        """An untrained collaborative one; in the ``concat`` form it is the native one with narrower heads."""
        set_seed(seed)
        layers = [{"form": form, "rank": rank, "content": "folded"}]
        return CollabMarianMTModel(CollabMarianConfig(**self.shape(), collab_layers=layers))

    def train(self, model: PreTrainedModel, folder: Path, steps: int, rate: float, seed: int) -> float:
        """Trains a model in place, or goes on where it was stopped; the CPU seconds that it took."""
        arguments = Seq2SeqTrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=self.setting.batch_size,
            learning_rate=rate,
            warmup_steps=max(1, steps // 10),
            adam_beta2=0.98,
            label_smoothing_factor=0.1,
            bf16=True,
            use_cpu=True,
            train_sampling_strategy="group_by_length",
            save_steps=max(1, steps // 10),
            logging_steps=max(1, steps // 10),
            seed=seed,
            report_to="none",
            disable_tqdm=True,
        )
        sources, targets = zip(*self.pairs("train"), strict=True)
        encoded = self.tokenizer(list(sources), text_target=list(targets), truncation=True, max_length=128)
        names = ("input_ids", "attention_mask", "labels")
        rows = [
            dict(zip(names, values, strict=True)) for values in zip(*(encoded[name] for name in names), strict=True)
        ]
        model.set_attn_implementation("eager")  # on a CPU in bfloat16, the gradients of sdpa take several times as long
        keeper, last = Keeper(folder), newest_checkpoint(folder)
        trainer = Training(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorForSeq2Seq(self.tokenizer, model=model),
            callbacks=[keeper],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
        model.eval()
        return keeper.seconds

    def translate(self, model: PreTrainedModel, sentences: Sequence[str], beams: int) -> list[str]:
        """Translations by beam search, 64 sentences of about one length at a time."""
        order = sorted(range(len(sentences)), key=lambda place: len(sentences[place]))
        written = [""] * len(sentences)
        generator: Any = model
        with evaluating(model), torch.no_grad():
            for start in range(0, len(order), 64):
                places = order[start : start + 64]
                batch = self.tokenizer([sentences[place] for place in places], padding=True, return_tensors="pt")
                ids = generator.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    num_beams=beams,
                    do_sample=False,
                    early_stopping=beams > 1,
                    max_new_tokens=64,
                )
                texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
                for place, text in zip(places, texts, strict=True):
                    written[place] = " ".join(text.split())
        return written


def saved(model: PreTrainedModel, folder: Path, seconds: float) -> None:
    """Writes a trained model with the CPU seconds that it took, whole or not at all."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    (partial / "seconds.json").write_text(json.dumps(seconds))
    partial.rename(folder)


def load(folder: Path) -> PreTrainedModel:
    """A model that `saved` wrote."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


def intervals(mine: np.ndarray, other: np.ndarray | None = None) -> dict[str, Any]:
    """BLEU with its 95 % bootstrap interval, and the difference to another model with a paired one.

    Args:
        mine: `ngrams` of a model's translations.
        other: those of the other on the same sentences.
    """
    drawn = np.random.default_rng(0).multinomial(len(mine), np.full(len(mine), 1 / len(mine)), RESAMPLES)

    def interval(value: float, resampled: Sequence[float]) -> dict[str, float]:
        low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
        return {"value": value, "low": low, "high": high}

    value, resampled = bleu(mine.sum(0)), [bleu(sums) for sums in drawn @ mine]
    if other is None:
        return interval(value, resampled)
    apart = [ours - bleu(sums) for ours, sums in zip(resampled, drawn @ other, strict=True)]
    return interval(value, resampled) | {"difference": interval(value - bleu(other.sum(0)), apart)}

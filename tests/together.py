"""Work that 1, 2 and 3 processes do together, forked after the imports, which take longer than the work.

Called with a folder, in which each number of processes leaves a file of its results.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import BERT, BY_TYPE, converted, save_with_tokenizer, tiny_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import BertForSequenceClassification, BertModel, PreTrainedModel

import collab
from collab.data.encoding import names_of
from collab.evaluation.predict import predictions
from collab.models.assembly import in_dtype
from collab.models.inputs import probe_inputs
from collab.models.layers import native_layers
from collab.models.sharded import whole
from collab.processes import (
    check_same,
    from_main,
    gathered,
    has_lost_another,
    is_main_process,
    processes,
    rank,
)
from collab.training.muon import Muon
from collab.training.work import exclusive_lock

MODELS = ("albert", "deberta-v2", "eurobert", "t5")
"""Passes that are pooled, positions as rows, rotary positions, and a decoder."""

COMPRESSED = ("eurobert", "t5")
"""Of them, those that are compressed and refitted, too: a layer is dropped, and a decoder reads an encoder."""

IN_ORDER = "eurobert"
"""Of them, the one that is calibrated in order, too."""

SHARED = ("bert", "deberta-v2", "eurobert", "t5")
"""Models whose weights and sums the processes share, too."""

TOGETHER = {
    1: {*MODELS, *SHARED},
    2: {"albert", "bert", "deberta-v2", "eurobert"},
    3: {"t5"},
}
"""By number of processes, the models that they work on: each of them by one process and by more."""

BALANCED = collab.ConversionConfig(params=0.5, allocation="balanced", solver=collab.SolverOptions(max_sweeps=10))
RUN = collab.RunOptions(batch_size=12, steps=6, evaluations=2, device="cpu")
HEAL = collab.HealOptions(samples=256, trainable="all", run=RUN)
HEAL_SHARED = replace(HEAL, run=replace(RUN, shard=True))


class Shares:
    """Counts what this process has of what the processes divide, as the progress callback of their work."""

    def __init__(self) -> None:
        self._totals: dict[str, int | None] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self._totals[what] = total

    def check(self, what: str, count: int, unit: int = 1) -> None:
        """All of it is done once, and no process does more than its part and what is not divided further."""
        own = self._totals[what] or 0
        assert sum(gathered(own)) == count, what
        assert own < count / processes() + unit, what


def calibrate() -> dict[str, np.ndarray]:
    """Moments of five batches, or of 2, which are fewer than the processes; and the weights of models made by them.

    Each process solves some of the layers, refines on some of the rows, and measures and narrows some of the parts.
    """
    results = {}
    for name in (name for name in MODELS if name in TOGETHER[processes()]):
        torch.manual_seed(0)
        model = tiny_model(BY_TYPE[name])
        rows = [batch | {} for count in (6, 2, 4, 8, 2) for batch in [probe_inputs(model, count)]]
        for number in (2, 5):
            shares = Shares()
            options = collab.CalibrationOptions(held_out=0.5)
            calibration = collab.calibrate(model, rows[:number], options=options, progress=shares)
            shares.check("calibrating", number)
            results |= named(f"{name}/{number}", calibration)
        for kind, steps in (("weights", "none"), ("refined", 2)):
            config = replace(BALANCED, refine=steps, compare=kind == "weights")
            made = collab.convert(model, config, calibration=calibration)
            results |= same(f"{name}/{kind}", made.model)
            for key, value in made.report.agreement.items():
                results[f"{name}/{kind}/agreement.{key}"] = np.array(value)
            assert [layer.name for layer in made.report.layers] == list(native_layers(model))
            assert len(made.report.comparison) == len(made.report.layers) * (kind == "weights")
        if name in COMPRESSED:
            results |= compress(name, model, calibration)
        if name == IN_ORDER:
            config = replace(BALANCED, refine="none", compare=False)
            calibration = collab.calibrate_in_order(model, config, rows, options=options)
            made = collab.convert(model, config, calibration=calibration)
            results |= same(f"{name}/weights-in-order", made.model)
    return results


def same(prefix: str, model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The weights of a model by name, which all processes agree on."""
    return agreed({f"{prefix}/{name}": value.numpy() for name, value in model.state_dict().items()})


def agreed(results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results that all processes agree on, to the last bit."""
    digests = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in results.items()}
    assert all(other == digests for other in gathered(digests))
    return results


def compress(name: str, model: PreTrainedModel, calibration: collab.Calibration) -> dict[str, np.ndarray]:
    """The weights of a compressed model; and its widths, which are in their shapes."""
    shares = Shares()
    made = collab.compress(model, collab.CompressionConfig(flops=0.6), calibration, progress=shares)
    shares.check("measuring layers", len(calibration.train))
    shares.check("measuring widths", 2 * len(native_layers(model)) + len(made.report.layers), unit=2)
    assert made.report.refitted > 0
    return same(f"{name}/weights-compressed", made.model) | {
        f"{name}/weights-compressed/loss": np.array(made.report.predicted_loss)
    }


def calibrate_shared(folder: Path) -> dict[str, np.ndarray]:
    """Moments of models whose weights and sums the processes share, and the weights of a conversion by them."""
    results = {}
    shard = collab.CalibrationOptions(held_out=0.5, shard=True)
    for name in (name for name in SHARED if name in TOGETHER[processes()]):
        torch.manual_seed(0)
        model = tiny_model(BY_TYPE[name])
        rows = [batch | {} for count in (6, 2, 4, 8, 2) for batch in [probe_inputs(model, count)]]
        calibration = collab.calibrate(model, rows, options=shard, scratch=folder if name == "t5" else None)
        results |= named(f"{name}/shared", calibration)
        config = replace(BALANCED, refine="none", compare=False)
        results |= same(f"{name}/weights-shared", collab.convert(model, config, calibration=calibration).model)
        stored = in_dtype(model, torch.float16)
        results |= named(f"{name}/float16-shared", collab.calibrate(stored, rows, options=shard))
        assert stored.dtype == torch.float16
    assert not any(type(each) is DTensor for each in gc.get_objects()), "no share is left"
    return results


def named(prefix: str, calibration: collab.Calibration) -> dict[str, np.ndarray]:
    """All moments by name, which all processes agree on."""
    assert calibration.held_out_moments is not None
    return agreed(
        {
            f"{prefix}/{part}/{layer}/{field}": tensor.numpy()
            for part, layers in (("train", calibration.moments), ("held", calibration.held_out_moments))
            for layer, moments in layers.items()
            for field, tensor in moments.tensors().items()
        }
    )


def score() -> dict[str, np.ndarray]:
    """Every score of every head."""
    torch.manual_seed(0)
    model = tiny_model(BERT, BertForSequenceClassification)
    rows = collab.RowOptions(samples=100, max_length=12)
    scores = collab.score_heads(collab.Checkpoint(model), "synthetic", rows=rows).to_dict()["scores"]
    assert all(each == scores for each in gathered(scores))
    return {
        f"scores/{name}/{layer}": np.array(values)
        for name, by_layer in scores.items()
        for layer, values in by_layer.items()
    }


def pair(
    native_class: type[PreTrainedModel] = BertForSequenceClassification,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A teacher, and a converted model."""
    torch.manual_seed(0)
    teacher = tiny_model(BERT, native_class)
    return converted(teacher), teacher


def heal(folder: Path) -> dict[str, np.ndarray]:
    """Healed weights and the losses on the way, which all processes agree on."""
    model, teacher = pair()
    healing = collab.heal(model, teacher, options=HEAL, work=folder / f"work.{processes()}").report
    losses = [healing.before["loss"], *(entry["loss"] for entry in healing.evaluations)]
    assert len({str(each) for each in gathered(losses)}) == 1
    rate = np.array(healing.settings["run"]["learning_rate"])
    results = same("healed", model) | {"losses": np.array(losses), "rate": rate}
    model, teacher = pair(BertModel)  # whose pooler has no part in the loss
    options = replace(HEAL, run=replace(RUN, steps=2, evaluations=1, learning_rate=1e-3))
    collab.heal(model, teacher, options=options, work=folder / f"pooler.{processes()}")
    return results | same("healed/pooler", model)


def train_by_muon() -> dict[str, np.ndarray]:
    """Weights after three steps by Muon, of which each process keeps a part; of the bias, some have none."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"wide": (6, 9), "tall": (9, 4), "bias": (3,)}

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.randn(shape, generator=generator)
        if processes() == 1:
            return tensor
        return distribute_tensor(tensor, init_device_mesh("cpu", (processes(),)), [Shard(0)])

    weights = {name: nn.Parameter(drawn(shape)) for name, shape in shapes.items()}
    scales = {weights["wide"]: torch.linspace(0.5, 2, 9), weights["tall"]: torch.eye(4) + 0.1}
    optimizer = Muon(weights.values(), lr=0.1, weight_decay=0.1, scales=scales)
    for _ in range(3):
        for name, weight in weights.items():
            weight.grad = drawn(shapes[name])
        optimizer.step()
    return agreed({f"muon/{name}": whole(weight.detach()).numpy() for name, weight in weights.items()})


def predict() -> dict[str, np.ndarray]:
    """Predictions for rows that the processes divide, in their order."""
    model, _ = pair()
    assert len(names_of(model)) == 2
    rows = [
        {"input_ids": [2 + (row * 7 + at) % 50 for at in range(2 + row % 30)], "labels": row % 2} for row in range(300)
    ]

    def collate(features: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in features)  # type: ignore[arg-type]
        ids = [row["input_ids"] + [1] * (longest - len(row["input_ids"])) for row in features]  # type: ignore
        mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in features]  # type: ignore
        labels = torch.tensor([row["labels"] for row in features])
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": labels}

    return dict(predictions("classification", model, rows, collate, divided=True))


def work(folder: Path) -> None:
    """Everything, with one file of results."""
    results = calibrate() | calibrate_shared(folder) | heal(folder) | train_by_muon() | predict() | score()
    assert from_main(rank) == 0
    if is_main_process():
        np.savez(folder / f"{processes()}.npz", **results)


def interrupted(folder: Path, options: collab.HealOptions = HEAL) -> None:
    """Healing of which process 1 ends at once in the middle, after the first checkpoint."""
    model, teacher = pair()
    if rank() == 1:
        from collab.training.trainer import Marker

        ended = Marker.on_step_end

        def on_step_end(self: Marker, args: object, state: object, control: object, **more: object) -> object:
            if state.global_step == 4:  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGKILL)
            return ended(self, args, state, control, **more)  # type: ignore[arg-type]

        Marker.on_step_end = on_step_end  # type: ignore[method-assign,assignment]
    with losing_another():
        collab.heal(model, teacher, options=options, work=folder / "work.killed")


@contextlib.contextmanager
def losing_another() -> Iterator[None]:
    """Ends the process with 3 if it notices that another has ended, and with 4 at any other error."""
    try:
        yield
    except (RuntimeError, collab.CollabError) as error:
        os._exit(3 if has_lost_another(error) or isinstance(error, collab.errors.ProcessError) else 4)


VERBS: dict[str, tuple[Callable[..., collab.Checkpoint], Any, str]] = {
    "convert": (collab.checkpoints.convert, collab.ConversionConfig(params=0.5, refine="none"), "solving"),
    "compress": (collab.checkpoints.compress, collab.CompressionConfig(flops=0.6), "measuring widths"),
}
"""Verbs from folder to folder, their settings, and what they do in all processes after calibration."""


def solve(folder: Path, verb: str, *, killing: bool = False) -> None:
    """Converts or compresses a model in a folder; of the processes, 1 may be killed in the middle."""
    function, config, phase = VERBS[verb]

    def progress(what: str, done: int, total: int | None) -> None:
        if killing and rank() == 1 and what == phase and done == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    request = collab.CalibrationRequest(options=collab.CalibrationOptions(samples=64))
    with losing_another():
        function(str(folder / "original"), folder / verb, config, calibration=request, progress=progress)


def refused(folder: Path) -> None:
    """Processes that were started differently, do not see the same folder, or of which the main one refuses."""

    def refuse() -> None:
        assert is_main_process()
        raise collab.errors.BudgetError("out of reach")

    with pytest.raises(collab.errors.BudgetError, match="out of reach"):
        from_main(refuse)
    with pytest.raises(collab.errors.ConfigurationError, match="differ in the version of x: 0 in process 0"):
        check_same({"the version of x": rank()})
    missing = pytest.raises(collab.errors.TrainingError, match=r"does not see .*file system that all of them share")
    with missing, exclusive_lock(folder / f"not-shared.{rank()}"):
        pass


def resume(folder: Path, options: collab.HealOptions = HEAL) -> None:
    """The rest of that healing."""
    model, teacher = pair()
    work = folder / f"work.resumed.{processes()}"
    collab.heal(model, teacher, options=options, work=work)
    if is_main_process():
        np.savez(folder / f"resumed.{processes()}.npz", **{k: v.numpy() for k, v in model.state_dict().items()})


def launch(count: int, function: Callable[[Path], None], folder: Path) -> tuple[list[int | None], float]:
    """Runs a function in so many processes; their exit codes, and the seconds that it took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    children = [context.Process(target=_child, args=(number, count, port, function, folder)) for number in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children], time.monotonic() - start


def _child(number: int, count: int, port: int, function: Callable[[Path], None], folder: Path) -> None:
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "ACCELERATE_USE_CPU": "true",
    }
    torch.set_num_threads(1)
    function(folder)


def kill(function: Callable[[Path], None], folder: Path) -> None:
    """Runs a function by two processes, of which it kills one."""
    codes, seconds = launch(2, function, folder)
    assert codes == [3, -signal.SIGKILL], codes
    print(f"killed: {seconds:.1f} s")
    assert seconds < 60


def kill_and_resume(folder: Path, options: collab.HealOptions, counts: tuple[int, ...]) -> None:
    """Healing by two processes, of which one is killed, and its rest by other numbers of processes."""
    kill(partial(interrupted, options=options), folder)
    for count in counts:
        shutil.copytree(folder / "work.killed", folder / f"work.resumed.{count}")
        codes, seconds = launch(count, partial(resume, options=options), folder)
        assert codes == [0] * count, codes
        print(f"resumed by {count}: {seconds:.1f} s")


def kill_and_repeat(folder: Path) -> None:
    """Every verb by two processes, of which one is killed; nothing is left of it, and it succeeds afterwards."""
    save_with_tokenizer(tiny_model(BERT), folder / "original")
    for verb in VERBS:
        before = {*folder.iterdir()}
        kill(partial(solve, verb=verb, killing=True), folder)
        assert {*folder.iterdir()} == before
        codes, _ = launch(2, partial(solve, verb=verb), folder)
        assert codes == [0, 0], codes
        assert {*folder.iterdir()} == before | {folder / verb}


def main() -> None:
    """Runs all of it."""
    import collab.training.heal  # noqa: F401  # before the fork

    folder = Path(sys.argv[1])
    for count in TOGETHER:
        codes, seconds = launch(count, work, folder)
        assert codes == [0] * count, codes
        print(f"{count} processes: {seconds:.1f} s")
    codes, _ = launch(2, refused, folder)
    assert codes == [0, 0], codes
    for name, options, counts in (("whole", HEAL, (1, 4)), ("shared", HEAL_SHARED, (1,))):
        (folder / name).mkdir()
        kill_and_resume(folder / name, options, counts)
    kill_and_repeat(folder)


if __name__ == "__main__":
    main()

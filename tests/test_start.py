"""The first second of the command line: what answers without torch, and what every command's options have in common."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tiny import BY_TYPE, tiny_model

import collab
from collab.cli import main
from collab.cli.command import Command

COMMANDS: dict[str, Command] = {name: main.commands[name] for name in sorted(main.commands)}  # type: ignore[misc]

# What an option of the same name may differ in: the kind of arithmetic, what is scored or ranked, and so on.
DIFFERENT = {
    "--data": "labelled rows to evaluate",
    "--score": "several to show, one to rank by",
    "--steps": "of training and of pruning",
    "--batch-size": "several to measure",
    "--length": "several to measure",
    "--calibration": "conversions can do without, compression cannot",
    "--task": "embedders are measured, not fine-tuned",
    "--params": "several to plan",
    "--flops": "several to plan",
    "--step-bytes": "several to plan",
    "--precision": "a solver has float64",
    "--against": "a page shows the original, the others any model",
    "--overwrite": "a page is a file",
    "--runtime": "compression writes a graph for it",
}
SLOW = ("torch", "transformers", "datasets", "rich", "numpy")


def modules_after(arguments: list[list[str]]) -> dict[str, tuple[int, list[str]]]:
    """Exit code, and slow modules imported by then, of several command lines, one after the other in a new process."""
    code = (
        "import json, sys; from collab.cli import main\n"
        "results = {}\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as stop: code = stop.code\n"
        f"    results[' '.join(arguments)] = code, [name for name in {SLOW!r} if name in sys.modules]\n"
        "print('\\n' + json.dumps(results))"
    )
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return {line: tuple(result) for line, result in json.loads(done.stdout.splitlines()[-1]).items()}


class TestWithoutTorch:
    def test_help(self) -> None:
        results = modules_after([["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
        assert all(result == (0, []) for result in results.values()), results

    def test_usage_errors(self) -> None:
        results = modules_after(
            [
                ["transmogrify"],
                ["convert"],
                ["convert", "model"],
                ["convert", "model", "out", "--colour", "red"],
                ["convert", "model", "out", "--rank", "many"],
                ["convert", "model", "out"],
                ["convert", "model", "out", "--rank", "8", "--params", "0.5"],
                ["convert", "model", "out", "--rank", "8", "--form", "svd"],
                ["convert", "model", "out", "--rank", "8", "--calibration-samples", "1"],
                ["convert", "model", "out", "--rank", "8", "--max-shard-size", "huge"],
                ["compress", "model", "out"],
                ["compress", "model", "out", "--flops", "0.5", "--only", "heads"],
                ["plan", "model", "--params", "2"],
                ["plan", "model", "--flops", "0.5"],
                ["heal", "model", "out", "--batch-size", "8", "--gradient-accumulation-steps", "3"],
                ["finetune", "model", "out", "--task", "poetry"],
                ["evaluate", "model", "--rounds", "0"],
                ["bench", "model", "--batch-size", "0"],
                ["heads", "model", "--data", "synthetic", "--score", "beauty"],
                ["heads", "model", "--data", "synthetic", "--sentence", "a"],
                ["prune", "model", "out", "--keep", "all"],
                ["prune", "model", "out"],
                ["export", "model", "out", "--format", "pickle"],
            ]
        )
        assert all(result == (2, []) for result in results.values()), results

    def test_no_such_folder(self) -> None:
        results = modules_after([[name, "./no/such/folder", *_required(name)] for name in COMMANDS])
        assert all(result == (1, []) for result in results.values()), results


def _required(name: str) -> list[str]:
    more = {
        "convert": ["out", "--rank", "8"],
        "compress": ["out", "--flops", "0.5"],
        "heal": ["out"],
        "lengthen": ["out"],
        "finetune": ["out", "--task", "classification"],
        "heads": ["--data", "synthetic"],
        "prune": ["out", "--keep", "0:1"],
        "expand": ["out"],
        "export": ["out", "--format", "onnx"],
    }
    return more.get(name, [])


def verb_of(command: str) -> Callable[..., object]:
    """The function between folders that a command calls."""
    verb = getattr(collab.checkpoints, {"heads": "score_heads"}.get(command, command))
    assert callable(verb)
    return verb


class TestOptions:
    def test_the_same_name_means_the_same(self) -> None:
        """In every command the same type, the same text, and, where the default differs, text up to that."""
        seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for command in COMMANDS.values():
            for option in command.params:
                if isinstance(option, click.Option):
                    values = getattr(option.type, "choices", option.type.name)
                    seen[option.opts[-1]].add((str(values), (option.help or "").partition("  [default")[0]))
        assert {name for name, ways in seen.items() if len(ways) > 1} <= set(DIFFERENT)

    def test_no_option_is_dropped(self) -> None:
        """Every value reaches the command's function, its verb or something that is gathered for them, by its name."""
        for name, command in COMMANDS.items():
            assert command.callback is not None
            gathered = vars(command.callback).get("gathered", {})
            taken = {"as_json", "verbose", "quiet", "session"}
            for function in (command.callback, verb_of(name), *gathered.values()):
                taken |= set(inspect.signature(function).parameters)
            if "more" in inspect.signature(verb_of(name)).parameters:
                taken |= set(collab.TransformOptions.__annotations__)
            values = {option.name for option in command.params if option.expose_value}
            assert values | set(gathered) <= taken, (name, (values | set(gathered)) - taken)
            wanted = set(inspect.signature(command.callback).parameters)
            assert wanted <= values | set(gathered) | {"session"}, name

    def test_types_of_what_is_gathered(self) -> None:
        """What a decorator gathers is of the type that the command's function and its verb say."""
        for name, command in COMMANDS.items():
            assert command.callback is not None
            parameters = inspect.signature(command.callback).parameters
            verb = inspect.signature(verb_of(name)).parameters
            for argument, build in vars(command.callback).get("gathered", {}).items():
                built = build.__name__ if inspect.isclass(build) else inspect.signature(build).return_annotation
                if argument in parameters:
                    declared = str(parameters[argument].annotation)
                    required = declared.removesuffix(" | None")  # the option is required, or has a default
                    assert built in (declared, f"{required} | None"), (name, argument)
                if argument in verb:
                    kinds = "NamedSource | Mixture" if "Mixture" in built else "NamedSource"
                    declared = str(verb[argument].annotation).replace("Unlabelled", kinds)
                    assert built.removesuffix(" | None") == declared.removesuffix(" | None"), (name, argument)


@pytest.mark.parametrize("given", [None, "7"])
def test_more_kernels_of_onednn_are_kept_unless_the_user_decides(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    tiny_model(BY_TYPE["bert"]).save_pretrained(tmp_path / "model")
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / "model")])
    assert done.exit_code == 0, done.output
    assert os.environ[name] == given if given else int(os.environ[name]) > 1024


def test_models_are_registered_though_somebody_asked_whether_transformers_is_there() -> None:
    code = "import collab, importlib.util as u; u.find_spec('transformers'); from transformers import AutoConfig; "
    code += "print(AutoConfig.for_model('collab_bert').model_type)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "collab_bert", done.stderr


class TestOutput:
    def test_says_what_it_does_and_how_long_it_took(self, tmp_path: Path) -> None:
        tiny_model(BY_TYPE["bert"]).save_pretrained(tmp_path / "model")
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_VERBOSITY")}
        command = ["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--rank", "8", "--refine", "4"]
        done = subprocess.run(
            [sys.executable, "-m", "collab", *command], capture_output=True, text=True, check=True, env=environment
        )
        lines = done.stderr.splitlines()
        assert lines[0] == f"Loading {tmp_path / 'model'}"
        assert lines[-1].startswith("Took ")
        for line in lines[1:-1]:
            assert f", {line[0].lower()}{line[1:]} " in lines[-1], "nobody else says anything"
        for phase in ("starting", "loading the model", "calibrating", "solving", "writing and checking"):
            assert f"{phase} " in lines[-1]
        assert f"Wrote {tmp_path / 'out'}: reloaded, and equal to the model in memory." in done.stdout.splitlines()

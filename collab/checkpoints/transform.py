"""From folder to folder: every command that writes a model takes this one way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from ..errors import OutputError
from ..io.checkpoint import Checkpoint
from ..io.load import load_source
from ..io.options import LoadOptions, SaveOptions, TransformOptions
from ..io.read import Source, resolve_source
from ..io.staging import check_output, check_space, scratch_folder
from ..io.unfinished import work_folder
from ..io.write import save
from ..models.layers import count_bytes
from ..processes import check_seen, from_main, is_main_process
from ..progress import LARGE, Progress, no_progress, with_bytes
from ..training.work import exclusive_lock, finish

_LEAST = 10
"""The smallest result takes a tenth of the original's weights, so with less space there is no use in beginning."""


@dataclass(frozen=True)
class Run:
    """The surroundings of a verb.

    Attributes:
        output: folder that the result will be written to.
        save_options: how it will be written.
        progress: progress callback.
        ending: closes what must be there until the result is written.
    """

    output: Path
    save_options: SaveOptions
    progress: Progress
    ending: contextlib.ExitStack

    @property
    def work(self) -> Path:
        """The folder for unfinished training."""
        return work_folder(self.output)

    def scratch(self) -> Path:
        """A new folder beside the output for what need not stay in memory, until the result is written.

        It is the main process's. All processes call this.

        Raises:
            OutputError: if it cannot be made, or another machine does not see it.
        """
        folder = from_main(lambda: self.ending.enter_context(scratch_folder(self.output)))
        check_seen(folder, folder.parent, OutputError)
        return folder


Verb = Callable[[Checkpoint, Run], Checkpoint]
"""Does something to a model: a checkpoint with one step more."""


def write(checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """Writes a model and checks what was written, as the last verb."""
    size = count_bytes(checkpoint.model.parameters())
    run.progress(with_bytes("writing and checking", size) if size > LARGE else "writing and checking", 0, None)
    return replace(checkpoint, history=save(checkpoint, run.output, run.save_options))


def transform(
    model: str,
    output: str | Path,
    verbs: Sequence[Verb | None],
    *,
    load: Callable[[Source, LoadOptions], Checkpoint] = load_source,
    write: Verb = write,
    trains: bool = False,
    **options: Unpack[TransformOptions],
) -> Checkpoint:
    """Loads a model, applies verbs, and saves the result in a folder that appears whole or not at all.

    Whatever can be refused cheaply is refused first: the output, the space for it, a lock that another command holds,
    and, with the model, a tokenizer that cannot be read. Of several processes, only the main one looks at the output
    and writes it.

    Args:
        model: folder or Hub id.
        output: folder to write.
        verbs: the verbs, in their order; None for one that was not asked for.
        load: reads the model.
        write: writes the result.
        trains: whether a verb keeps unfinished training in `OUTPUT.training`, from which the same call resumes.
        **options: see `TransformOptions`.

    Returns:
        The model as written, with its history and the steps that were done.

    Raises:
        CollabError: as raised by `load`, the verbs and `collab.save`. No output is left behind.
    """
    load_options = options.get("load_options") or LoadOptions()
    save_options = options.get("save_options") or SaveOptions()
    output, progress = Path(output).expanduser(), options.get("progress", no_progress)
    progress("loading the model", 0, None)
    source = resolve_source(model, load_options.revision)
    weights = [*source.folder.glob("*.safetensors"), *source.folder.glob("*.bin")]
    size = sum(file.stat().st_size for file in weights)
    if is_main_process():
        check_output(output, source.folder, save_options.overwrite)
        check_space(output, size // _LEAST, "takes at least")
    if size > LARGE:
        progress(with_bytes("loading the model", size), 0, None)
    with contextlib.ExitStack() as ending:
        run = Run(output, save_options, progress, ending)
        if trains:
            ending.enter_context(exclusive_lock(run.work))
        checkpoint = load(source, load_options)
        for verb in filter(None, verbs):
            checkpoint = verb(checkpoint, run)
        if is_main_process():
            checkpoint = write(checkpoint, run)
        if trains:
            finish(run.work)
    return checkpoint

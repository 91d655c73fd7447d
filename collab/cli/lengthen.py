"""`collab lengthen`."""

from __future__ import annotations

from pathlib import Path

from ..data.source import DataSource
from ..planning.long_rows import LongOptions
from .command import command, gathers
from .options.data import max_length_option
from .options.long_rows import attention_option, long_options, long_text_options
from .options.model import model_in, model_out
from .session import Session


@command(
    "collab lengthen sentence-transformers/all-MiniLM-L6-v2 long --max-length 4096 --positions copy",
    "collab lengthen compressed long --max-length 8192 --positions copy --attention summaries",
    "collab lengthen ./modernbert long --block 256",
    "collab lengthen ./my-embedder long --max-length 4096 --positions copy --dense-layers auto --data articles.txt",
    summary="Compute long rows in blocks, and extend positions.",
)
@gathers("options", LongOptions)
@attention_option(LongOptions.attention)
@long_options
@max_length_option
@long_text_options
@model_in
@model_out
def lengthen(output: Path, session: Session) -> None:
    """Have MODEL, original, converted or compressed, compute long rows in blocks, and write it to the folder OUTPUT.

    Trains nothing; an original is converted losslessly first.
    """
    session.begin()
    from ..checkpoints.lengthen import lengthen as lengthen_checkpoint
    from ..steps.long_rows import Lengthening
    from .outcome import finish, to_heal

    lengthened = session.call(lengthen_checkpoint)
    finish(session, lengthened, Lengthening, to_heal(lengthened, output, DataSource("long.csv", ("text",))))

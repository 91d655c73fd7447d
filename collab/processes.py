"""The processes that do the work of a command together, as ``torchrun`` and ``accelerate launch`` start them.

They communicate by torch.distributed: gloo between CPUs, NCCL between GPUs. In a single process every function does
nothing, or returns what it is given. Nothing at the top imports torch, which is slow.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .errors import CollabError, ConfigurationError, ProcessError

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Value = TypeVar("Value")

_MEETING = timedelta(minutes=10)
"""Within this time all processes must have started."""

_WORK = timedelta(days=30)
"""As long may a process wait for the work of another. That one has ended is noticed at once: its connections close."""


_LAUNCHED = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher says to each process; torch and accelerate read it, too."""

_by_itself = False


def processes() -> int:
    """Number of processes that work together at the moment."""
    return 1 if _by_itself else int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process among them, from 0."""
    return 0 if _by_itself else int(os.environ.get("RANK", "0"))


@contextlib.contextmanager
def by_itself() -> Iterator[None]:
    """Inside it, this process works as if it were the only one, for example while the others wait for it."""
    global _by_itself
    before, _by_itself = _by_itself, True
    try:
        yield
    finally:
        _by_itself = before


def environment_of_its_own() -> dict[str, str]:
    """The environment for a process that this one starts, which is none of those that work together."""
    return {name: value for name, value in os.environ.items() if name not in _LAUNCHED}


def local_rank() -> int:
    """Number of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    """Whether this is the main process, the one that prints and writes."""
    return rank() == 0


def check_launcher() -> None:
    """Checks that a launcher that was to start several processes did.

    Raises:
        ConfigurationError: if ``accelerate launch`` started a single one, or copies that do not know of each other.
    """
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise ConfigurationError(
            "accelerate launch was asked for several processes, but on CPUs it starts one, or by mpirun some that "
            "are not connected. Start them with torchrun or accelerate launch --multi_gpu, which both work on CPUs."
        )


def connect() -> None:
    """Connects this process with the others, unless it is or there are none.

    Raises:
        ProcessError: if the others do not answer.
    """
    if processes() == 1:
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    gpus = torch.cuda.is_available() and distributed.is_nccl_available()
    try:
        store, number, count = next(distributed.rendezvous("env://", timeout=_MEETING))
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=number, world_size=count, timeout=_WORK
        )
    except (RuntimeError, ValueError, OSError) as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise ProcessError(
            f"Process {rank()} of {processes()} cannot reach the others at {address}. Start all of them with torchrun "
            "or accelerate launch, on a port that is free."
        ) from error


def disconnect() -> None:
    """Waits for the other processes, which have come to the end of their work, too, and leaves them."""
    if processes() == 1:
        return
    from torch import distributed

    if distributed.is_initialized():
        wait_for_everyone()
        distributed.destroy_process_group()


def wait_for_everyone() -> None:
    """Waits until all processes have reached this point."""
    gathered(None)


def from_main(compute: Callable[[], Value]) -> Value:
    """What the main process computes by itself, while the others wait for it.

    Raises:
        CollabError: if the main process does; all raise the same.
        ProcessError: if another process has ended.
    """
    if processes() == 1:
        return compute()
    wait_for_everyone()  # so that their work does not disturb what is timed
    from torch import distributed

    values: list[Value | CollabError | None] = [None]
    if is_main_process():
        with by_itself():
            try:
                values = [compute()]
            except CollabError as error:
                values = [error]
    with _connected():
        distributed.broadcast_object_list(values, src=0)
    (value,) = values
    if isinstance(value, CollabError):
        raise value
    return value  # type: ignore[return-value]


def gathered(value: Value) -> list[Value]:
    """The values of all processes, in their order.

    Raises:
        ProcessError: if another process has ended.
    """
    if processes() == 1:
        return [value]
    connect()
    from torch import distributed

    values: list[Value | None] = [None] * processes()
    with _connected():
        distributed.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def divided(
    items: Sequence[Item],
    do: Callable[[list[Item]], Sequence[Value]],
    *,
    owner: Sequence[int] | None = None,
    evenly: bool = False,
) -> list[Value]:
    """What a function makes of items, one value of each, which the processes divide. All get all values, in order.

    Args:
        items: the same in all processes.
        do: called in every process with its share of the items, which may be empty.
        owner: the process that has each item, as `owners` says; None to deal them out in turn.
        evenly: see `dealt`; without `owner`.
    """
    share = list(dealt(items, evenly=evenly, owner=owner))
    made = do([item for _, item, _ in share])
    own = {number: value for value, (number, _, counts) in zip(made, share, strict=True) if counts}
    of_all = {number: value for part in gathered(own) for number, value in part.items()} | own
    return [of_all[number] for number in range(len(items))]


def owners(costs: Sequence[float]) -> list[int]:
    """The process that does each of several pieces of work, so that all have about as much: the dearest first."""
    loads = [0.0] * processes()
    owner = [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
        owner[piece] = loads.index(min(loads))
        loads[owner[piece]] += costs[piece]
    return owner


def dealt(
    items: Sequence[Item], *, evenly: bool = False, owner: Sequence[int] | None = None
) -> Iterator[tuple[int, Item, bool]]:
    """This process's share of items: their numbers, they themselves, and whether they count.

    Args:
        items: the same in all processes.
        evenly: whether all processes must do as many. What is left over at the end then goes to all of them, and
            counts only in the one that it belongs to.
        owner: the process that has each item; None to deal them out in turn.
    """
    if owner is not None:
        yield from ((number, item, True) for number, item in enumerate(items) if owner[number] == rank())
        return
    for first in range(0, len(items), processes()):
        number = first + rank()
        if number < len(items):
            yield number, items[number], True
        elif evenly:
            yield len(items) - 1, items[-1], False


def seed_of_batch(seed: int, number: int) -> int:
    """The seed of what is drawn for one of many batches, whichever process has it and whatever it had before."""
    return (seed * 1_000_003 + number) % 2**63


def summed(tensor: Tensor, owner: int | None = None) -> Tensor:
    """The sum of the tensors of all processes, in the memory of this one's. All processes get the same bits.

    Args:
        tensor: this process's tensor.
        owner: the process that gets the sum, while the tensors of the others are of no use any more; None for all.

    Raises:
        ProcessError: if another process has ended.
    """
    if processes() > 1:
        connect()
        from torch import distributed

        with _connected():
            if owner is None:
                distributed.all_reduce(tensor)
            else:
                distributed.reduce(tensor, owner)
    return tensor


def check_seen(path: Path, named: Path, error: type[CollabError]) -> None:
    """Raises an error if a process, on another machine, does not see a path. All processes call this.

    Args:
        path: made by the main process, in `named` or that itself.
        named: what the message names.
        error: its class.
    """
    hosts = {host for host in gathered(None if path.exists() else socket.gethostname()) if host is not None}
    if hosts:
        raise error(
            f"{', '.join(sorted(hosts))} does not see {named}. Several machines need an output on a file system that "
            "all of them share."
        )


def check_same(facts: Mapping[str, object]) -> None:
    """Checks that all processes were started alike.

    Args:
        facts: what must be the same in all of them, by what it is called in a message.

    Raises:
        ConfigurationError: if something is not.
    """
    first, *others = gathered((socket.gethostname(), dict(facts)))
    for number, (host, theirs) in enumerate(others, 1):
        for name, value in first[1].items():
            if theirs[name] != value:
                raise ConfigurationError(
                    f"The processes differ in {name}: {value} in process 0 ({first[0]}), {theirs[name]} in process "
                    f"{number} ({host}). Start all of them alike."
                )


def is_first_to_fail() -> bool:
    """Whether this process is the one to say why the work ends: others fail because it does, or as it does.

    Before they are connected, it is the main process.
    """
    if processes() > 1:
        from torch import distributed
        from torch.distributed import distributed_c10d

        if distributed.is_initialized():
            with contextlib.suppress(RuntimeError):  # the process that kept the count has ended
                return distributed_c10d._get_default_store().add("collab_failed", 1) == 1
    return is_main_process()


def has_lost_another(error: BaseException) -> bool:
    """Whether an error of torch's says that another process has ended."""
    texts = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "ProcessGroup")
    return processes() > 1 and isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Turns the errors of a lost connection into a ProcessError."""
    try:
        yield
    except RuntimeError as error:
        if has_lost_another(error):
            raise ProcessError(LOST) from error
        raise


LOST = "Another process of this command has ended, so this one has, too. Nothing was written to the output."

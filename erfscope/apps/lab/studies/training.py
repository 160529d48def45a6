"""Small nets trained for a study, stored after every epoch, so that an interrupted training goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.core import ErfscopeError, MeasurementError
from erfscope.show import write

#: Raise this when the code would train other nets than the stored ones.
VERSION = 1


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from PyTorch's generator on the CPU by a seed inside the block, and put its state back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def batches(count: int, size: int, epoch: int) -> tuple[Tensor, ...]:
    """Return the numbers below ``count`` in a random order that depends on the epoch, ``size`` at a time."""
    return torch.split(torch.randperm(count, generator=torch.Generator().manual_seed(epoch)), size)


def one_cycle(optimizer: torch.optim.Optimizer, largest: float, done: float) -> None:
    """Set the learning rate: a line up to the largest in the first fifth of a training, then half a cosine down to 0.

    A function of the share that is done, where PyTorch's ``OneCycleLR`` has a state that would have to be stored.

    Args:
        optimizer: All its groups get the rate.
        largest: Largest rate.
        done: Share of all steps that is done, 0 to 1.
    """
    rate = largest * (5 * done if done < 0.2 else 0.5 + 0.5 * math.cos(math.pi * (done - 0.2) / 0.8))
    for group in optimizer.param_groups:
        group["lr"] = rate


def train(
    asked: StudyOptions,
    name: str,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    losses: Callable[[int], Iterable[Tensor]],
    *,
    measured: Callable[[], Mapping[str, float]] = dict,
    patience: int | None = None,
    **about: object,
) -> list[dict[str, float]]:
    """Train a net, or take it from the cache.

    Args:
        asked: Has the folder where nets are kept, and the function that gets the progress.
        name: Name of the net.
        net: Trained in place, and left in eval mode.
        optimizer: Optimizer of its parameters.
        epochs: Number of epochs.
        losses: Yields the loss of each batch of an epoch, given its number; a step down its gradient follows before
            the next. It must draw its random numbers from generators seeded by that number, so that a resumed run gives
            the same net as an uninterrupted one.
        measured: Measures the net after each epoch.
        patience: Ends the training where the ``"validation_loss"`` of ``measured`` has not fallen for so many epochs.
        **about: Everything else that the result depends on.

    Returns:
        The mean loss of each epoch, and what was measured after it.

    Raises:
        ErfscopeError: the stored net is damaged, or cannot be stored.
        MeasurementError: the weights are not finite.
    """
    file = _file(asked, name, net, {**about, "epochs": epochs, "patience": patience})
    history, spent = ([], 0.0) if file is None or not file.is_file() else _restored(file, net, optimizer)
    asked.spent.append(spent)
    start = time.perf_counter()
    for number in range(len(history), epochs):
        if patience and is_flat([entry["validation_loss"] for entry in history], patience):
            break
        asked.progress(name, number, epochs)
        net.train()
        taken = [_descend(optimizer, loss) for loss in losses(number)]
        history.append({"loss": sum(taken) / max(len(taken), 1), **measured()})
        if not _is_finite(net):
            raise MeasurementError(
                f"the training of {name} left weights that are not finite after epoch {number + 1}; try another --seed"
            )
        if file is not None:
            buffer = io.BytesIO()
            seconds = spent + time.perf_counter() - start
            kept = {"module": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "history": history, "seconds": seconds}, buffer)
            write(file, buffer.getvalue(), force=True)
    asked.progress(name, epochs, epochs)
    net.eval()
    return history


def is_flat(losses: Sequence[float], patience: int) -> bool:
    """Return whether the least of the losses is so many epochs old."""
    return bool(losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take one step down the gradient of a loss, and return the loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _file(asked: StudyOptions, name: str, net: nn.Module, about: Mapping[str, object]) -> Path | None:
    """Return the file of a net, named by a hash of everything that it depends on; None if nets are not kept."""
    if asked.cache is None:
        return None
    shapes = {key: list(value.shape) for key, value in net.state_dict().items()}
    facts = {"seed": asked.seed, "effort": asked.effort, "data": str(asked.data), "net": shapes, "version": VERSION}
    digest = hashlib.sha256(json.dumps({**about, **facts}, sort_keys=True, default=str).encode()).hexdigest()[:16]
    try:
        asked.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ErfscopeError(
            f"cannot keep trained nets in {asked.cache}: {error.strerror or error}; give another --cache"
        ) from error
    return asked.cache / f"{name}-{digest}.pt"


def _restored(file: Path, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[dict[str, float]], float]:
    """Load a stored net, and return the numbers of its epochs and the seconds that they took."""
    try:
        kept = torch.load(file, weights_only=True)
        net.load_state_dict(kept["module"])
        optimizer.load_state_dict(kept["optimizer"])
        if not _is_finite(net):
            raise ValueError("its weights are not finite")
        return list(kept["history"]), float(kept["seconds"])
    except Exception as error:  # a damaged file may raise any
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ErfscopeError(f"{file} is damaged ({reason}); remove it, and the net is trained again") from error


def set_statistics(net: nn.Module, pictures: Tensor) -> None:
    """Give the normalisations the mean and variance that these images (B, 3, H, W) have in the untrained net."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        net.train()(pictures)
    net.eval()
    for norm in norms:
        norm.momentum = 0.1


def _is_finite(net: nn.Module) -> bool:
    return all(bool(values.isfinite().all()) for values in net.state_dict().values())

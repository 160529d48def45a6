"""Small nets trained for a study, stored after every epoch, so that an interrupted training goes on where it was."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.storage.writing import write_bytes
from erfscope.studies.study import StudyOptions

#: Raise this when the code would train other nets than the stored ones.
VERSION = 1
#: Trains one epoch, given its number, and returns its numbers, such as a loss.
Epoch = Callable[[int], Mapping[str, float]]


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take one step down the gradient of a loss, and return the loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def batches(count: int, size: int, epoch: int) -> tuple[Tensor, ...]:
    """Return the numbers below ``count`` in a random order that depends on the epoch, ``size`` at a time."""
    return torch.split(torch.randperm(count, generator=torch.Generator().manual_seed(epoch)), size)


def fit(
    asked: StudyOptions,
    name: str,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    epoch: Epoch,
    **about: object,
) -> list[dict[str, float]]:
    """Train a module, or take it from the cache.

    Args:
        asked: Has the folder where nets are kept, and the function that gets the progress.
        name: Name of the net.
        module: Trained in place, and left in eval mode.
        optimizer: Optimizer of its parameters.
        epochs: Number of epochs.
        epoch: Trains one epoch, given its number. It must draw its random numbers from generators seeded by that
            number, so that a resumed run gives the same net as an uninterrupted one.
        **about: Everything else that the result depends on.

    Returns:
        The numbers of each epoch.

    Raises:
        ErfscopeError: the stored net is damaged, or cannot be stored.
        MeasurementError: the weights are not finite.
    """
    file = _file(asked, name, module, {**about, "epochs": epochs})
    history = _restore(file, module, optimizer)
    for number in range(len(history), epochs):
        asked.tell(name, number, epochs)
        module.train()
        history.append({key: float(value) for key, value in epoch(number).items()})
        if not _finite(module):
            raise MeasurementError(
                f"the training of {name} left weights that are not finite after epoch {number + 1}; try another --seed"
            )
        _keep(file, module, optimizer, history)
    asked.tell(name, epochs, epochs)
    module.eval()
    return history


def _file(asked: StudyOptions, name: str, module: nn.Module, about: Mapping[str, object]) -> Path | None:
    """Return the file of a net, named by a hash of everything that it depends on; None if nets are not kept."""
    if asked.cache is None:
        return None
    shapes = {key: list(value.shape) for key, value in module.state_dict().items()}
    facts = {
        **about,
        "seed": asked.seed,
        "effort": asked.effort,
        "data": str(asked.data),
        "net": shapes,
        "version": VERSION,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    try:
        asked.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ErfscopeError(
            f"cannot keep trained nets in {asked.cache}: {error.strerror or error}; give another --cache"
        ) from error
    return asked.cache / f"{name}-{digest}.pt"


def _restore(file: Path | None, module: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
    """Load a stored net, and return the numbers of its epochs."""
    if file is None or not file.is_file():
        return []
    try:
        kept: dict[str, Any] = torch.load(file, weights_only=True)
        module.load_state_dict(kept["module"])
        optimizer.load_state_dict(kept["optimizer"])
        if not _finite(module):
            raise ValueError("its weights are not finite")
        return list(kept["history"])
    except Exception as error:  # a damaged file may raise any
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ErfscopeError(f"{file} is damaged ({reason}); remove it, and the net is trained again") from error


def _finite(module: nn.Module) -> bool:
    return all(bool(values.isfinite().all()) for values in module.state_dict().values())


def _keep(
    file: Path | None, module: nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]
) -> None:
    if file is None:
        return
    buffer = io.BytesIO()
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), "history": history}, buffer)
    write_bytes(file, buffer.getvalue(), force=True)

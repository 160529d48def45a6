"""What a run on tiles that was stopped goes on from: how many tiles are written, and what they are of."""

from __future__ import annotations

import glob
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erfscope.adapters.weights.weights import sha256 as weights_sha256
from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line
from erfscope.storage.writing import write_bytes
from erfscope.tiling.plan import TilePlan, Window

Job = tuple[int, Window]
#: Of the largest value of a tile: what other machines, threads and kernels may round otherwise.
ROUNDING = 1e-2


class Mark:
    """How many tiles of a run are written, in a file where one is named.

    The file also holds what the run is of, and the digest of the tile that was written last: a run of anything else,
    and an output that does not hold that tile, are refused.

    Args:
        file: Where it is kept; None for nowhere.
        model: The model that is run.
        x: The image.
        plan: The plan.
        jobs: Every tile, in order, with the number of its image.
    """

    def __init__(self, file: str | Path | None, model: Any, x: Any, plan: TilePlan, jobs: list[Job]) -> None:
        self.file = None if file is None else Path(file)
        self.plan, self.jobs = plan, jobs
        if self.file is None:
            return
        self.run = {
            "plan": _digest(repr(replace(plan, memory=None)).encode()),
            "model": _model(model),
            "image": [[*x.shape], str(x.dtype), _content(x)],
        }
        # Left by a process that was killed while it wrote the count.
        for left in self.file.parent.glob(f".{glob.escape(self.file.name[:40])}.????????"):
            left.unlink(missing_ok=True)

    def done(self, out: Any) -> int:
        """Tiles that ``out`` holds already; 0 where nothing was begun.

        Raises:
            ErfscopeError: the file is damaged or counts another run, or ``out`` is not that run's.
        """
        if self.file is None or not self.file.exists():
            return 0
        try:
            found = json.loads(self.file.read_text(encoding="utf8"))
            done, written = found["done"], [found["output"], found["last"]]
            unlike = [name for name in self.run if found["run"][name] != self.run[name]]
            if type(done) is not int or done < 0 or (done > len(self.jobs) and not unlike):
                raise ValueError(f"{str(done)[:20]} tiles of {len(self.jobs)}")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            text = f"{self.file} does not hold the count of a run on tiles ({first_line(error)})"
            raise ErfscopeError(f"{text}; start again without it (--force), or name another file") from error
        if unlike:
            raise ErfscopeError(
                f"{self.file} belongs to a run of another {' and '.join(unlike)}; go on with what that was begun with"
                " (a file that was written since is another), or start again without it (--force)"
            )
        if written[0] != _layout(out) or written[1] != self._tile(out, done):
            raise ErfscopeError(
                f"the output does not hold the {done} tiles that {self.file} counts; name the output of that run, or"
                " start again without the count (--force)"
            )
        return done

    def set(self, done: int, out: Any) -> None:
        """Note that so many tiles are written, and on the disk."""
        if self.file is not None:
            if hasattr(out, "flush"):
                out.flush()
            noted = {"run": self.run, "output": _layout(out), "done": done, "last": self._tile(out, done)}
            write_bytes(self.file, json.dumps(noted).encode(), force=True)

    def remove(self) -> None:
        """Remove the file of a run that is done."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def _tile(self, out: Any, done: int) -> str:
        """Digest of the tile written last, without what later tiles write over; "" before the first."""
        return _digest(_bytes(self._part(out, done - 1))) if done else ""

    def _part(self, out: Any, number: int) -> Any:
        """What an output holds of a tile, without what later tiles write over."""
        image, window = self.jobs[number]
        own = [
            slice(side.start, min(side.stop, side.start + axis.step_units))
            for side, axis in zip(window.target, self.plan.axes, strict=True)
        ]
        lead = (image,) * (len(out.shape) - 1 - len(own))
        return out[(*lead, slice(None), *own)]

    def check_first(self, tile: Tensor, out: Any) -> None:
        """Refuse a model that makes another first tile than ``out`` holds, as after a change of its code.

        Raises:
            ErfscopeError: it does, beyond what rounding explains.
        """
        part = self._part(out, 0)
        array = part if isinstance(part, Tensor) else torch.as_tensor(np.array(part, dtype=np.float64))
        held = array.double().cpu()
        again = tile[(slice(None), *(slice(0, n) for n in held.shape[1:]))].double().cpu()
        if not torch.allclose(held, again, rtol=0, atol=ROUNDING * float(again.abs().max()), equal_nan=True):
            raise ErfscopeError(
                f"the model does not make the first tile that the output of {self.file} holds: its code or its options"
                " have changed; go on with what that run was begun with, or start again without it (--force)"
            )


def shares_memory(x: Any, out: Any) -> bool:
    """Whether writing to ``out`` changes ``x``: one array, or two memmaps of one file."""
    roots = _memmap(x), _memmap(out)
    if roots[0] is not None and roots[1] is not None:
        return Path(roots[0].filename).samefile(roots[1].filename)
    if isinstance(x, np.ndarray) and isinstance(out, np.ndarray):
        return np.may_share_memory(x, out)
    if isinstance(x, Tensor) and isinstance(out, Tensor):
        return x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    return x is out


def _model(model: Any) -> list[object]:
    """The types of a model's modules and the digest of its weights; the name of a function."""
    if not isinstance(model, nn.Module):
        return [getattr(model, "__qualname__", type(model).__qualname__)]
    types = " ".join(type(each).__qualname__ for each in model.modules())
    return [_digest(types.encode()), weights_sha256(model)]


def _content(x: Any) -> str | list[int]:
    """Size and time of a memmap's file, and where the image begins in it; the digest of an array in memory; nothing of
    anything else, which may be too large to be read for it."""
    root = _memmap(x)
    if root is not None:
        file = Path(root.filename).stat()
        return [file.st_size, file.st_mtime_ns, root.offset + x.ctypes.data - root.ctypes.data, *x.strides]
    return _digest(_bytes(x)) if isinstance(x, np.ndarray | Tensor) else ""


def _memmap(x: Any) -> Any:
    """The memmap that an array is, or is a view of; None where it is neither, or has no file."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap) and not isinstance(x.base, np.ndarray):
            return x if x.filename is not None else None
        x = x.base
    return None


def _layout(out: Any) -> list[object]:
    return [[*out.shape], str(out.dtype)]


def _bytes(values: Any) -> memoryview:
    if isinstance(values, Tensor):
        values = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(values).data


def _digest(content: bytes | memoryview) -> str:
    return sha256(content).hexdigest()

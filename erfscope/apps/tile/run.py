"""Inference on tiles: crop, run, keep the valid part, stitch."""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from erfscope.core import IMAGE, CropModel, ErfscopeError, ModuleAdapter, Request, Tiling
from erfscope.show import write

#: Of the largest value of a tile: what other machines, threads and kernels may round otherwise.
ROUNDING = 1e-2


class TileCount:
    """How many tiles of a run are written, in a file where one is named.

    The file also holds what the run is of, and the digest of the tile that was written last: a run of anything else,
    and an output that does not hold that tile, are refused.

    Args:
        file: Where it is kept; None for nowhere.
        model: The model that is run.
        x: The image (C, *space), or several (B, C, *space).
    """

    def __init__(self, file: str | Path | None, model: CropModel, x: Any) -> None:
        self.file = None if file is None else Path(file)
        self.plan = plan = model.plan
        self.lead = len(x.shape) - 1 - len(plan.axes)
        images = x.shape[0] if self.lead else 1
        #: Every tile, in order, with the number of its image.
        self.jobs = list(itertools.product(range(images), plan.windows(tuple(x.shape[self.lead + 1 :]))))
        if self.file is None:
            return
        self.run = {
            "plan": _digest(repr(asdict(replace(plan, memory=None))).encode()),
            "model": model.fingerprint,
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
            count = json.loads(self.file.read_text(encoding="utf8"))
            done, written = count["done"], [count["output"], count["last"]]
            unlike = [name for name in self.run if count["run"][name] != self.run[name]]
            if type(done) is not int or done < 0 or (done > len(self.jobs) and not unlike):
                raise ValueError(f"{str(done)[:20]} tiles of {len(self.jobs)}")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            text = f"{self.file} does not hold the count of a run on tiles ({type(error).__name__}: {error})"
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
            write(self.file, json.dumps(noted), force=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn the system's error on writing the output into one line."""
        try:
            yield
        except OSError as error:
            of = "" if self.file is None else f" that {self.file} counts"
            more = "" if self.file is None else " and go on with resume= (--resume)"
            raise ErfscopeError(
                f"cannot write the output{of}: {error.strerror or error}; make room for it{more}"
            ) from error

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
        return out[(*(image,) * self.lead, ..., *own)]

    def check_first(self, tile: Tensor, out: Any) -> None:
        """Refuse a model that makes another first tile than ``out`` holds, as after a change of its code.

        Raises:
            ErfscopeError: it does, beyond what rounding explains.
        """
        part = self._part(out, 0)
        array = part if isinstance(part, Tensor) else torch.as_tensor(np.array(part, dtype=np.float64))
        held = array.double().cpu()
        again = tile[tuple(map(slice, held.shape))].double().cpu()
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


Progress = Callable[[int, int], None]


@torch.inference_mode()
def run_tiled(
    model: Callable[[Tensor], Any] | ModuleAdapter,
    x: Any,
    plan: Tiling,
    *,
    batch_size: int = 1,
    out: Any = None,
    resume: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Run a model on an image tile by tile, with the output of the whole image.

    Args:
        model: The model, in evaluation mode, on the device that it is to run on; or the adapter of one, which is called
            as it is measured.
        x: The image (C, *space), or several (B, C, *space), as the model takes it: a tensor, an array, a memmap, or
            anything else with a shape and slices, such as a zarr array. Only the crop that is run is read. A tensor or
            an array (*space) has one channel.
        plan: From :func:`erfscope.tile`.
        batch_size: How many crops are run together.
        out: Where the output is written, by slices; a new tensor or array, as ``x`` is one, if None.
        resume: A small file that counts the tiles that were written: a run that was stopped goes on after them. It
            needs ``out`` on disk, and is removed at the end. It knows the plan, the model's weights and the image: a
            memmap by its file's size and time, an array in memory by its digest, anything else by its shape alone; and
            the first tile is run again, to see that the model still makes what ``out`` holds.
        progress: Called with the number of tiles done and of all; True prints lines on stderr.

    Returns:
        The output (C, *space) or (B, C, *space): ``out`` where it is given.

    Raises:
        ErfscopeError: no tiles are possible, sizes do not fit the plan, ``x`` has no real numbers or is ``out``, the
            model is in training mode, ``out`` cannot be written, or ``resume`` is damaged or belongs to another
            run or output.
        MeasurementError: the model fails on a crop.
    """
    plan.require_possible()
    if resume is not None and out is None:
        raise ErfscopeError("resume needs out: an array on disk, such as a numpy memmap, that is still there next time")
    if plan.wrt != IMAGE:
        raise ErfscopeError(f"one array is cut here, and the plan is of {plan.wrt}, one of several inputs")
    called = partial(Request.parse({"progress": True}).progress, "tiles") if progress is True else progress or None
    rank = len(plan.axes)
    if isinstance(x, np.ndarray | Tensor) and len(x.shape) == rank:
        # An image without an axis of channels has one.
        x = x[None]
    check_image(x, rank)
    if out is not None and shares_memory(x, out):
        raise ErfscopeError(
            "out is x itself, and later tiles need what earlier ones would write over; give another out"
        )
    run = CropModel(model, plan)
    count = TileCount(resume, run, x)
    with run.ready():
        return _run_jobs(run, x, count, out, batch_size, called=called)


def _run_jobs(
    run: CropModel, x: Any, count: TileCount, out: Any, batch_size: int, *, called: Callable[[int, int], object] | None
) -> Any:
    """Run the tiles that ``out`` does not hold yet, and write them to it."""
    plan, jobs, rank = count.plan, count.jobs, len(count.plan.axes)
    lead, space = tuple(x.shape[: count.lead]), tuple(x.shape[count.lead + 1 :])
    done = count.done(out)
    if done:
        number, start = jobs[0]
        again: Any = run(_read(x, (number,) * len(lead), start.crop)[None])
        count.check_first(again[(0, ..., *start.valid)], out)
    elif out is not None:
        with count.writing():
            count.set(0, out)
    for first in range(done, len(jobs), batch_size):
        batch = jobs[first : first + batch_size]
        crops = [_read(x, (image,) * len(lead), window.crop) for image, window in batch]
        outputs = run(torch.stack(crops))
        if out is None:
            shape = (*lead, *outputs.shape[1:-rank], *plan.output_size(space))
            empty = torch.empty(shape, dtype=outputs.dtype, device=x.device if isinstance(x, Tensor) else None)
            out = empty if isinstance(x, Tensor) else empty.numpy()
        done += len(batch)
        with count.writing():
            for (image, window), output in zip(batch, outputs, strict=True):
                part = output[(..., *window.valid)]
                place = (*(image,) * len(lead), ..., *window.target)
                out[place] = part if isinstance(out, Tensor) else part.cpu().numpy()
            count.set(done, out)
        if called is not None:
            called(done, len(jobs))
    count.remove()
    return out


def check_image(x: Any, rank: int) -> None:
    """Refuse what is not one image of real numbers, or several, of so many axes.

    Raises:
        ErfscopeError: it is not.
    """
    shape = tuple(x.shape)
    if len(shape) - rank not in (1, 2):
        raise ErfscopeError(
            f"the plan is for images, such as (C, H, W), or batches of them, of {rank} axes; x has shape {shape}"
        )
    if 0 in shape:
        raise ErfscopeError(f"x has shape {shape}, which holds no numbers; give an image, such as (C, H, W)")
    # Of other libraries' types nothing is known.
    if x.dtype.is_complex if isinstance(x, Tensor) else getattr(x.dtype, "kind", "f") not in "fiub":
        raise ErfscopeError(f"x holds {x.dtype}, and an image holds real numbers; convert it")


def _read(x: Any, lead: tuple[int, ...], crop: tuple[slice, ...]) -> Tensor:
    part = x[(*lead, slice(None), *crop)]
    if isinstance(part, Tensor):
        return part
    array = np.array(part)
    # PyTorch knows the machine's own order of bytes, and nothing longer than float64.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.float64))

"""The atlas: what every model of timm is by its structure, and the effective receptive fields (ERF) of one model of
each family that fits into memory, and of others, at random weights.

    python benchmarks/atlas.py -o DIR --minutes 90        measure in DIR, then write what erfscope keeps
    python benchmarks/atlas.py -o DIR --minutes 90 --resume
    python benchmarks/atlas.py --sample 40                repeat models drawn by a seed, and say what has changed

Each model is measured in a process of its own, with its own input size and the default settings of ``erfscope
compare --weights random``. Structures come first; then the smallest model of each family, then the others, by their
multiply-adds, as far as the minutes go. ``DIR/*.jsonl`` has a line for each model; what has changed since the kept
atlas is printed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import atlas_page
import numpy as np
from lines import Lines

from erfscope import Report
from erfscope.apps.atlas.atlas import ERFS, SCHEMA, STRUCTURES
from erfscope.core.answer.storage.json_format import report_to_json
from erfscope.core.run.processes import GRACE_S, Limits, run_alone

#: Options of every ERF, beside the defaults.
ASKED = {"weights": "random"}
#: Of one model.
SECONDS, BYTES = 300, 8 << 30
#: What an entry point begins with, with the word for a port before it, and the numbers and letters after that which say
#: how large it is.
_PREFIX, _SIZE = re.compile(r"(?:(?:tf|dm|test|legacy|ese)_)?[^_]+"), re.compile(r"\d+[a-z]{0,2}$")
#: Side of the kept pictures of maps, in cells.
SIDE = 64
#: Measured even where their family has a smaller one: those that are asked for most.
WELL_KNOWN = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "wide_resnet50_2", "vgg16"),
    *("densenet121", "efficientnet_b0", "efficientnet_b3", "mobilenetv2_100", "mobilenetv3_large_100", "regnety_032"),
    *("convnext_tiny", "convnext_small", "convnextv2_tiny", "vit_tiny_patch16_224", "vit_small_patch16_224"),
    *("vit_base_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"),
    *("mixer_s16_224", "mixer_b16_224", "beit_base_patch16_224", "maxvit_tiny_tf_224", "efficientformer_l1"),
    *("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2", "inception_v3", "xception41"),
    *("vit_small_patch14_dinov2", "hrnet_w18", "repvgg_a0", "seresnet50", "resnet50_gn", "resnetv2_50", "darknet53"),
)


def structure_of_name(name: str) -> dict[str, Any]:
    """What one model is by its recorded operations, without weights."""
    from erfscope.apps.advise.structure import structure_of
    from erfscope.core import Request, layer_table, open_model

    with open_model(name, Request.parse({}), with_numbers=False) as model:
        found, table = structure_of(model), layer_table(model)
    border = found.border()
    row: dict[str, Any] = {
        "input": list(found.input_size),
        "params": found.params,
        "gmacs": round(found.gmacs, 4),
        "border_layer": border.name if border else None,
        "sees_whole_px": [round(side) for side in found.largest()],
        "layer": table.default_layer,
    }
    for each in table.rows:
        if each.name == table.default_layer:
            trf = each.trf
            row |= {
                "shape": list(each.shape),
                "stride_px": [round(side, 3) for side in trf.stride_px],
                "center_px": [round(place, 3) for place in trf.center_px],
                "center_exact": trf.center_exact,
                "trf_px": list(trf.local_size_px),
                "trf_exact": trf.exact,
                "global_by": trf.global_by,
            }
    # Stride and TRF along the first axis; null where an operation mixes all positions.
    row["stages"] = {
        each.name: [round(each.trf.stride_px[0], 3), None if each.trf.is_global else each.trf.local_size_px[0]]
        for each in table.rows
        if each.stage
    }
    return row


def erf_of_name(name: str) -> dict[str, Any]:
    """The result of one model as a report keeps it, and a picture of its map."""
    from erfscope import compare
    from erfscope.core.answer.storage.json_format import result_to_json

    (result,) = compare([name], **ASKED).results
    if result.error is not None:
        return {"error": result.error}
    return {"result": result_to_json(result), "picture": picture(result.map.values)}


def picture(values: np.ndarray) -> str:
    """A map as a grey PNG, 255 at its largest cell, in base64; its cells are means of those of the map."""
    import cv2

    small = cv2.resize(values.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    grey = np.round(255 * np.sqrt(small / small.max())).astype(np.uint8)
    return base64.b64encode(cv2.imencode(".png", grey, [cv2.IMWRITE_PNG_COMPRESSION, 9])[1].tobytes()).decode()


def modules() -> dict[str, str]:
    """Every name that timm builds without the network, with the module that has it."""
    import timm

    return {name: timm.model_entrypoint(name).__module__.rpartition(".")[2] for name in timm.list_models()}


def family(name: str, module: str) -> tuple[str, str]:
    """The module of a model and the word that its name begins with, without its size."""
    found = _PREFIX.match(name)
    return module, _SIZE.sub("", found[0] if found else name)


def order(rows: dict[str, dict[str, Any]], module_of: dict[str, str]) -> list[str]:
    """The models whose ERFs are measured: the smallest of each family, the well-known ones, the others."""
    ready = sorted((row["gmacs"], name) for name, row in rows.items() if row.get("layer"))
    seen: set[tuple[str, str]] = set()
    first, known, others = [], [], []
    for _, name in ready:
        own = family(name, module_of[name])
        (first if own not in seen else known if name in WELL_KNOWN else others).append(name)
        seen.add(own)
    return first + known + others


def measured(
    call: Callable[[str], dict[str, Any]], names: Sequence[str], journal: Lines, end: float
) -> Iterator[dict[str, Any]]:
    """A line for each model that has none yet, until the end; what fails is a line too."""
    for number, name in enumerate(names):
        if name in journal.models:
            continue
        if time.monotonic() > end - GRACE_S:
            return
        outcome = run_alone(call, name, limits=Limits(seconds=SECONDS, bytes=BYTES))
        found = {"error": outcome.error} if outcome.error is not None else outcome.value
        line = {"model": name, "seconds": round(outcome.seconds, 2), **found}
        journal.add(line)
        print(f"{number + 1}/{len(names)} {name}: {line['seconds']} s {line.get('error') or ''}", flush=True)
        yield line


def main() -> int:
    """Measure, or repeat some; returns 1 where something has changed in a sample."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("-o", dest="folder", type=Path)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.sample:
        return sample(asked.sample, asked.seed)
    if asked.folder is None:
        parser.error("name a folder with -o, or --sample N")
    if asked.folder.exists() and not asked.resume:
        parser.error(f"{asked.folder} was begun already; go on with --resume, or name another folder")
    end, made = time.monotonic() + 60 * asked.minutes, versions()
    run_alone(id, 0, limits=Limits())  # the imports of the server are no model's seconds
    module_of = modules()
    journal = Lines(asked.folder / "structures.jsonl", made)
    for _ in measured(structure_of_name, list(module_of), journal, end):
        pass
    erfs = Lines(asked.folder / "erfs.jsonl", {**made, **ASKED})
    for _ in measured(erf_of_name, order(journal.models, module_of), erfs, end):
        pass
    keep(journal, erfs, module_of, made)
    return 0


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    return {name: version(name) for name in ("erfscope", "timm", "torch")}


def keep(journal: Lines, erfs: Lines, module_of: dict[str, str], made: dict[str, str]) -> None:
    """Write what erfscope keeps, and its page; say what has changed."""
    dropped = ("model", "seconds")
    rows = {
        name: {"module": module_of[name], **{k: v for k, v in journal.models[name].items() if k not in dropped}}
        for name in module_of
        if name in journal.models
    }
    before = kept_rows()
    print("\n".join(changes(before, rows)) if before else "no atlas was kept before")
    head = json.dumps({"schema": SCHEMA, "versions": made})
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in rows.items())
    STRUCTURES.write_text(f'{head[:-1]}, "models": {{\n{lines}\n}}}}\n', encoding="utf-8")
    results = [rounded(line["result"]) for line in erfs.models.values() if "result" in line]
    results.sort(key=lambda result: result["model"])
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in results)
    head = json.dumps({**report_to_json(Report(results=())), "results": None}).removesuffix("null}")
    ERFS.write_text(f"{head}[\n{lines}\n]}}\n", encoding="utf-8")
    pictures = {name: line["picture"] for name, line in erfs.models.items() if "picture" in line}
    atlas_page.write(rows, results, pictures, made)
    refused = sum("error" in row for row in rows.values())
    print(f"{len(rows)} structures, {refused} with a reason instead; {len(results)} ERFs")


def kept_rows() -> dict[str, dict[str, Any]]:
    """The structures that are kept, by name."""
    return json.loads(STRUCTURES.read_text(encoding="utf-8"))["models"] if STRUCTURES.is_file() else {}


def rounded(value: Any) -> Any:
    """JSON values with numbers of seven digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def changes(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each model of which something else is said than before."""
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            yield f"{name}: {'new' if name in now else 'gone'}"
            continue
        ours, theirs = now[name], before[name]
        changed = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        if changed:
            yield f"{name}: " + ", ".join(f"{key} {theirs.get(key)} -> {ours.get(key)}" for key in changed)


def sample(count: int, seed: int) -> int:
    """Repeat some structures and their ERFs, of those models that have one; returns 1 where they have changed."""
    kept = kept_rows()
    erfs = {row["model"]: row for row in json.loads(ERFS.read_text(encoding="utf-8"))["results"]}
    drawn = random.Random(seed)
    names = sorted({*drawn.sample(sorted(kept), count - count // 4), *drawn.sample(sorted(erfs), count // 4)})
    bad = []
    for name in names:
        outcome = run_alone(structure_of_name, name, limits=Limits(seconds=SECONDS, bytes=BYTES))
        now = outcome.value if outcome.error is None else {"error": outcome.error}
        bad += changes({name: kept[name]}, {name: {"module": kept[name]["module"], **now}})
        if name in erfs:
            outcome = run_alone(erf_of_name, name, limits=Limits(seconds=SECONDS, bytes=BYTES))
            bad += moved(name, erfs[name], outcome.value or {"error": outcome.error})
        print(f"{name}: {'with its ERF' if name in erfs else 'structure'}", flush=True)
    print("\n".join(bad) or f"{count} models: as kept")
    then, now = json.loads(STRUCTURES.read_text(encoding="utf-8"))["versions"]["timm"], version("timm")
    if then != now:
        print(f"kept with timm {then}, now {now}: models may have changed")
    return int(bool(bad) and then == now)


def moved(name: str, kept: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Sizes that are more than two errors from what was kept."""
    if "result" not in now:
        yield f"{name}: {now.get('error')}"
        return
    for measure, before in kept["measures"].items():
        after = now["result"]["measures"][measure]
        values = [each["value"] for each in (before, after)]
        if None in values:
            differ = values != [None, None]
        else:
            differ = abs(values[1] - values[0]) > 2 * (before["se"] or 0.0) + 1e-4 * abs(values[0])
        if differ:
            yield f"{name}: {measure} {values[0]} ± {before['se']} -> {values[1]}"


if __name__ == "__main__":
    sys.exit(main())

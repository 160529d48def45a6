"""What the graph says of one model of every timm family and of torchvision's: the kept table, and what has changed.

python benchmarks/fields.py            compare with benchmarks/fields.json, which lists the models
python benchmarks/fields.py --accept   keep what is found now
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import erfscope
from erfscope import ErfscopeError
from erfscope.adapters import load

KEPT = Path(__file__).with_name("fields.json")
#: Models that ask for numbers, so that they need weights.
NUMBERS = ("rcnn", "retinanet", "ssdlite")


def found(model: str) -> dict[str, Any]:
    """How many layers a model has, and of its default layer the shape, the central unit and its field."""
    weights = "random" if any(word in model for word in NUMBERS) else "none"
    try:
        table = erfscope.layers(load(model, weights=weights))
    except ErfscopeError as error:
        return {"refused": str(error).partition(":")[0]}
    rows = [row for row in table.rows if row.name == table.default_layer]
    if not rows:
        return {"layers": len(table.rows), "default": None}
    trf = rows[0].trf
    return {
        "layers": len(table.rows),
        "default": rows[0].name,
        "shape": list(rows[0].shape),
        "unit": list(rows[0].unit),
        "size_px": list(trf.size_px),
        "stride_px": [round(each, 3) for each in trf.stride_px],
        "center_px": [round(each, 3) for each in trf.center_px],
        "center_exact": trf.center_exact,
        "global": trf.is_global,
        "exact": trf.exact,
    }


def differences(models: Sequence[str], kept: dict[str, Any]) -> Iterator[str]:
    """A line for every model of which something else is said than is kept."""
    for model in models:
        now = found(model)
        changed = {key: (kept[model].get(key), now.get(key)) for key in {*now, *kept[model]}}
        if words := [f"{key} {now} (was {was})" for key, (was, now) in sorted(changed.items()) if was != now]:
            yield f"{model}: {', '.join(words)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or keep; returns 1 where something has changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--accept", action="store_true")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    if parser.parse_args(arguments).accept:
        lines = [f"{json.dumps(model)}: {json.dumps(found(model))}" for model in kept]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return 0
    changed = list(differences(list(kept), kept))
    print("\n".join(changed) or f"{len(kept)} models: as kept")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())

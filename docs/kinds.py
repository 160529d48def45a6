"""Draw what the page on volumes, clips, sequences and sound measures: ``python docs/kinds.py``.

Runs the Python of each section in an empty folder, and writes the panel of its ``result`` beside the page.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
FIGURES = {"Volumes": "volume", "Clips": "clip", "Sequences": "sequence", "Sound": "sound"}


def run(title: str) -> dict[str, object]:
    """The names that the Python blocks of a section leave; those that begin with the name of a file are written to
    it."""
    names: dict[str, object] = {}
    section = (HERE / "inputs.md").read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    for code in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S):
        if named := re.match(r"# ([\w.]+\.py)\n", code):
            Path(named[1]).write_text(code, encoding="utf-8")
        else:
            exec(compile(code, title, "exec"), names)
    return names


def main() -> None:
    """Write all figures."""
    for title, figure in FIGURES.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            result: object = run(title)["result"]
            result.figure(path := HERE / f"{figure}.png")  # type: ignore[attr-defined]
            with Image.open(path) as drawn:
                drawn.convert("RGB").quantize(128).save(path, optimize=True)
            os.chdir(HERE)


if __name__ == "__main__":
    main()

"""Make the README's screenshot from a real run: python examples/screenshots.py"""

from __future__ import annotations

import warnings
from pathlib import Path

from rich.console import Console

import erfscope
from erfscope.cli.terminal import report_view

HERE = Path(__file__).parent


def main() -> None:
    """Run the README's first command and keep what the terminal shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", erfscope.FallbackWarning)
        report = erfscope.sweep("resnet18", images=str(HERE / "leaves.png"), weights="random")
    console = Console(width=84, record=True, force_terminal=True, color_system="truecolor", highlight=False)
    console.print("$ erfscope analyze resnet18 --image examples/leaves.png --weights random", style="bold")
    console.print(report_view(report))
    console.save_svg(str(HERE.parent / "docs" / "analyze.svg"), title="erfscope")


if __name__ == "__main__":
    main()

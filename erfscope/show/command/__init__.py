"""What commands are made of: the options of measurements and how they are read, the terminal, what it shows while
something runs. It imports click and rich, not torch.

A command takes some of the options of ``erfscope analyze`` with ``@options(table("layer", "weights"))``, gets them as
keywords, and hands ``keywords(*by_source(given).values())`` to :meth:`erfscope.core.Request.parse`.

May import: ``view`` and ``figures`` beside it, ``core`` and below.
"""

from erfscope.core.answer.storage.writing import check_file
from erfscope.core.request.option import OUTPUT
from erfscope.show.command import config
from erfscope.show.command.console import (
    File,
    Screen,
    Text,
    complain,
    ignoring_closed_pipe,
    importing_torch,
    n_bytes,
    print_json,
    say,
    seconds,
)
from erfscope.show.command.inputs import refuse_inputs
from erfscope.show.command.known_names import ModelName
from erfscope.show.command.options import (
    BUILDING,
    CHECKPOINTS,
    FORMATS,
    MEASURING,
    OUTPUT_OPTIONS,
    by_source,
    chosen_format,
    keywords,
    options,
    outputs,
    source_of,
    table,
    with_verbose,
)
from erfscope.show.command.progress import progress

__all__ = [
    "BUILDING",
    "CHECKPOINTS",
    "FORMATS",
    "MEASURING",
    "OUTPUT",
    "OUTPUT_OPTIONS",
    "File",
    "ModelName",
    "Screen",
    "Text",
    "by_source",
    "check_file",
    "chosen_format",
    "complain",
    "config",
    "ignoring_closed_pipe",
    "importing_torch",
    "keywords",
    "n_bytes",
    "options",
    "outputs",
    "print_json",
    "progress",
    "refuse_inputs",
    "say",
    "seconds",
    "source_of",
    "table",
    "with_verbose",
]

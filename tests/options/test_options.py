"""Options are declared once: what type checkers, the command line and the pages know of them follows from that."""

from __future__ import annotations

from pathlib import Path

from erfscope.options import settings
from erfscope.options.option import declared
from erfscope.options.settings import OPTIONS, Options, Settings

END_OF_DOCSTRING = 'so that type checkers see\n    them.\n    """\n\n'


def test_the_keywords_that_type_checkers_see_are_the_settings(request):
    file = Path(settings.__file__)
    before, mark, obtained = file.read_text(encoding="utf-8").partition(END_OF_DOCSTRING)
    assert mark
    expected = "".join(f"    {name}: {each.accepts}\n" for name, each in declared(Settings).items())
    if request.config.getoption("--update-golden"):
        file.write_text(before + mark + expected, encoding="utf-8")
        return
    assert obtained == expected, f"accept it: pytest {request.node.nodeid} --update-golden"
    assert {*Options.__annotations__} == {*OPTIONS}

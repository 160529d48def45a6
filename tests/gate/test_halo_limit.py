"""A check fails where tiles need a longer halo than it allows, whatever the baseline holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import erfscope
from erfscope.cli.main import main

pytestmark = pytest.mark.usefixtures("memory_unplanned")
NETS = """
from torch import nn

def stack():
    return nn.Sequential(nn.Conv2d(3, 4, 7, padding=3), nn.MaxPool2d(2), nn.Conv2d(4, 1, 3, padding=1))
"""


class Squeeze(nn.Module):
    """Multiplies a map by its own mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        y = self.conv(x)
        return y * self.pool(y).sigmoid()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)

    def call(halo: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "erfscope.toml").write_text(
            f'[[check]]\nname = "stack"\nmodel = "nets.py:stack"\ninput-size = 32\nhalo = {halo}\n'
        )
        with pytest.raises(SystemExit) as stop:
            main(["check", "--trf-only", "--format", "plain", *arguments])
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


def test_a_longer_halo_than_the_limit_fails_and_no_update_accepts_it(run) -> None:
    # The halo is 5 px on each side, see tests/cli/test_tile.py.
    assert run('"<= 5"', "--allow-new")[0] == 0
    before = Path("erf-baseline.json").read_text()
    assert "halo" not in before
    for arguments in ((), ("--update",)):
        code, out, _ = run('"<= 4"', *arguments)
        assert code == 1
        assert "halo too long" in out
        assert "5 px before, 5 px after" in out
        assert "at most 4 px" in out
    assert Path("erf-baseline.json").read_text() == before
    assert run('"<= 5"')[0] == 0


@pytest.mark.parametrize("halo", ['"96"', '"< 96"', "96", '"<= few"'])
def test_a_limit_that_cannot_be_read_is_refused(run, halo: str) -> None:
    code, _, err = run(halo)
    assert code == 2
    assert 'write the longest that is allowed, such as "<= 96"' in err


@pytest.mark.parametrize(("longest", "word"), [(1, "fail"), (2, "new")])
def test_the_longest_side_of_a_halo_counts(tmp_path: Path, longest: int, word: str) -> None:
    causal = nn.Sequential(nn.ZeroPad2d((2, 0, 0, 0)), nn.Conv2d(3, 4, (1, 3))).eval()
    asked = {"baseline": tmp_path / "base.json", "missing": "accept", "trf_only": True, "input_size": 32}
    found = erfscope.check(causal, name="causal", longest_halo=longest, **asked)
    assert found.word == word


def test_impossible_tiles_fail_and_a_model_without_a_map_is_inconclusive(tmp_path: Path) -> None:
    asked = {"baseline": tmp_path / "base.json", "missing": "accept", "trf_only": True, "input_size": 32}
    asked["longest_halo"] = 99
    found = erfscope.check(Squeeze().eval(), name="squeeze", **asked)
    assert (found.word, found.structure[-1].what) == ("fail", "halo")
    assert "no tiles are possible: global average pooling" in found.structure[-1].obtained
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    found = erfscope.check(net, name="classifier", layer=None, **asked)
    assert (found.word, found.cause) == ("cannot tell", "halo unknown")
    assert "returns no map" in found.text
    assert erfscope.check(net, name="first", layer="0", **asked).ok

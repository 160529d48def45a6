"""Short-time Fourier transforms: what a sample and a frame see, where they stand, and tiles of sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import erfscope

LENGTH = 256


class Masked(nn.Module):
    """A spectrogram, a mask made of its real and imaginary part, and the sound again, as nets of source separation."""

    def __init__(self, size: int, hop: int, width: int) -> None:
        super().__init__()
        self.front, self.conv = nn.Conv1d(1, 1, 1, bias=False), nn.Conv2d(2, 2, 3, padding=1)
        self.of = {"n_fft": size, "hop_length": hop, "win_length": width}

    def forward(self, x: Tensor) -> Tensor:
        of: Any = {**self.of, "window": torch.hann_window(self.of["win_length"], dtype=x.dtype, device=x.device)}
        spectrum = torch.stft(self.front(x)[:, 0], **of, return_complex=True)
        mask = self.conv(torch.view_as_real(spectrum).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
        return torch.istft(torch.view_as_complex(mask) * spectrum, **of, length=x.shape[-1])[:, None]


class Frames(Masked):
    """The frames of a spectrogram, with frequencies as channels."""

    def forward(self, x: Tensor) -> Tensor:
        window = torch.hamming_window(self.of["win_length"], dtype=x.dtype, device=x.device)
        spectrum = torch.stft(self.front(x)[:, 0], **self.of, window=window, return_complex=True)  # type: ignore[arg-type]
        return self.conv(torch.view_as_real(spectrum).permute(0, 3, 1, 2)).flatten(1, 2)


WINDOWS = [(32, 8, 32), (64, 16, 32), (32, 16, 32)]


def seen(net: nn.Module, x: Tensor, unit: int) -> tuple[int, int]:
    x = x.clone().requires_grad_(True)
    net(x)[0, :, unit].sum().backward()
    assert x.grad is not None
    there = torch.nonzero(x.grad[0, 0]).flatten()
    return int(there[0]), int(there[-1])


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", [Masked, Frames])
def test_what_a_unit_sees_is_what_its_gradient_reaches(kind: type[Masked], window: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    net, x = kind(*window).double().eval(), torch.randn(1, 1, LENGTH, dtype=torch.float64)
    units = net(x).shape[-1]
    for unit in (0, units // 2 + 1, units - 1):
        found = erfscope.analyze(
            net, images=x, input_size=(LENGTH,), layer="output", unit=str(unit), measures="r50", verify=True
        )
        assert found.verification is not None
        assert found.verification.holds
        assert found.trf.exact
        assert found.unit.map_shape == tuple(net(x).shape[1:])
        assert found.trf.clipped_box_px == (seen(net, x, unit),)
        assert found.trf.center_exact
        # Frame t stands at sample t * hop, whose padding is half a frame; a sample of the output at itself.
        assert found.trf.center_px[0] == pytest.approx(unit if kind is Masked else unit * window[1], abs=0.5)


@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_of_sound_give_the_whole_sound(window: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    net, sound = Masked(*window).double().eval(), torch.randn(1, 1024, dtype=torch.float64)
    plan = erfscope.tile(net, (64,), input_size=(LENGTH,))
    assert plan.possible, plan.blockers
    assert plan.alignment == (window[1],)
    with torch.no_grad():
        torch.testing.assert_close(erfscope.run_tiled(net, sound, plan), net(sound[None])[0], rtol=0, atol=1e-10)

"""Small nets of sequences and of sound, built as the published ones are, with random weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Causal(nn.Module):
    """A convolution that sees no later sample."""

    def __init__(self, before: int, after: int, kernel: int, dilation: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.left = (kernel - 1) * dilation + 1 - stride
        self.conv = nn.Conv1d(before, after, kernel, stride, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T / stride)."""
        return self.conv(F.pad(x, (self.left, 0)))


class Chomped(nn.Module):
    """A residual block of a TCN: pad both sides and cut the later one (Bai et al. 2018)."""

    def __init__(self, before: int, after: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.cut = (kernel - 1) * dilation
        self.first = nn.Conv1d(before, after, kernel, padding=self.cut, dilation=dilation)
        self.second = nn.Conv1d(after, after, kernel, padding=self.cut, dilation=dilation)
        self.skip = nn.Conv1d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T)."""
        y = F.relu(self.first(x)[..., : -self.cut])
        return F.relu(F.relu(self.second(y)[..., : -self.cut]) + self.skip(x))


def tcn(channels: int = 2, width: int = 8, kernel: int = 4, levels: int = 7) -> nn.Module:
    """A TCN: a TRF of 1 + 2 (kernel - 1) (2^levels - 1)."""
    return nn.Sequential(*(Chomped(channels if k == 0 else width, width, kernel, 2**k) for k in range(levels)))


class WaveNet(nn.Module):
    """Gated causal convolutions of dilation 1 to 2^(levels - 1) with skips."""

    def __init__(self, width: int = 8, levels: int = 6) -> None:
        super().__init__()
        self.start = Causal(1, width, 2)
        self.layers = nn.ModuleList(Causal(width, 2 * width, 2, 2**k) for k in range(levels))
        self.end = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, C, T)."""
        y = self.start(x)
        skips = torch.zeros_like(y)
        for layer in self.layers:
            a, b = layer(y).chunk(2, 1)
            gated = a.tanh() * b.sigmoid()
            y, skips = y + gated, skips + gated
        return self.end(skips.relu())


class UNet1d(nn.Module):
    """Two levels with skips."""

    def __init__(self, channels: int = 2, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 5, padding=2)
        self.down = nn.Conv1d(width, width, 4, 2, 1)
        self.up = nn.ConvTranspose1d(width, width, 4, 2, 1)
        self.last = nn.Conv1d(2 * width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, 4, T)."""
        skip = self.first(x).relu()
        return self.last(torch.cat([skip, self.up(self.down(skip).relu()).relu()], 1))


class Inception(nn.Module):
    """InceptionTime: kernels of 9, 19 and 39 beside a pooling."""

    def __init__(self, channels: int = 2, width: int = 4, depth: int = 2) -> None:
        super().__init__()
        wide = [channels, *(4 * width for _ in range(depth))]
        self.branches = nn.ModuleList(
            nn.ModuleList([*(nn.Conv1d(c, width, k, padding=k // 2) for k in (9, 19, 39)), nn.Conv1d(c, width, 1)])
            for c in wide[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, 4 width, T)."""
        for *convolutions, pooled in self.branches:
            x = torch.cat([*(c(x) for c in convolutions), pooled(F.max_pool1d(x, 3, 1, 1))], 1).relu()
        return x


class Tagger(nn.Module):
    """A bidirectional GRU or LSTM over time."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.rnn = kind(2, 8, batch_first=True, bidirectional=True)
        self.head = nn.Conv1d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2, T) -> (B, 5, T)."""
        return self.head(self.rnn(x.transpose(1, 2))[0].transpose(1, 2))


class LongConvolution(nn.Module):
    """A causal convolution as long as the input, by FFT, as S4 is at training."""

    def __init__(self, width: int = 2, length: int = 128) -> None:
        super().__init__()
        decay = torch.exp(-torch.arange(length) / 16)
        self.kernel = nn.Parameter(torch.randn(width, length) * decay)
        self.mix = nn.Conv1d(width, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, 8, T)."""
        size = 2 * x.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(self.kernel, size), size)[..., : x.shape[-1]]
        return self.mix(y)


def sincnet() -> nn.Module:
    """The front of PyanNet: a TRF of 991 and a stride of 270."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 251, 10), nn.MaxPool1d(3), nn.LeakyReLU(), nn.Conv1d(8, 8, 5), nn.MaxPool1d(3),
        nn.LeakyReLU(), nn.Conv1d(8, 8, 5), nn.MaxPool1d(3), nn.LeakyReLU(),
    )  # fmt: skip


def resnet1d() -> nn.Module:
    """A stem of 15, and convolutions of stride 2."""
    return nn.Sequential(
        nn.Conv1d(2, 8, 15, 2, 7), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(3, 2, 1), nn.Conv1d(8, 8, 3, 2, 1),
        nn.ReLU(), nn.Conv1d(8, 8, 3, 1, 1), nn.ReLU(),
    )  # fmt: skip


def seanet() -> nn.Module:
    """A causal encoder with strides of 2, 4 and 5, as EnCodec's."""
    return nn.Sequential(
        Causal(1, 4, 7), nn.ELU(), Causal(4, 8, 4, stride=2), nn.ELU(), Causal(8, 8, 8, stride=4), nn.ELU(),
        Causal(8, 8, 10, stride=5),
    )  # fmt: skip


class Demucs(nn.Module):
    """An encoder and a decoder with a skip; (B, 1, T) -> (B, sources, 1, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(1, 8, 8, 4, 2), nn.Conv1d(8, 8, 8, 4, 2)])
        self.up = nn.ModuleList([nn.ConvTranspose1d(8, 8, 8, 4, 2), nn.ConvTranspose1d(8, 2, 8, 4, 2)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, 2, 1, T)."""
        a = self.down[0](x).relu()
        b = self.up[0](self.down[1](a).relu()).relu()
        return self.up[1](a + b).unflatten(1, (2, 1))


class TasNet(nn.Module):
    """Encoder and dilated depthwise separator of Conv-TasNet, without norms: a TRF of L + (L/2) 2 R (2^X - 1)."""

    def __init__(self, length: int = 16, width: int = 8, blocks: int = 4, repeats: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, width, length, length // 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 1), nn.PReLU(),
                nn.Conv1d(width, width, 3, padding=2**k, dilation=2**k, groups=width), nn.PReLU(),
                nn.Conv1d(width, width, 1),
            )
            for _ in range(repeats) for k in range(blocks)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, C, frames)."""
        y = self.encoder(x)
        for each in self.blocks:
            y = y + each(y)
        return y


class Separator(nn.Module):
    """Conv-TasNet whole: a mask of each source, and the decoder; (B, 1, T) -> (B, sources, T)."""

    def __init__(self, sources: int = 2, length: int = 16, width: int = 8) -> None:
        super().__init__()
        self.sources, self.net = sources, TasNet(length, width)
        self.masks = nn.Conv1d(width, sources * width, 1)
        self.decoder = nn.ConvTranspose1d(width, 1, length, length // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, sources, T)."""
        codes = self.net.encoder(x)
        masks = self.masks(self.net(x)).sigmoid().unflatten(1, (self.sources, -1))
        return self.decoder((masks * codes[:, None]).flatten(0, 1)).unflatten(0, (len(x), -1)).squeeze(2)


class HybridDemucs(nn.Module):
    """A branch on the spectrogram and one on the waveform, as Hybrid Demucs: (B, 2, T) -> (B, sources, 2, T)."""

    def __init__(self, sources: int = 2, size: int = 64, width: int = 8) -> None:
        super().__init__()
        self.size, self.hop = size, size // 4
        bands = ((8, 1), (4, 1), (2, 0))
        self.down_bands = nn.Conv2d(4, width, *bands)
        self.up_bands = nn.ConvTranspose2d(width, 4 * sources, *bands)
        self.down, self.up = nn.Conv1d(2, width, 8, 4, 2), nn.ConvTranspose1d(width, 2 * sources, 8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2, T) -> (B, sources, 2, T)."""
        batch, channels, length = x.shape
        window = torch.hann_window(self.size, dtype=x.dtype, device=x.device)
        spectrum = torch.stft(x.flatten(0, 1), self.size, self.hop, window=window, return_complex=True)[:, :-1]
        bands = torch.view_as_real(spectrum).permute(0, 3, 1, 2).reshape(batch, 2 * channels, *spectrum.shape[1:])
        bands = self.up_bands(F.gelu(self.down_bands(bands))).unflatten(1, (-1, channels, 2))
        made = torch.view_as_complex(bands.movedim(3, -1).contiguous())
        made = F.pad(made, (0, 0, 0, 1)).flatten(0, 2)
        heard = torch.istft(made, self.size, self.hop, window=window, length=length)
        return heard.view(batch, -1, channels, length) + self.up(F.gelu(self.down(x))).view(batch, -1, channels, length)


class PyanNet(nn.Module):
    """SincNet's front, LSTMs that read both ways and linear layers: (B, 1, T) -> (B, frames, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.sincnet, self.lstm = sincnet(), nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.linear, self.classifier = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, frames, 3)."""
        y = self.lstm(self.sincnet(x).transpose(1, 2))[0]
        return self.classifier(F.leaky_relu(self.linear(y))).log_softmax(-1)


class EegNet(nn.Module):
    """Over electrodes and time, as EEGNet (Lawhern et al. 2018): (B, electrodes, T) -> (B, C, T / 4)."""

    def __init__(self, electrodes: int = 8) -> None:
        super().__init__()
        self.time = nn.Conv2d(1, 4, (1, 33), padding=(0, 16), bias=False)
        self.space = nn.Conv2d(4, 8, (electrodes, 1), groups=4, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(8), nn.AvgPool2d((1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """(B, electrodes, T) -> (B, 8, T / 4)."""
        return self.pool(F.elu(self.norm(self.space(self.time(x[:, None]))))).squeeze(2)


class MelTagger(nn.Module):
    """Log-power spectrogram of 10 ms steps, then 2-D convolutions: (B, 1, T) -> (B, C, bands, frames)."""

    def __init__(self, size: int = 64, hop: int = 16) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.mel = nn.Parameter(torch.rand(16, size // 2 + 1))
        self.convs = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, 8, 4, frames)."""
        window = torch.hann_window(self.size, dtype=x.dtype, device=x.device)
        spectrum = torch.stft(x[:, 0], self.size, self.hop, window=window, center=False, return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        return self.convs((self.mel @ power + 1e-5).log()[:, None])


def _inverted(before: int, after: int, stride: int) -> nn.Module:
    """An inverted bottleneck of MobileNetV3 without squeezing."""
    wide = 2 * before
    return nn.Sequential(
        nn.Conv2d(before, wide, 1), nn.Hardswish(), nn.Conv2d(wide, wide, 3, stride, 1, groups=wide), nn.Hardswish(),
        nn.Conv2d(wide, after, 1),
    )  # fmt: skip


class EfficientAT(nn.Module):
    """Pre-emphasis, mel bands and inverted bottlenecks, pooled to scores: (B, 1, T) -> (B, classes)."""

    def __init__(self, size: int = 64, hop: int = 16) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.mel = nn.Parameter(torch.rand(16, size // 2 + 1))
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish(), _inverted(8, 8, 1), _inverted(8, 16, 2)
        )
        self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, T) -> (B, 5)."""
        wave = x[:, 0, 1:] - 0.97 * x[:, 0, :-1]
        window = torch.hann_window(self.size, dtype=x.dtype, device=x.device)
        spectrum = torch.stft(wave, self.size, self.hop, window=window, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        return self.classifier(self.features(((self.mel @ power + 1e-5).log()[:, None] + 4.5) / 5))


class Fed(nn.Module):
    """A model that is given (B, T), (B, T, C) or embeddings where the map is (B, C, T)."""

    def __init__(self, inner: nn.Module, how: str) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T')."""
        if self.how == "wave":
            return self.inner(x[:, 0])[0].transpose(1, 2)
        if self.how == "features":
            return self.inner(x[:, 0])
        if self.how == "patches":  # (B, C, patches, width)
            return self.inner(past_values=x.transpose(1, 2))[0].transpose(2, 3).flatten(1, 2)
        if self.how == "spectrogram":  # (B, 1, bands, T)
            return self.inner(x[:, 0].transpose(1, 2))[0]
        if self.how == "frames first":
            return self.inner(x.transpose(2, 3))[0]
        if self.how == "codec":
            return self.inner.decoder(self.inner.encoder(x))
        return self.inner(inputs_embeds=x.transpose(1, 2))[0].transpose(1, 2)

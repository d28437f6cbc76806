"""Models of TorchBench that no package carries: the published architectures, written anew.

Sources: Radford et al. 2015 (DCGAN), Naumov et al. 2019 (DLRM), Kuchaiev and Ginsburg 2017 (deep autoencoders for
recommending), Ronneberger et al. 2015 (U-Net), Wan et al. 2017 (speaker encoder), Haarnoja et al. 2018 (soft
actor-critic), Radford et al. 2019 (GPT-2).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Discriminator(nn.Module):
    """Of DCGAN: whether 64 x 64 images are real; ``(n, 3, 64, 64)`` to ``(n,)``."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = (3, *(width << step for step in range(4)))
        for before, after in itertools.pairwise(channels):
            layers.append(nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False))
            layers += [nn.BatchNorm2d(after)] if before != 3 else []
            layers.append(nn.LeakyReLU(0.2))
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels[-1], 1, 4, bias=False), nn.Sigmoid())

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten()  # type: ignore[no-any-return]


def _dense(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last or nn.ReLU())


class Dlrm(nn.Module):
    """A click's probability from ``dense`` ``(n, 512)`` and bags of categories, ``bags`` ``(tables, n, hot)``."""

    def __init__(self, tables: int = 8, rows: int = 20_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _dense(512, 512, 64)
        pairs = tables * (tables + 1) // 2
        self.top = _dense(width + pairs, 1024, 1024, 1024, 1, last=nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = self.get_buffer("pairs")
        return self.top(torch.cat([x, products[:, rows, columns]], dim=1)).squeeze(1)  # type: ignore[no-any-return]


class Recommender(nn.Module):
    """An autoencoder of ratings, ``(n, items)``; the decoder mirrors the encoder."""

    def __init__(self, items: int = 20_000) -> None:
        super().__init__()
        widths = (items, 512, 512, 1024)
        there = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.SELU())]
        back = [layer for pair in itertools.pairwise(widths[::-1]) for layer in (nn.Linear(*pair), nn.SELU())]
        self.layers = nn.Sequential(*there, *back)

    def forward(self, ratings: Tensor) -> Tensor:
        return self.layers(ratings)  # type: ignore[no-any-return]


def _twice(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Scores of two classes for each pixel; sides may be odd."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 512)) -> None:
        super().__init__()
        self.first = _twice(3, widths[0])
        self.down = nn.ModuleList(_twice(*pair) for pair in itertools.pairwise(widths))
        back = [*widths[-2::-1]]
        self.up = nn.ModuleList(
            _twice(below + beside, beside) for below, beside in zip((widths[-1], *back), back, strict=False)
        )
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        seen = [self.first(images)]
        for block in self.down:
            seen.append(block(F.max_pool2d(seen[-1], 2)))
        x = seen.pop()
        for block in self.up:
            beside = seen.pop()
            x = F.interpolate(x, size=beside.shape[-2:], mode="bilinear", align_corners=True)
            x = block(torch.cat([beside, x], dim=1))
        return self.last(x)  # type: ignore[no-any-return]


class SpeakerEncoder(nn.Module):
    """A voice's direction from frames of 40 filters, ``(n, frames, 40)`` to ``(n, 256)``."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.ModuleList(nn.LSTM(width, 768, batch_first=True) for width in (40, 256, 256))
        self.narrow = nn.ModuleList(nn.Linear(768, 256, bias=False) for _ in range(3))

    def forward(self, frames: Tensor) -> Tensor:
        for recurrent, narrow in zip(self.recurrent, self.narrow, strict=True):
            frames = narrow(recurrent(frames)[0])
        return F.normalize(frames[:, -1], dim=1)


class Actor(nn.Module):
    """What to do in a state of three numbers: mean and deviation of an action."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.last = nn.Linear(width, 2)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.last(self.layers(states)).chunk(2, dim=1)
        least, most = -10.0, 2.0
        return torch.tanh(mean), torch.exp(least + 0.5 * (most - least) * (torch.tanh(spread) + 1))


class LennardJones(nn.Module):
    """Energies of pairs of atoms and the forces that are their derivatives; ``offsets`` is ``(n, 3)``."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 16, 16, 16)
        layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        distances = torch.linalg.vector_norm(offsets, dim=1, keepdim=True)
        slopes = torch.func.vmap(torch.func.jacrev(self.layers))(distances).squeeze(-1)
        return self.layers(distances), -slopes * offsets / distances


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.then = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            t.view(n, length, self.heads, -1).transpose(1, 2) for t in self.mix(self.before(x)).split(width, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.narrow(F.gelu(self.wide(self.then(x)), approximate="tanh"))  # type: ignore[no-any-return]


class NanoGpt(nn.Module):
    """GPT-2 with its smallest published sizes; the loss of the next token and the last token's scores."""

    def __init__(self, vocabulary: int = 50304, length: int = 1024, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, width // 64) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits[:, -1]}

"""A small language model of characters, for the examples beside it: text in, text out, trained in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONTEXT = 64


def read(paths: list[Path]) -> tuple[Tensor, str]:
    """What the files hold, as places in the alphabet that is returned with it."""
    text = "\n".join(path.read_text() for path in paths)
    alphabet = "".join(sorted(set(text)))
    places = {character: place for place, character in enumerate(alphabet)}
    return torch.tensor([places[character] for character in text]), alphabet


class Layer(nn.Module):
    """Attention to what came before, and two products with SwiGLU between."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_products = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.up(self.before_products(x)).chunk(2, -1)
        result: Tensor = x + self.down(F.silu(gate) * up)
        return result


class LanguageModel(nn.Module):
    """Logits of the next character, ``(batch, length, characters)``, of ``(batch, length)`` of at most CONTEXT."""

    def __init__(self, characters: int, width: int = 256, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.norm(self.layers(x)))
        return logits


def loss(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Of ``(batch, CONTEXT + 1)`` characters, in nats."""
    return F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())


def batches(text: Tensor, count: int, size: int = 32, seed: int = 0) -> list[Tensor]:
    """``count`` batches of pieces from places drawn by ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (count, size, 1), generator=generator)
    return [text[start + torch.arange(CONTEXT + 1)] for start in starts]


def train(model: nn.Module, text: Tensor, steps: int, device: str, lr: float = 2e-3) -> list[float]:
    """Train a compiled model on the first nine tenths of the text; every step's loss."""
    part = text[: len(text) * 9 // 10]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    step_loss, found = torch.compile(lambda batch: loss(model, batch)), []
    for batch in batches(part, steps):
        value = step_loss(batch.to(device))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        found.append(value.detach())
    return torch.stack(found).tolist()


@torch.no_grad()
def evaluate(model: Callable[[Tensor], Tensor], text: Tensor, device: str, count: int = 8) -> float:
    """The mean loss on the last tenth of the text."""
    part = text[len(text) * 9 // 10 :]
    return float(torch.stack([loss(model, batch.to(device)) for batch in batches(part, count, seed=1)]).mean())


@torch.no_grad()
def write(model: Callable[[Tensor], Tensor], start: Tensor, length: int) -> Tensor:
    """The likeliest ``length`` characters after ``start``."""
    tokens = start
    for _ in range(length):
        tokens = torch.cat([tokens, model(tokens[None, -CONTEXT:])[:, -1].argmax(-1)])
    return tokens[len(start) :]

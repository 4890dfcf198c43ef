"""Keys and values through a low-rank latent, as in multi-head latent attention (DeepSeek-V2, 2024).

The tokens are projected down to a latent, which is normalised; keys and values are made of that. With a latent
narrower than 2/3 of the width this has fewer weights and less work than making both of the tokens.

Notation: S tokens, H width, R latent width.
"""

from torch import Tensor, nn


class Latent(nn.Sequential):
    """Tokens [..., H] -> their latent [..., R]: projected and normalised."""

    def __init__(self, size: int, latent_size: int) -> None:
        super().__init__(nn.Linear(size, latent_size, bias=False), nn.LayerNorm(latent_size))


class KeyValueProjection(nn.Module):
    """Tokens [..., H] -> their keys and values [..., 2 H], both made of one latent."""

    def __init__(self, size: int, latent_size: int) -> None:
        super().__init__()
        self.latent = Latent(size, latent_size)
        self.up = nn.Linear(latent_size, 2 * size)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.latent(x))


def key_value_projection(size: int, latent_size: int | None) -> nn.Module:
    """What makes keys and values [..., 2 H] of tokens [..., H]: a linear layer, or one through a latent."""
    return nn.Linear(size, 2 * size) if latent_size is None else KeyValueProjection(size, latent_size)

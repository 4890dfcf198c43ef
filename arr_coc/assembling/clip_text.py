"""CLIP's words (openai/clip-vit-large-patch14): where scorer "clip_query" starts to read questions.

The scorer's shared space is trained; CLIP gives it a start in which words of like meaning lie together. The question's
projection is fitted so that the language model's embedding of a word leads to CLIP's embedding of the same word.

Notation: W words in common, D language-model width, S width of the shared space, CLIP's.
"""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..files import read_json
from .families import FAMILIES, Family, Shapes
from .mapping import Mapping, Rows
from .sources import Source

CLIP_TEXT = "clip-text"
CLIP_RECIPE = "fitted: from the language model's embeddings of words to CLIP's (ridge regression)"
WORDS = "text_model.embeddings.token_embedding.weight"
QUESTION = "model.fetcher.scorers.clip_query.text_projection.weight"

RIDGE = 0.1
"""Penalty per word, against normalised embeddings of unit variance."""


@FAMILIES.register("clip")
class Clip(Family):
    """Read for its word embeddings; no tensor of it is in the checkpoint."""

    roles = (CLIP_TEXT,)

    def map(self, source: Source, roles: set[str], wanted: Shapes) -> Mapping:
        mapping = Mapping(source)
        mapping.leave_out(re.escape(WORDS), "read, to fit how scorer clip_query starts")
        mapping.leave_out(r"text_model\..+|text_projection\.weight|logit_scale", "its text encoder: words are enough")
        mapping.leave_out(
            r"vision_model\..+|visual_projection\.weight", "its vision encoder: images are read by another"
        )
        return mapping


FAMILIES.register("clip_text_model")(Clip)


def words_in_common(source: Source, tokenizer: Any) -> list[tuple[int, int]]:
    """(row of the language model, row of CLIP) of each lower-case word that is one token for both.

    Raises:
        ValueError: the two know no word in common, or `source` has no tokenizer of CLIP's form.
    """
    known = tokenizer.get_vocab()
    vocabulary = read_json(source.file("tokenizer.json")).get("model", {}).get("vocab", {})
    words = [
        (token.removesuffix("</w>"), row) for token, row in vocabulary.items() if re.fullmatch(r"[a-z]+</w>", token)
    ]
    pairs = sorted((known["Ġ" + word], row) for word, row in words if "Ġ" + word in known)  # Ġ: a space before it
    if not pairs:
        raise ValueError(f"{source}: expected words that the language model's tokenizer knows too; got none")
    return pairs


@torch.no_grad()
def fit(source: Source, embeddings: Rows, tokenizer: Any) -> Tensor:
    """[S, D] float32: leads the normalised embedding of a word to CLIP's, centred."""
    pairs = torch.tensor(words_in_common(source, tokenizer))
    table = source.shape(WORDS)
    embedded = _gather(embeddings, pairs[:, 0])
    order = pairs[:, 1].argsort()
    asked = torch.empty(len(pairs), table[1])
    asked[order] = _gather(Rows(source, WORDS, 0, table[0]), pairs[order, 1])
    asked = asked - asked.mean(0)
    embedded = F.layer_norm(embedded, embedded.shape[-1:])
    square = (embedded.T @ embedded).double()
    square += RIDGE * len(pairs) * torch.eye(len(square), dtype=torch.float64)
    return torch.linalg.solve(square, (embedded.T @ asked).double()).T.float()


def _gather(rows: Rows, wanted: Tensor) -> Tensor:
    """Rows `wanted`, ascending, of a table: [W, width] float32, without ever holding the table."""
    gathered = torch.empty(len(wanted), rows.info.shape[1])
    for first, block in rows.blocks():
        here = (wanted >= first) & (wanted < first + len(block))
        gathered[here] = block[wanted[here] - first].float()
    return gathered

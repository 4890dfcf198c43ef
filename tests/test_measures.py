"""What a training measures: losses by token, recall, dependence on the question."""

import pytest
import torch

from arr_coc.training.losses import answer_positions, loss_weights, token_losses
from arr_coc.training.measures import query_dependence, recall


def test_logits_are_asked_for_where_answers_are() -> None:
    labels = torch.tensor([[-100, -100, 3, 1, -100], [-100, -100, -100, 2, 0]])
    assert answer_positions(labels) == 4
    logits = torch.zeros(2, 5, 4).scatter(2, torch.tensor([[0, 3, 1, 0, 0], [0, 0, 2, 1, 0]])[..., None], 9.0)
    losses, right = token_losses(logits[:, -4:], labels)
    assert right.tolist() == [[True, True, True], [True, True, False]]
    assert losses[1, 2] > 8 and losses[0].max() < 0.01 and losses.shape == (2, 3)


def test_recall_counts_what_was_fetched_and_knows_what_it_does_not_know() -> None:
    labels = torch.tensor([[1.0, 1, 0, 0], [-1.0, -1, -1, -1]])
    found = recall(torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]]).bool(), labels)
    assert found[0] == 0.5 and found[1].isnan()


def test_query_dependence_is_the_distance_between_fetches_of_one_image() -> None:
    """The same numbers as in an experiment's report, which measures what is fetched, too."""
    fetched = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]]).bool()
    images = torch.tensor([0, 0, 0, 1])
    questions = [(1,), (2,), (3,), (1,)]
    measured = query_dependence(fetched, images, questions)
    assert measured[:3].tolist() == pytest.approx([5 / 6, 2 / 3, 5 / 6]) and measured[3].isnan()
    repeated = query_dependence(fetched[:2], images[:2], [(1,), (1,)])
    assert bool(repeated.isnan().all()), "the same question again says nothing"
    nothing = query_dependence(fetched[:2] & False, images[:2], questions[:2])
    assert bool(nothing.isnan().all())


def test_weights_of_unknown_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="losses: expected names among answer, .*; got beauty"):
        loss_weights({"beauty": 1.0})
    with pytest.raises(ValueError, match="losses: expected weights of 0 or more, one above 0"):
        loss_weights({"answer": -1.0})

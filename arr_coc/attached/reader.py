"""The reader: questions to a published vision-language model with running back.

Notation: B questions, N image tokens of a prompt as the plain model has them, M base tokens, K fetched tokens, L
question tokens, S prompt length, D width of the language model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from ..files import ADAPTER, find_model, fresh_file
from ..loading import find_device, load_model
from ..modeling.answers import Answer, answer_probabilities
from ..modeling.budgets import AS_SEEN
from ..modeling.checks import DECODING, boxes_per_slot
from ..modeling.configuration_arr_coc import ArrCocConfig, ArrCocFetcherConfig
from ..modeling.image_loading import MAX_IMAGE_PIXELS, Source, boxes_on_image, load_source
from ..modeling.image_processing_arr_coc import Box
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import (
    History,
    Turn,
    check_decoding,
    check_names,
    check_prompts,
    checked_questions,
    histories,
    shown_by_prompts,
)
from ..modeling.view_encoding import sources_of
from ..modeling.word_sources import PageToRead, check_words, words_of_each, words_of_page
from . import scoring
from .encoding import AttachedEncoding, EncodedPrompt, encode_prompts
from .families import FAMILIES
from .runner import ModelRunner, PreparedPrompt, count_fetched

BUDGET = 0.25  # default share of the plain model's image tokens
POOL = 4  # default number of image tokens along each axis in one base token
WAYS = ("tokens", "pixels")


class AttachedReader:
    """Running back attached to a published vision-language model: it reads only the image tokens for each question.

    The reader uses the model's own public methods and does not change it. `arr_coc.attach` is another name of it.

    Args:
        model: of one of the families in `FAMILIES`, as `AutoModelForImageTextToText` loads it.
        processor: the model's, as `AutoProcessor` loads it.

    Attributes:
        scorer: the trained scorer of strategy "realizer", or None.

    Raises:
        ValueError: a model of another family, or a processor of another model.

    Example:
        >>> reader = arr_coc.attach(model, processor)
        >>> page = reader.encode_image("invoice.jpg")
        >>> reader.generate(page, "What is the total?", budget=0.25, return_fetch=True)
    """

    def __init__(self, model: Any, processor: Any) -> None:
        kind, model_type = FAMILIES[model.config.model_type], model.config.model_type
        expected = PROCESSOR_MAPPING_NAMES[model_type]
        if expected not in [base.__name__ for base in type(processor).__mro__]:
            raise ValueError(f"processor: expected a {expected}, as {model_type} has; got {type(processor).__name__}")
        self.model, self.processor, self.family = model, processor, kind(model, processor)
        self.runner = ModelRunner(self.family)
        self.scorer: scoring.TrainedScorer | None = None

    @property
    def width(self) -> int:
        """D, of image tokens and of the embeddings of text."""
        return self.model.get_input_embeddings().weight.shape[1]

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(
        self,
        image: Any,
        *,
        pool: int = POOL,
        way: str = "tokens",
        prefix: bool = True,
        words: Any = "auto",
        password: str | None = None,
    ) -> AttachedEncoding:
        """Encodes images once for any number of questions.

        Args:
            image: in any form that our own models take: one image; a list, one for each question; or a list of lists,
                one list for each prompt. All pages of a PDF, and all frames of a video, are in one prompt.
            pool: image tokens along each axis in one base token; 0: no base tokens.
            way: "tokens": the vision tower encodes the whole image, and base tokens are means; "pixels": it encodes a
                small copy of the image, whose tokens are the base tokens, and later the patches for a question.
            prefix: whether the language model prefills what questions then share: the prompt up to the base tokens;
                and, where strategy "attention" is the default, its layers for that with all tokens.
            words: the source of the words for strategy "words", as in `generate` of our own models; "auto" is a PDF's
                text layer.
            password: of encrypted PDFs.

        Raises:
            ValueError: an image or words that cannot be read, a pool below 0, another way, or "pixels" without base
                tokens or for a family whose tower encodes whole images only.
        """
        self._check_way(pool, way)
        check_words(words)
        loaded = [[load_source(one, password=password) for one in shown] for shown in shown_by_prompts(image)]
        sources = [[page for one in shown for page in sources_of(one, AS_SEEN, MAX_IMAGE_PIXELS)] for shown in loaded]
        return self.encode_sources(sources, pool, way, prefix, words)

    @torch.no_grad()
    def encode_sources(
        self,
        sources: Sequence[list[Source]],
        pool: int = POOL,
        way: str = "tokens",
        prefix: bool = True,
        words: Any = "auto",
    ) -> AttachedEncoding:
        """`encode_image` for the images, pages and frames of each prompt."""
        images = [[source.load() for source in shown] for shown in sources]
        each = iter(words_of_each(words, sum(map(len, sources))))
        said = [
            [words_of_page(next(each), PageToRead(*page)) for page in zip(*shown, strict=True)]
            for shown in zip(sources, images, strict=True)
        ]
        inputs, texts = self.runner.processed(images)
        encoding = encode_prompts(self.family, sources, images, texts, inputs, pool, way)
        for prompt, own in zip(encoding.prompts, said, strict=True):
            prompt.words = own
        for prompt in encoding.prompts if prefix else ():
            if pool:
                prompt.prefix = self.runner.prefilled(encoding, prompt, whole=False)
            if way == "tokens" and self.scorer is None:  # "attention" is then the default strategy
                prompt.image = self.runner.prefilled(encoding, prompt, whole=True)
        return encoding

    # ---- ask ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        image: Any,
        question: str | Sequence[str],
        *,
        budget: float | int | str = BUDGET,
        strategy: str | None = None,
        boxes: Sequence[Box] | Sequence[Sequence[Box]] | None = None,
        history: History = (),
        seed: int = 0,
        pool: int = POOL,
        way: str = "tokens",
        words: Any = "auto",
        password: str | None = None,
        return_fetch: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Answers questions about images.

        Args:
            image: an argument or result of `encode_image`; None: a prompt without an image, for the plain model.
            question: one, or several: one for each prompt, or all about one prompt, or one about all.
            budget: the number or share of image tokens for the language model: see `count_fetched`. 1.0: all of them,
                in their places, as in the plain model.
            strategy: the scorer: a name in `STRATEGIES`; None: "realizer" if there is a trained scorer, else
                "attention".
            boxes: (x0, y0, x1, y1) px for strategy "oracle": a list, or one for each image of each prompt.
            history: earlier questions and their answers: [(question, answer), ...], or such a list for each question.
            seed: of strategy "random".
            pool, way, words, password: see `encode_image`; for images that are not encoded yet.
            return_fetch: whether to return `Answer`s, with the fetched tokens.
            kwargs: arguments of transformers' `generate`.

        Returns:
            The answer, or a list of them for lists; without an image always text.

        Raises:
            ValueError: invalid input; if possible, before anything is encoded.
        """
        questions = self.check_questions(question)
        turns = histories(history, len(questions))
        self.check_questions(questions, turns)
        settings = {name: self.runner.setting(kwargs, name) for name in (*DECODING, "eos_token_id")}
        check_decoding(settings, kwargs)
        check_names(self.model, kwargs)
        strategy = self.check_strategy(strategy, boxes)
        if image is None:
            answers: list[Any] = self.runner.answers_to_text(questions, turns, kwargs)
        else:
            count_fetched(budget, 2**30, 2**30, int(pool > 0))  # refuses requests that are invalid for every image
            if not isinstance(image, AttachedEncoding):
                shared = len(questions) > 1 or (strategy == "attention" and way == "pixels")
                own = {"words": words, "password": password}
                encoding = self.encode_image(image, pool=pool, way=way, prefix=shared, **own)
            elif image.model is not self.model:
                made = type(image.model).__name__
                raise ValueError(f"encoding: expected one that this model made; got one of {made}")
            else:
                encoding = image
            check_prompts(len(encoding), len(questions))
            several = max(len(encoding), len(questions))
            prompts = encoding.prompts * (several // len(encoding))
            said = [*zip(questions, turns, strict=True)] * (several // len(questions))
            prepared = [
                self.ask(encoding, prompt, *own, budget=budget, strategy=strategy, boxes=listed, seed=seed)
                for prompt, own, listed in zip(prompts, said, _boxes_of(prompts, boxes), strict=True)
            ]
            answers = self._answers(prepared, kwargs, return_fetch)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        return answers[0] if single and len(answers) == 1 else answers

    def _answers(self, prepared: Sequence[PreparedPrompt], kwargs: dict[str, Any], return_fetch: bool) -> list[Any]:
        """Answers to prompts, with the fetched tokens of each."""
        output, start, texts = self.runner.answers(prepared, kwargs, return_fetch)
        if not return_fetch:
            return texts
        setting = self.runner.setting
        end, padding = setting(kwargs, "eos_token_id", []), setting(kwargs, "pad_token_id", -1)
        probabilities = answer_probabilities(self.model, output, start, end, padding)
        whole = output if setting(kwargs, "return_dict_in_generate") else None
        each = len(texts) // len(prepared)
        sources = [scoring.origins(own.prompt, own.fetch.indices[0]) for own in prepared]
        return [
            Answer(text, probability, prepared[row // each].fetch, sources[row // each], output=whole)
            for row, (text, probability) in enumerate(zip(texts, probabilities, strict=True))
        ]

    # ---- the trained scorer ----------------------------------------------------------------------------------------

    def save_adapter(self, path: str | Path) -> None:
        """Writes the trained scorer to a safetensors file. Raises ValueError: there is no trained scorer."""
        if self.scorer is None:
            raise ValueError("save_adapter: expected a trained scorer (load_adapter, or arr-coc train); got none")
        scorer, config = self.scorer, self.model.config
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in scorer.state_dict().items()}
        about = {"model_type": config.model_type, "width": str(scorer.width), "base": config._name_or_path}
        about["config"] = json.dumps(scorer.config.to_dict())
        with fresh_file(Path(path)) as beside:
            save_file(weights, beside, metadata=about)

    def load_adapter(self, path: str | Path) -> None:
        """Reads a scorer that `save_adapter` wrote; strategy "realizer" is then the default.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another kind of file, or a scorer of another family or width.
        """
        about, weights = scoring.read_scorer(path)
        expected, received = (self.model.config.model_type, str(self.width)), (about["model_type"], about["width"])
        if expected != received:
            wanted = f"a scorer for {expected[0]} with tokens {expected[1]} wide"
            raise ValueError(f"{path}: expected {wanted}; got one for {received[0]}, {received[1]} wide")
        config = ArrCocFetcherConfig.from_dict(json.loads(about["config"]))
        scorer = scoring.TrainedScorer(config, feature_size=self.width, text_size=self.width)
        scorer.load_state_dict(weights)
        self.scorer = scorer.eval().to(self.model.device)

    @torch.no_grad()
    def query(self, question: str) -> Tensor:
        """[L, D] embeddings of a question, the scorers' input."""
        return self.model.get_input_embeddings()(self.runner.words(question))

    # ---- checks before work ----------------------------------------------------------------------------------------

    def _check_way(self, pool: int, way: str) -> None:
        if isinstance(pool, bool) or not isinstance(pool, int) or pool < 0:
            raise ValueError(f"pool: expected an integer from 0; got {pool!r}")
        if way not in WAYS:
            raise ValueError(f"way: expected one of {', '.join(WAYS)}; got {way!r}")
        if way == "pixels" and not self.family.encodes_cells:
            able = ", ".join(sorted(name for name, kind in FAMILIES.items() if kind.encodes_cells))
            raise ValueError(f'way "pixels": expected a model of type {able}; got {self.model.config.model_type}')
        if way == "pixels" and not pool:
            raise ValueError('way "pixels": expected a pool above 0, by which the small copy is smaller; got 0')

    def check_questions(self, question: str | Sequence[str], history: Sequence[Sequence[Turn]] = ()) -> list[str]:
        """The questions, checked; the history must be text without image placeholders, too. Raises ValueError: an
        invalid question, or none."""
        questions = checked_questions(question, [])
        for text in (*questions, *(said for turns in history for turn in turns for said in turn)):
            for token in {self.family.image_token, self.processor.image_token}:
                if token in text:
                    expected = f"text without {token}, which stands for an image"
                    raise ValueError(f"question: expected {expected}; got {text!r}")
        return questions

    def check_strategy(self, strategy: str | None, boxes: Any = None) -> str:
        """The strategy's name; None gives the default. Raises ValueError: an unknown name, "realizer" without a trained
        scorer, "oracle" without boxes, or boxes with another strategy."""
        if strategy is None:
            strategy = "attention" if self.scorer is None else "realizer"
        if strategy not in scoring.STRATEGIES:
            raise ValueError(f"strategy: expected one of {', '.join(sorted(scoring.STRATEGIES))}; got {strategy!r}")
        if strategy == "realizer" and self.scorer is None:
            expected = "a trained scorer (load_adapter, or arr-coc train)"
            raise ValueError(f'strategy "realizer": expected {expected}; got none')
        if (strategy == "oracle") != (boxes is not None):
            received = f"strategy {strategy!r} {'without' if boxes is None else 'with'} boxes"
            raise ValueError(f"boxes: expected boxes with strategy oracle, and with no other; got {received}")
        return strategy

    # ---- steps -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def ask(
        self,
        encoding: AttachedEncoding,
        prompt: EncodedPrompt,
        question: str,
        history: Sequence[Turn] = (),
        *,
        budget: float | int | str = BUDGET,
        strategy: str,
        boxes: Sequence[Sequence[Box]] | None = None,
        seed: int = 0,
    ) -> PreparedPrompt:
        """Fetches for a question about one prompt's images, and places the tokens that the language model reads.

        If the budget keeps all tokens, the strategy is "all", with every token in its place. `boxes`: a list for each
        image of the prompt; the other arguments are those of `generate`.
        """
        count = count_fetched(budget, len(prompt), int(prompt.is_place.sum()), len(prompt.base))
        scores, failed = torch.zeros(len(prompt)), False
        if count is None:
            every = torch.arange(len(prompt), device=prompt.base.device)
            chosen, relevance, strategy = every, torch.ones(len(prompt)), scoring.ALL
        elif not count:
            chosen, relevance, strategy = torch.zeros(0, dtype=torch.long), scores, "none"
        else:
            given: dict[str, Any] = {"seed": seed}
            if strategy == "attention":
                to_all = prompt.tokens is not None
                paid = self.runner.attention(encoding, prompt, question, history, to_all=to_all)
                given["attention"] = paid if to_all else scoring.between_cells(paid, prompt)
            if boxes is not None:
                given["relevance"] = scoring.relevance_of_boxes(prompt, boxes)
            if strategy == "words":
                given["relevance"] = scoring.relevance_of_words(prompt, question)
            sizes = {"feature_size": self.width, "text_size": self.width}
            trained = self.scorer if strategy == "realizer" else None
            scorer = trained or scoring.STRATEGIES[strategy](ArrCocFetcherConfig(), **sizes)
            scores, relevance, failed = scoring.score(scorer, prompt, self.query(question), **given)
            chosen = scoring.most_relevant(scores, prompt.is_place, count)
        fetch = scoring.fetch_result(prompt, chosen, scores, relevance, strategy, failed=failed)
        kept = None if count is None else fetch.indices[0]
        placed = self.runner.place(prompt, self.runner.plain(prompt, question, history), kept)
        return PreparedPrompt(encoding, prompt, placed, fetch)


attach = AttachedReader


def _boxes_of(prompts: Sequence[EncodedPrompt], boxes: Any) -> list[Any]:
    """The lists of boxes for the images of each prompt; None without boxes."""
    if boxes is None:
        return [None] * len(prompts)
    listed, count = boxes_per_slot(boxes), sum(len(prompt.sources) for prompt in prompts)
    if len(listed) != count:
        raise ValueError(f"boxes: expected one list per question and image ({count}); got {len(listed)}")
    rest = iter(listed)
    return [[boxes_on_image(next(rest), own.height, own.width) for own in prompt.sources] for prompt in prompts]


def load_reader(name: str | None, device: str | None = None) -> AttachedReader | None:
    """A reader attached to the published model `name`; None for our own models and for unreadable ones.

    A folder with a trained scorer (`ADAPTER`) gives its model, with this scorer.

    Raises:
        ValueError: a model of a family that is not supported, one that transformers cannot load, a damaged scorer, a
            scorer whose model is missing, or no such device.
    """
    if name is None:
        return None
    source = find_model(name)
    if (adapter := Path(source) / ADAPTER).is_file():
        reader = load_reader(base, device) if (base := scoring.read_scorer(adapter)[0].get("base", "")) else None
        if reader is None:
            raise ValueError(f"{adapter}: expected a scorer of a published model; got one of {base!r}")
        reader.load_adapter(adapter)
        return reader
    try:
        model_type = AutoConfig.from_pretrained(source).model_type
    except (OSError, ValueError):
        return None  # `arr_coc.loading.load_model` raises the error
    if model_type == ArrCocConfig.model_type:
        return None
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"{source}: expected an ARR-COC model, or a model of type {known}; got {model_type!r}")
    target, kind = find_device(device), AutoModelForImageTextToText
    model, processor = (_loaded(part, source) for part in (kind, AutoProcessor))
    return AttachedReader(model.to(target).eval(), processor)


def load_model_or_reader(
    name: str | None, device: str | None = None
) -> ArrCocForConditionalGeneration | AttachedReader:
    """One of our own models, or a reader attached to a published one. Raises the errors of `load_reader` and
    `load_model`."""
    return load_reader(name, device) or load_model(name, device)


def _loaded(kind: Any, source: str) -> Any:
    try:
        return kind.from_pretrained(source)
    except Exception as error:  # missing packages and files, damaged weights: libraries raise errors of many types
        line = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{source}: expected what {kind.__name__} loads; got {line}") from error

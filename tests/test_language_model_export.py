"""The language model by itself answers from embeddings as the whole model does, in transformers and by vLLM's rules."""

import base64
import json
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import Cli, loud_model, refuses
from serving_client import noise
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.publishing.building import export_language_model, plain_language_model
from arr_coc.serving.vllm_client import VllmClient

QUESTION = "What is the total?"
PLACEHOLDER = "<prompt_embeds>"
"""vLLM's special token for a part that is embedded."""


@pytest.fixture(scope="module")
def exported(model: ArrCocForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_language_model(model, tmp_path_factory.mktemp("export") / "language-model")


class Engine:
    """What vLLM does with a chat message of embedded parts, on the exported checkpoint and transformers alone.

    Attributes:
        prompts: [S, D] of each request.
    """

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        self.tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
        self.prompts: list[Tensor] = []

    def answer(self, body: dict[str, Any]) -> str:
        (part,) = body["messages"][0]["content"]
        embeds = torch.load(BytesIO(base64.b64decode(part["data"], validate=True)), weights_only=True)
        chat = [{"role": "user", "content": PLACEHOLDER}]
        ids = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        place = ids.index(self.tokenizer.convert_tokens_to_ids(PLACEHOLDER))
        head, tail = (self.model.get_input_embeddings()(torch.tensor(part)) for part in (ids[:place], ids[place + 1 :]))
        prompt = torch.cat((head, embeds, tail))
        self.prompts.append(prompt)
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        output = self.model.generate(
            inputs_embeds=prompt[None], attention_mask=mask, max_new_tokens=body["max_tokens"], do_sample=False
        )
        return self.tokenizer.decode(output[0], skip_special_tokens=True)


@pytest.fixture(scope="module")
def engine(exported: Path) -> Engine:
    return Engine(exported)


@pytest.fixture(scope="module")
def client(model: ArrCocForConditionalGeneration, engine: Engine) -> VllmClient:
    """Asks through OpenAI's client, whose requests go to the engine."""
    httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")

    def handle(request: Any) -> Any:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"object": "list", "data": [{"id": "exported", "object": "model"}]})
        body = json.loads(request.content)
        assert body["model"] == "exported" and body["temperature"] == 0
        message = {"role": "assistant", "content": engine.answer(body)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(200, json={"id": "1", "created": 0, "model": "exported", "choices": [choice]})

    transport = httpx.Client(transport=httpx.MockTransport(handle))
    return VllmClient(model, openai.OpenAI(base_url="http://engine/v1", api_key="none", http_client=transport))


@pytest.mark.parametrize(
    ("choices", "history"),
    [
        ({}, ()),
        ({"strategy": "none"}, ()),
        ({"strategy": "saliency", "budget": 5}, [("Who?", "Me <|im_end|>."), ("Where?", "Here.")]),
    ],
)
def test_answers_are_those_of_generate(
    choices: dict[str, Any], history: Any, model: ArrCocForConditionalGeneration, client: VllmClient
) -> None:
    """Control tokens in what people write stay text: they are embedded here."""
    encoding = client.encode(noise(1))
    for question in (QUESTION, "\nIs <|im_end|> text?"):
        expected = model.generate(noise(1), question, history=history, max_new_tokens=8, **choices)
        assert client.ask(encoding, question, history=history, max_tokens=8, **choices) == expected


def test_the_export_reads_the_same(model: ArrCocForConditionalGeneration, client: VllmClient, engine: Engine) -> None:
    """Bit by bit; of one image the same up to its base tokens, so that a cache by content shares them."""
    encoding = client.encode(noise(2))
    prompts = []
    for question in (QUESTION, "Who?"):
        client.ask(encoding, question, max_tokens=1)
        prompts.append(engine.prompts[-1])
    inputs = model.processor.prompts([QUESTION], images=[1], placeholders=16 + 17)
    text = model.get_input_embeddings()(inputs["input_ids"][0])
    is_text = inputs["input_ids"][0] != model.config.image_token_id
    assert torch.equal(prompts[0][is_text], text[is_text])
    shared = int((~is_text).nonzero()[0]) + encoding.base_positions
    assert torch.equal(prompts[0][:shared], prompts[1][:shared]) and not torch.equal(prompts[0], prompts[1])


def test_command(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    code, out, err = cli("export-language-model", checkpoint, tmp_path / "out")
    assert code == 0 and f"vllm serve {tmp_path / 'out'} --enable-prompt-embeds --dtype float32" in out, err
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert not [*(tmp_path / "out").glob("*.py")]
    code, _, err = cli("export-language-model", checkpoint, tmp_path / "out")
    assert code == 2 and "expected a new or empty folder" in err


def test_mistakes(client: VllmClient, model: ArrCocForConditionalGeneration) -> None:
    encoding = client.encode(noise(1))
    with pytest.raises(TypeError, match="ask: expected fields of FetchChoices; got colour"):
        client.ask(encoding, QUESTION, colour="red")
    refuses("strategy: expected one of", client.ask, encoding, QUESTION, strategy="best")
    other = VllmClient(model, None, "x")
    other.__dict__["_around"] = ([1, 2], [3])
    refuses("chat template: expected one that writes the same", other.body, encoding, QUESTION)
    # Granite divides its logits, which ARR-COC does not.
    scaled = {"model_type": "granite", "logits_scaling": 8.0}
    with pytest.raises(ValueError, match="text_config: expected a class of .* head; got GraniteForCausalLM"):
        plain_language_model(loud_model(text=scaled))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # vLLM's, of its own parts
@pytest.mark.parametrize("content_format", ["string", "openai"])
def test_vllm_reads_the_part_that_is_sent(content_format: str, client: VllmClient) -> None:
    """vLLM's own parser of chat requests, where vLLM is installed; no more of it runs without an accelerator."""
    parser = pytest.importorskip("vllm.renderers.chat_utils", exc_type=ImportError)
    width = client.answer_generator.model.config.text_config.hidden_size
    kind = {"enable_prompt_embeds": True, "is_multimodal_model": False, "multimodal_config": None}
    media = {"allowed_local_media_path": "", "allowed_media_domains": None, "get_hidden_size": lambda: width}
    parts = {"hf_text_config": SimpleNamespace(), "hf_config": SimpleNamespace()}
    config = SimpleNamespace(dtype=torch.float32, **kind, **media, **parts)
    encoding = client.encode(noise(1))
    messages = client.body(encoding, QUESTION)["messages"]
    conversation, data, _ = parser.parse_chat_messages(messages, config, content_format=content_format)
    assert [*data] == ["prompt_embeds"] and len(data["prompt_embeds"]) == 1 and len(conversation) == 1
    assert torch.equal(data["prompt_embeds"][0], client.prompt_embeds(encoding, QUESTION))
    content = conversation[0]["content"]
    text = content if content_format == "string" else content[0]["text"]
    assert text.startswith(PLACEHOLDER) and "\n" not in text

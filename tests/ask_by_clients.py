"""Asks a server by LangChain's and LlamaIndex's OpenAI classes, of an interpreter that has them: `test_clients.py`.

    build/clients/bin/python tests/ask_by_clients.py langchain|llama_index URL IMAGE PDF QUESTION

prints one JSON object: {"image", "pdf", "stream": pieces, "schema": fields by name}.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

TOKENS = 40


class Receipt(BaseModel):
    """What is asked for as JSON."""

    total: str = Field(description="the total")
    date: str = Field(description="the date")


def data_url(path: Path) -> str:
    kind = "application/pdf" if path.suffix == ".pdf" else "image/png"
    return f"data:{kind};base64," + base64.b64encode(path.read_bytes()).decode()


def by_langchain(url: str, image: Path, pdf: Path, question: str) -> dict[str, Any]:
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=url, api_key="any", model="tiny", max_tokens=TOKENS, max_retries=0)  # type: ignore[arg-type, call-arg]
    shown = {"type": "image_url", "image_url": {"url": data_url(image)}}
    standard = {"type": "image", "base64": base64.b64encode(image.read_bytes()).decode(), "mime_type": "image/png"}
    file = {
        "type": "file",
        "base64": base64.b64encode(pdf.read_bytes()).decode(),
        "mime_type": "application/pdf",
        "filename": pdf.name,
    }
    text = {"type": "text", "text": question}

    def about(part: dict[str, Any]) -> list[HumanMessage]:
        return [HumanMessage(content=[part, text])]

    asked = model.invoke(about(shown)).content
    assert model.invoke(about(standard)).content == asked
    assert asyncio.run(model.ainvoke(about(shown))).content == asked
    structured = model.with_structured_output(Receipt, method="json_schema")
    return {
        "image": asked,
        "pdf": model.invoke(about(file)).content,
        "stream": [piece.content for piece in model.stream(about(shown)) if piece.content],
        "schema": structured.invoke(about(shown)).model_dump(),  # type: ignore[union-attr]
    }


def by_llama_index(url: str, image: Path, pdf: Path, question: str) -> dict[str, Any]:
    from llama_index.core.llms import ChatMessage, DocumentBlock, ImageBlock, TextBlock
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        api_base=url,
        api_key="any",
        model="tiny",
        is_chat_model=True,
        should_use_structured_outputs=True,
        max_retries=0,
        max_tokens=TOKENS,
        temperature=0,  # it asks for 0.1 by itself, so that tokens are drawn
    )

    def about(*blocks: Any) -> list[ChatMessage]:
        return [ChatMessage(role="user", blocks=[*blocks, TextBlock(text=question)])]

    shown, file = ImageBlock(image=image.read_bytes()), DocumentBlock(path=pdf)
    asked = model.chat(about(shown)).message.content
    return {
        "image": asked,
        "pdf": model.chat(about(file)).message.content,
        "stream": [piece.delta for piece in model.stream_chat(about(shown)) if piece.delta],
        "schema": model.as_structured_llm(Receipt).chat(about(shown)).raw.model_dump(),  # type: ignore[union-attr]
    }


CLIENTS: dict[str, Callable[[str, Path, Path, str], dict[str, Any]]] = {
    "langchain": by_langchain,
    "llama_index": by_llama_index,
}

if __name__ == "__main__":
    name, url, image, pdf, question = sys.argv[1:]
    print(json.dumps(CLIENTS[name](url, Path(image), Path(pdf), question)))

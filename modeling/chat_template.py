"""The chat template: how questions, images and answers are written as one prompt."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

QUESTION_ROLE = "user"

# Blocks of a message in the order given; one placeholder per image, expanded later.
_RENDER = """\
{%- macro render(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for block in content or [] -%}
      {%- if block['type'] == 'text' -%}
        {{- block['text'] -}}
      {%- elif block['type'] in ['image', 'image_url'] -%}
        {{- 'IMAGE' -}}
      {%- else -%}
        {{- raise_exception('message content: expected text, image or image_url, received ' + block['type']) -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
"""


def render_macro(image: str) -> str:
    """Jinja macro `render(content)` of a chat template, which writes `image` (as in a Jinja string) for every image."""
    return _RENDER.replace("'IMAGE'", f"'{image}'")


# ChatML as Qwen writes it. The `generation` tags mark the answers for `return_assistant_tokens_mask=True`;
# `enable_thinking=False` is Qwen3's switch.
CHAT_TEMPLATE = (
    render_macro("<|vision_start|><|image_pad|><|vision_end|>")
    + """\
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['role'] == 'assistant' -%}
    {%- generation -%}
      {{- render(message['content']) + '<|im_end|>' -}}
    {%- endgeneration -%}
  {%- else -%}
    {{- render(message['content']) + '<|im_end|>' -}}
  {%- endif -%}
  {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}
"""
)

IMAGES = ("image", "image_url")


def images_first(messages: Sequence[Any]) -> list[Any]:
    """A chat's messages in the order that models are trained with: all images before the text of the first question.

    Several texts of a message become one, a line each. Messages that are no chat are left to the template, which
    refuses them.
    """
    ordered, images = [], []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple) and all(isinstance(block, Mapping) for block in content):
            texts = [block["text"] for block in content if block.get("type") == "text"]
            images += [block for block in content if block.get("type") in IMAGES]
            others = [block for block in content if block.get("type") not in (*IMAGES, "text")]
            message = {**message, "content": others + [{"type": "text", "text": "\n".join(texts)}] * bool(texts)}
        ordered.append(message)
    if not images:
        return ordered
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in ordered]
    first = roles.index(QUESTION_ROLE) if QUESTION_ROLE in roles else None
    if first is None:
        return list(messages)
    content = ordered[first]["content"]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    ordered[first] = {**ordered[first], "content": [*images, *texts]}
    return ordered


THINKS, THOUGHT = "<think>", "</think>"
"""What language models write around what they think before they answer."""

THINKING = re.compile(rf"\A\s*{THINKS}(.*?)(?:{THOUGHT}|\Z)\s*", re.DOTALL)
"""What stands before an answer; all that was written, where thinking came to no end."""


def split_thinking(text: str) -> tuple[str, str]:
    """What was thought before an answer, and the answer; "" for what is not there, or was not come to."""
    begun = text.strip()
    if len(begun) > 1 and THINKS.startswith(begun):
        return "", ""
    found = THINKING.match(text)
    return (found[1].strip(), text[found.end() :].strip()) if found else ("", text)

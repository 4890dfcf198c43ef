"""Ask a running server with OpenAI's client: one image, encoded once, several questions, streamed answers.

arr-coc serve hub_configs/arr-coc-tiny-2                    (in another terminal)
python examples/ask_server.py examples/images/receipt.png "What is the total?" "What is the date?"
"""

import argparse
import base64
import sys
from pathlib import Path

from openai import APIConnectionError, OpenAI

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("image")
parser.add_argument("questions", nargs="+")
parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
args = parser.parse_args()

client = OpenAI(base_url=args.url, api_key="none")  # or one of the server's --api-keys
try:
    model = client.models.list().data[0].id
except APIConnectionError:
    sys.exit(f"expected a server at {args.url}; got no answer: start one with arr-coc serve, or name it with --url")
content = base64.b64encode(Path(args.image).read_bytes()).decode()
encoding = client.post("/encodings", cast_to=object, body={"image": f"data:image/png;base64,{content}"})

for question in args.questions:
    parts = [{"type": "image_url", "image_url": {"url": encoding["id"]}}, {"type": "text", "text": question}]
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": parts}], stream=True, extra_body={"budget": "standard"}
    )
    print(question, end=" ", flush=True)
    for event in stream:
        print(event.choices[0].delta.content or "", end="", flush=True)
    print()

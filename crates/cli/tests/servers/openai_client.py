"""Asks a gateway with OpenAI's own client, and prints as JSON what the client made of the answers.

usage: openai_client.py URL KEY MODEL
"""
import asyncio
import json
import sys

import openai

url, key, model = sys.argv[1:]
ask = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 8}
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)
told = {"models": [one.id for one in client.models.list()]}

raw = client.chat.completions.with_raw_response.create(**ask)
whole = raw.parse()
told["whole"] = {
    "text": whole.choices[0].message.content,
    "finish": whole.choices[0].finish_reason,
    "tokens": whole.usage.completion_tokens,
    "id": whole._request_id,
    "replica": raw.headers.get("x-plimsoll-replica"),
}


def joined(chunks):
    """The text of a stream, why it ended, and its usage."""
    text, finish, usage, count = "", None, None, 0
    for chunk in chunks:
        count += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return {"text": text, "finish": finish, "tokens": usage and usage.completion_tokens, "chunks": count}


told["stream"] = joined(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
completion = client.completions.create(model=model, prompt="hello", max_tokens=5, stream=True)
told["completion"] = "".join(choice.text for chunk in completion for choice in chunk.choices)

# The client asks for base64 unless told otherwise, and decodes it.
for form in ("base64", "float"):
    more = {} if form == "base64" else {"encoding_format": form}
    rows = client.embeddings.create(model=model, input=["one", "two words", "three"], dimensions=16, **more)
    told[f"embeddings {form}"] = {
        "index": [row.index for row in rows.data],
        "length": [sum(x * x for x in row.embedding) for row in rows.data],
        "tokens": rows.usage.prompt_tokens,
    }


def error(call):
    try:
        call()
    except openai.APIStatusError as wrong:
        return {"type": type(wrong).__name__, "status": wrong.status_code, "code": wrong.code, "id": wrong.request_id}
    return None


stranger = openai.OpenAI(base_url=url, api_key="nobody-knows-this-key", max_retries=0)
told["unknown key"] = error(lambda: stranger.chat.completions.create(**ask))
create = client.chat.completions.create
told["unknown class"] = error(lambda: create(**ask, extra_headers={"x-plimsoll-class": "none"}))
told["bad request"] = error(lambda: create(**{**ask, "messages": []}))
told["large"] = error(lambda: create(**{**ask, "messages": [{"role": "user", "content": "x" * 300_000}]}))


async def many():
    """Twenty at once on one client."""
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as several:
        answers = await asyncio.gather(*(several.chat.completions.create(**ask) for _ in range(20)))
    return [answer.usage.completion_tokens for answer in answers]


told["at once"] = asyncio.run(many())

# Three pieces of a long answer, and away.
endless = client.chat.completions.create(**{**ask, "max_tokens": 8_000}, stream=True, extra_body={"ignore_eos": True})
told["left"] = sum(1 for _ in zip(range(3), endless))
endless.close()
print(json.dumps(told))
